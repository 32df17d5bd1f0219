"""Settings from options: named ones, and ``--set section.key=value`` for all others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

# Options that commands have in common.
Detector = Annotated[
    Literal["retinanet", "faster-rcnn", "deformable-detr"] | None,
    typer.Option(help="Which detector."),
]
Data = Annotated[str | None, typer.Option(help="shapes, or a data set's path.")]
OtherSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting: section.key=value; may be repeated."),
]
Run = Annotated[Path, typer.Option(help="Run directory; the same one continues.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as json only.")]


def overrides(named: dict[str, Any], others: list[str] | None) -> dict[str, Any]:
    """What was given, by setting; a named option that is None was not."""
    import yaml

    settings = {key: value for key, value in named.items() if value is not None}
    for setting in others or []:
        key, separator, value = setting.partition("=")
        if not separator:
            raise typer.BadParameter(f"--set expects section.key=value, found {setting!r}")
        settings[key] = yaml.safe_load(value)
    return settings

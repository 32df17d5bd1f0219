"""Settings from options: named ones, and ``--set section.key=value`` for all others."""

from __future__ import annotations

from typing import Any

import typer


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

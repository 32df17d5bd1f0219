"""``paploss report``: one page about one run, or about many side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or directories of them.", exists=True)
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the run directory.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw every figure as PNG and SVG here, too.")
    ] = None,
) -> None:
    """Write a page with what runs did: functions, search, curves, AP, images. Needs no network."""
    from paploss.report import write_report

    path = write_report(runs, out, figures)
    console = Console()
    console.print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)
    if figures is not None:
        console.print(
            f"drew the figures in {escape(str(figures))}", highlight=False, soft_wrap=True
        )


def report_of_run(run: Path, console: Console, *, quiet: bool) -> None:
    """The report at the end of a long command, which has done its work whether or not this does."""
    try:
        from paploss.report import write_report

        path = write_report([run])
    except Exception as error:
        console.print(
            f"[yellow]no report:[/] {escape(str(error))}; "
            f"paploss --debug report {escape(str(run))} tells more",
            highlight=False,
            soft_wrap=True,
        )
        return
    if not quiet:
        console.print(f"report: {escape(str(path))}", highlight=False, soft_wrap=True)

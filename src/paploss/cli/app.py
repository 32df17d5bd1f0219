"""The command line as a whole: which commands there are, and how errors are shown."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import paploss
from paploss.cli import data, demo, evaluate, predict, presets, report, search, train

# Which extra brings a module that not every command needs; all others come with `train`.
_EXTRAS = {"transformers": "detr", "scipy": "detr", "optuna": "search", "ray": "ray"}

app = typer.Typer(
    help="Train object detectors with a loss that is the AP formula itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("search")(search.search)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("presets")(presets.presets)
app.add_typer(data.app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paploss {paploss.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options before the command."""


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    Console(stderr=True).print(
        f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True
    )


def run() -> None:
    """Run the command line; errors are one readable line and exit code 1."""
    warnings.showwarning = _show_warning
    try:
        app(prog_name="paploss")  # also as python -m paploss
    except (ImportError, OSError, ValueError) as error:
        if "--debug" in sys.argv:
            raise
        message = str(error)
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or "").partition(".")[0]
            extra = _EXTRAS.get(missing, "train")
            message = f"{missing} is missing: pip install 'paploss[{extra}]'"
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True
        )
        sys.exit(1)

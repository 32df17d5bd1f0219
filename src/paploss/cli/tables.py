"""Tables of evaluation figures that fit into 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def percent(value: float) -> str:
    """A fraction in percent; COCO's -1 means that there was nothing to find."""
    return "-" if value < 0 else f"{100 * value:.1f}"


def print_evaluation(console: Console, evaluation: dict[str, Any], *, title: str) -> None:
    """AP and its parts, and AP of every class below."""
    metrics = evaluation["metrics"]
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*(percent(metrics[name]) for name in names))
    console.print(f"[bold]{escape(title)}[/]", highlight=False)
    console.print(table)
    classes = evaluation["per_class"].items()
    by_class = ", ".join(f"{escape(name)} {percent(ap)}" for name, ap in classes)
    console.print(f"AP by class: {by_class}", highlight=False)

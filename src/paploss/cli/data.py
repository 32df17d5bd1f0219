"""``paploss data check``: what is in a data set, and what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from paploss.data import Annotations

app = typer.Typer(help="Look into data sets.", no_args_is_help=True)

# COCO's area ranges, in square pixels of the original image.
_SMALL, _MEDIUM = 32**2, 96**2
_COUNTS = (
    "images",
    "images without boxes",
    "boxes",
    "small",
    "medium",
    "large",
    "crowd or difficult",
    "dropped boxes",
)


@app.callback()
def options() -> None:
    """Look into data sets."""


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="Folder, COCO json, YOLO yaml, or shapes.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print json instead of tables.")] = False,
) -> None:
    """Count what a data set holds and list every fault with its file and line."""
    from paploss.data import available_splits, read_annotations

    summaries: dict[str, dict[str, Any]] = {}
    unreadable: dict[str, str] = {}
    for split in available_splits(path):
        try:
            annotations = read_annotations(path, split)
        except (OSError, ValueError) as error:
            unreadable[split] = str(error)
            continue
        summaries[split] = _summary(annotations)
    if not summaries:
        raise ValueError("; ".join(unreadable.values()) or f"{path}: no split found")
    if as_json:
        typer.echo(json.dumps({"path": path, "splits": summaries, "unreadable": unreadable}))
        return
    console = Console()
    console.print(_table("", list(_COUNTS), summaries, "counts"))
    # Splits should agree in their classes; where they do not, all are shown.
    names = dict.fromkeys(chain.from_iterable(part["classes"] for part in summaries.values()))
    console.print()
    console.print(_table("boxes per class", list(names), summaries, "classes"))
    _print_faults(console, summaries, unreadable)


def _summary(annotations: Annotations) -> dict[str, Any]:
    from paploss.data import DetectionDataset
    from paploss.data.dataset import image_faults

    dataset = DetectionDataset(annotations)
    objects = dataset.ground_truth()["annotations"]
    areas = [item["area"] for item in objects]
    small = sum(area < _SMALL for area in areas)
    medium = sum(_SMALL <= area < _MEDIUM for area in areas)
    counts = (
        len(dataset),
        sum(len(record.labels) == 0 for record in dataset.records),
        len(objects),
        small,
        medium,
        len(objects) - small - medium,
        sum(item["iscrowd"] for item in objects),
        dataset.dropped_boxes,
    )
    per_class = Counter(item["category_id"] for item in objects)
    faults = [*annotations.faults, *image_faults(dataset.records)]
    return {
        "counts": dict(zip(_COUNTS, counts, strict=True)),
        "classes": {name: per_class[label] for label, name in enumerate(annotations.class_names)},
        "faults": [
            {"file": fault.file, "line": fault.line, "message": fault.message} for fault in faults
        ],
    }


def _table(title: str, rows: list[str], summaries: dict[str, dict[str, Any]], part: str) -> Table:
    """A row a count, a column a split."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, overflow="fold")
    for split in summaries:
        table.add_column(escape(split), justify="right", overflow="fold")
    for row in rows:
        figures = (str(summary[part].get(row, "-")) for summary in summaries.values())
        table.add_row(escape(row), *figures)
    return table


def _print_faults(
    console: Console, summaries: dict[str, dict[str, Any]], unreadable: dict[str, str]
) -> None:
    for split, message in unreadable.items():
        console.print(
            f"\n[bold red]{escape(split)} cannot be read:[/] {escape(message)}", highlight=False
        )
    for split, summary in summaries.items():
        faults = summary["faults"]
        if not faults:
            continue
        noun = "fault" if len(faults) == 1 else "faults"
        console.print(f"\n[bold yellow]{escape(split)}: {len(faults)} {noun}[/]")
        for fault in faults:
            line = f":{fault['line']}" if fault["line"] else ""
            # one line each, however long: terminals link file:line, and grep finds it
            console.print(
                escape(f"{fault['file']}{line}: {fault['message']}"),
                highlight=False,
                soft_wrap=True,
            )
    if not unreadable and not any(summary["faults"] for summary in summaries.values()):
        console.print("\n[green]No faults.[/]")

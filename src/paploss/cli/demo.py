"""``paploss demo``: a small search on built-in data, and what it gains, in minutes on two CPU cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paploss.cli.search import search_and_compare
from paploss.cli.settings import Quiet, Run

PRESET = "retinanet-r50-fpn-coco-tied"
SAMPLES = 8
CONFIG: dict[str, Any] = {
    "train": {
        "detector": {"name": "retinanet", "size": "tiny", "weights": "shapes"},
        "data": {"path": "shapes", "images": 500, "evaluation_images": 200},
        "epochs": 6,
        "batch_size": 8,
        "evaluate_every": 6,
    },
    "proxy": {"epochs": 1, "fraction": 0.8, "warmup_steps": 10},
    "space": {"init": PRESET, "safe": True},
    "sampler": {"name": "cmaes", "rounds": 5, "samples": SAMPLES, "sigma": 0.1},
    "final": {"against": ["focal+l1", "focal+giou", PRESET]},
}
_INTRODUCTION = """\
A tiny RetinaNet learns to find shapes in generated images. First its loss is
searched: every trial trains for a few seconds, and the AP it reaches is the
loss's reward. Then the best loss and the usual ones train it for longer, and
are compared on other images."""


def demo(
    workers: Annotated[
        int | None, typer.Option(min=0, help="Trials at once; by default one a CPU core.")
    ] = None,
    run: Run = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Search a loss for a tiny RetinaNet on generated images and compare it with the usual ones."""
    from paploss.search.config import SearchConfig

    console = Console()
    if workers is None:
        workers = min(os.cpu_count() or 1, SAMPLES)
    config = SearchConfig.model_validate(CONFIG | {"executor": {"workers": workers}})
    if not quiet:
        console.print(_INTRODUCTION)
    search_and_compare(config, run, console, quiet=quiet)

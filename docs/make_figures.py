"""Draw the pictures of the README and the docs from presets and committed results.

    python docs/make_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from paploss import load_preset

ROOT = Path(__file__).parent.parent


def readme_figure() -> None:
    """The published functions beside the time of the loss."""
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    functions, speed = figure.subplots(1, 2)
    parameters = load_preset("retinanet-r50-fpn-coco")
    names = ("f1 box", "f2 scores, above", "f3 box of the other", "f4 scores, below", "f5 box")
    for name, points in zip(names, parameters.functions, strict=True):
        functions.plot(*np.array(points).T, "o-", ms=4, label=name)
    functions.set(title="five functions are the loss (RetinaNet, published)", xlabel="x", ylabel="f(x)")
    functions.legend(fontsize=8)

    rows = json.loads((ROOT / "results/loss_speed.json").read_text())["rows"]
    series = {
        "dense": "dense formula",
        "ap loop": "AP loss, loop over positives",
        "focal": "focal loss",
        "paploss": "paploss, exact",
    }
    for name, label in series.items():
        points = [(r["scores"], r[name]) for r in rows if r["phase"] == "early" and name in r]
        speed.loglog(*zip(*points, strict=True), "o-", ms=4, label=label)
    speed.set(
        title="time of the loss, forward + backward",
        xlabel="scores in the mini-batch",
        ylabel="ms (2 CPU cores)",
    )
    speed.legend(fontsize=8)
    for axes in (functions, speed):
        axes.grid(alpha=0.3)
    figure.savefig(ROOT / "docs/figures/readme.png", dpi=110)


if __name__ == "__main__":
    readme_figure()

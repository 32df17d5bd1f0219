"""Draw the pictures of the README and the docs from presets and committed results.

    python docs/make_figures.py

Writes docs/figures/*.png.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from paploss import LossParameters, load_preset, parameterized_ap_loss
from paploss.presets import list_presets, load_preset_heads
from paploss.search import PPO2

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs/figures"
DETECTORS = {
    "retinanet": "RetinaNet",
    "faster-rcnn": "Faster R-CNN",
    "deformable-detr": "Deformable DETR",
}
COLOURS = {"f1": "C0", "f2": "C1", "f3": "C2", "f4": "C3", "f5": "C4"}


def readme_figure() -> None:
    """The searched functions, and what they gain."""
    figure = Figure(figsize=(10.5, 5), layout="constrained")
    functions, gain = figure.subplots(1, 2)
    parameters = load_preset("retinanet-tiny-shapes")
    names = ("f1 box", "f2 scores, above", "f3 box of the other", "f4 scores, below", "f5 box")
    functions.plot([0, 1], [0, 1], ":", color="grey", label="start of the search")
    for name, points in zip(names, parameters.functions, strict=True):
        functions.plot(*np.array(points).T, "o-", ms=4, label=name)
    functions.set(
        title="searched for RetinaNet: five functions are the loss", xlabel="x", ylabel="f(x)"
    )
    functions.legend(fontsize=8)

    places, names = [], []
    place = 0
    for table, detector in DETECTORS.items():
        rows = json.loads((ROOT / f"results/tables/{table}.json").read_text())["rows"]
        rows.sort(key=lambda row: -np.mean(row["AP"]))
        gain.text(0, place, detector, va="center", weight="bold")
        for row in rows:
            place += 1
            ours = row["loss"].endswith(".json") or "-coco" in row["loss"]
            colour = "C0" if row["label"] == "searched" else "lightblue" if ours else "lightgrey"
            gain.barh(place, np.mean(row["AP"]), color=colour, height=0.75)
            gain.plot(row["AP"], [place] * len(row["AP"]), "k.", ms=3)
            gain.text(max(row["AP"]) + 0.8, place, f"{np.mean(row['AP']):.1f}", va="center")
            places.append(place)
            names.append(row["label"])
        place += 1
    gain.set_yticks(places, names, fontsize=8)
    gain.set(
        title="tiny detectors on shapes (blue: this loss)",
        xlabel="AP on the test split; dots are seeds",
        xlim=(0, 70),
        ylim=(place - 0.2, -0.8),
    )
    for axes in (functions, gain):
        axes.title.set_fontsize(11)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    figure.savefig(FIGURES / "readme.png", dpi=110)


def substitution_figure() -> None:
    """The step function of AP, and what stands in its place."""
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    of_scores, of_boxes = figure.subplots(1, 2)
    points = dict(zip(COLOURS, load_preset("retinanet-r50-fpn-coco").functions, strict=True))
    of_scores.plot([-1.5, 0, 0, 1.5], [0, 0, 1, 1], "--", color="grey", label="step function H")
    of_boxes.plot(
        [0, 0.5, 0.5, 1], [0, 0, 1, 1], "--", color="grey", label="a step, for comparison"
    )
    for name in ("f2", "f4"):
        x, y = np.array(points[name]).T
        line = ([-1.5, *(2 * x - 1), 1.5], [0, *y, 1])  # g(d) = clip(d, -1, 1) / 2 + 1/2
        of_scores.plot(*line, "o-", ms=4, color=COLOURS[name], label=name)
    for name in ("f1", "f3", "f5"):
        of_boxes.plot(*np.array(points[name]).T, "o-", ms=4, color=COLOURS[name], label=name)
    of_scores.set(
        title="how much a score counts as above another",
        xlabel="score difference s_j - s_i",
        xlim=(-1.5, 1.5),
    )
    of_boxes.set(title="how much a box counts as found", xlabel="box quality l")
    for axes in (of_scores, of_boxes):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(FIGURES / "substitution.png", dpi=110)


def functions_figure(name: str, heads: dict[str, LossParameters]) -> None:
    """The functions of several heads side by side, as in the paper's appendix."""
    figure = Figure(figsize=(3.5 * len(heads), 3.6), layout="constrained")
    places = figure.subplots(1, len(heads), squeeze=False).flat
    for axes, (head, parameters) in zip(places, heads.items(), strict=True):
        axes.plot([0, 1], [0, 1], ":", color="grey", label="f(x) = x")
        for function, points in zip(COLOURS, parameters.functions, strict=True):
            axes.plot(*np.array(points).T, "o-", ms=3, color=COLOURS[function], label=function)
        axes.set(title=f"{head}, lambda {parameters.gradient_scale:.2f}", xlabel="x")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(FIGURES / f"{name}.png", dpi=110)


def published_figure() -> None:
    """What the paper found on COCO."""
    faster_rcnn = load_preset_heads("faster-rcnn-r50-fpn-coco")
    heads = {
        "RetinaNet": load_preset("retinanet-r50-fpn-coco"),
        "Faster R-CNN, RPN": faster_rcnn["rpn"],
        "Faster R-CNN, R-CNN": faster_rcnn["rcnn"],
    }
    functions_figure("published", heads)


def searched_figure() -> None:
    """What our searches found, for every detector and head."""
    searches = {
        "retinanet-tiny-shapes": "RetinaNet",
        "faster-rcnn-tiny-shapes": "Faster R-CNN",
        "deformable-detr-tiny-shapes": "Deformable DETR",
        "retinanet-mobilenetv2-bccd": "RetinaNet, BCCD",
    }
    heads = {}
    for preset, title in searches.items():
        if preset in list_presets():
            for head, parameters in load_preset_heads(preset).items():
                heads[title + (f", {head}" if head != "detector" else "")] = parameters
    functions_figure("searched", heads)


def loss_by_quality(parameters: LossParameters, above: int, quality: np.ndarray) -> np.ndarray:
    """The loss of one positive with so many negatives far above it, for each box quality."""
    logits = torch.zeros(above + 1, 1)
    logits[1:] = 2.0  # beyond the margin: each counts as 1
    labels = torch.full((above + 1,), -1)
    labels[0] = 0
    losses = []
    for value in quality:
        qualities = torch.zeros(above + 1)
        qualities[0] = float(value)
        losses.append(parameterized_ap_loss(logits, labels, qualities, parameters).item())
    return np.array(losses)


def trap_figure() -> None:
    """Loss against box quality, well and badly ranked: published against tied."""
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    quality = np.linspace(0, 1, 201)

    def draw(axes: Axes, title: str, parameters: LossParameters) -> None:
        for above, colour in ((0, "C2"), (1, "C1"), (4, "C3")):
            loss = loss_by_quality(parameters, above, quality)
            label = f"{above} negatives above, N/D = {above / (above + 1):.1f}"
            axes.plot(quality, loss, color=colour, label=label)
            rising = np.append(np.diff(loss) > 1e-6, False)
            axes.plot(quality, np.where(rising, loss, np.nan), color=colour, lw=6, alpha=0.35)
        axes.set(title=title, xlabel="quality l of its box")
        axes.grid(alpha=0.3)

    left, right = figure.subplots(1, 2, sharey=True)
    draw(
        left,
        "published: the loss rises with the box (thick)",
        load_preset("retinanet-r50-fpn-coco"),
    )
    draw(
        right, "f5 tied to f1: a better box never costs", load_preset("retinanet-r50-fpn-coco-tied")
    )
    left.set_ylabel("loss of one positive")
    right.legend(fontsize=8, loc="lower left")
    figure.savefig(FIGURES / "trap.png", dpi=110)


def search_figure() -> None:
    """What a round draws: f1 around f(x) = x, early, half-way and late."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    start = LossParameters.linear().to_vector()
    for axes, round_ in zip(figure.subplots(1, 3, sharey=True), (1, 21, 40), strict=True):
        sigma = 0.2 * (40 - round_ + 1) / 40
        optimizer = PPO2(len(start), rounds=1, sigma=sigma, initial_mean=start, seed=0)
        for _ in range(optimizer.samples_per_round):
            drawn = LossParameters.from_vector(optimizer.ask())
            axes.plot(*np.array(drawn.functions[0]).T, "o-", ms=3, lw=1)
        axes.plot([0, 1], [0, 1], ":", color="grey")
        axes.set(title=f"round {round_} of 40, sigma {sigma:.3f}", xlabel="x")
        axes.grid(alpha=0.3)
    figure.savefig(FIGURES / "search_rounds.png", dpi=110)


def kernel_figure() -> None:
    """Knots of two positives cut the score axis; between knots, a count and a sum are enough."""
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    axes = figure.subplots()
    points = np.array(load_preset("retinanet-r50-fpn-coco").functions[1])
    scores = np.random.default_rng(0).normal(-0.6, 0.9, 160)
    knots = []
    for score, colour in ((-0.3, "C0"), (0.9, "C1")):
        x = score + 2 * points[:, 0] - 1
        knots += x.tolist()
        line = ([-3, *x, 3], [0, *points[:, 1], 1])
        axes.plot(*line, "o-", ms=4, color=colour, label=f"f2 of the positive at {score}")
    axes.vlines(knots, -0.2, 1, color="grey", lw=0.6, alpha=0.7)
    axes.plot(scores, np.full(len(scores), -0.1), "|", color="black", ms=10, label="negatives")
    axes.set(xlim=(-2.5, 2.5), ylim=(-0.2, 1.05), xlabel="score s_j")
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(FIGURES / "knots.png", dpi=110)


def report_figure() -> None:
    """The head of the demo's page, as chromium shows it; only where both are there."""
    page, browser = ROOT / "runs/demo/report.html", shutil.which("chromium")
    if not page.exists() or browser is None:
        print("report.png: needs `make demo` before, and chromium; left as it is")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = window.new_page(viewport={"width": 1280, "height": 2400})
        tab.goto(page.as_uri())
        tab.wait_for_timeout(5000)  # figures are drawn one after the other
        shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        window.close()
    small = shot.resize((800, 1500), Image.Resampling.LANCZOS)
    small.quantize(256, Image.Quantize.MAXCOVERAGE).save(FIGURES / "report.png", optimize=True)


if __name__ == "__main__":
    report_figure()
    readme_figure()
    substitution_figure()
    published_figure()
    searched_figure()
    trap_figure()
    search_figure()
    kernel_figure()

"""How well detectors do: classes, precision and recall, overlaps, scores against overlaps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paploss.report.figure import GREY, Dash, Figure, Panel, Series
from paploss.report.files import setting
from paploss.report.groups import Group
from paploss.report.matches import Matches, rank_correlation, ranks

_DOTS = 700  # of a scatter
_FOUND = 0.5  # overlap from which on a detection has found an object


def evaluation_figures(groups: Sequence[Group], matches: Mapping[str, Matches]) -> list[Figure]:
    """Curves and bars of all groups, and a scatter of each that has detections.

    Args:
        groups: of trainings.
        matches: of the first run of a group, by the group's label.
    """
    judged = [group for group in groups if any(run.figures for run in group.runs)]
    figures = []
    if judged:
        split = judged[0].runs[0].split
        figures.append(
            Figure(
                "evaluation",
                "Precision, recall and overlap",
                f"On the {split} split, mean over seeds.",
                [_precision_recall(judged), _by_overlap(judged), _by_class(judged)],
            )
        )
    panels = [_scatter(g, matches[g.label]) for g in judged if g.label in matches][:12]
    if panels:
        figures.append(
            Figure(
                "score-overlap",
                "Score against overlap",
                "Each dot is a detection that overlaps an object of its class by half or more. A "
                "detector whose scores know how good its boxes are has dots along the diagonal and "
                "a rank correlation ρ near 1. The line is the mean overlap at similar scores.",
                panels,
            )
        )
    return figures


def _mean_of(group: Group, name: str) -> Any:
    """Mean over seeds of a list or of a number; None where it is missing."""
    values = [setting(run.figures, name) for run in group.runs]
    values = [value for value in values if value is not None]
    if not values:
        return None
    if isinstance(values[0], list):
        return [statistics.mean(column) for column in zip(*values, strict=False)]
    return statistics.mean(values)


def _precision_recall(groups: Sequence[Group]) -> Panel:
    series = []
    styles: tuple[tuple[str, Dash], ...] = (("precision50", "solid"), ("precision75", "dash"))
    for group in groups:
        recall = _mean_of(group, "precision_recall.recall")
        for name, dash in styles:
            precision = _mean_of(group, f"precision_recall.{name}")
            if recall and precision and len(recall) == len(precision):
                curve = [max(0.0, value) for value in precision]
                series.append(Series(group.label, recall, curve, group.colour, dash=dash))
    panel = Panel("Precision and recall", "recall", "precision", series)
    panel.x_range = panel.y_range = (0, 1.02)
    panel.note = "Solid: IoU 0.5. Dashed: IoU 0.75."
    panel.height = 320
    return panel


def _by_overlap(groups: Sequence[Group]) -> Panel:
    series = []
    for group in groups:
        thresholds = sorted(
            {name for run in group.runs for name in run.figures.get("ap_by_iou", {})}
        )
        # Names of thresholds hold a dot: no dotted look-up here.
        columns = [
            [run.figures["ap_by_iou"][name] for run in group.runs if run.figures.get("ap_by_iou")]
            for name in thresholds
        ]
        means = [100 * max(0.0, statistics.mean(column)) for column in columns]
        x = [float(name) for name in thresholds]
        series.append(Series(group.label, x, means, group.colour, size=6))
    panel = Panel("AP by IoU threshold", "IoU threshold", "AP", series)
    panel.height = 320
    return panel


def _by_class(groups: Sequence[Group]) -> Panel:
    first = _class_figures(groups[0])
    names = sorted(first, key=lambda name: first[name][0])  # the best ends on top
    others = {name for group in groups for name in _class_figures(group)} - set(names)
    names = [*sorted(others), *names]
    series = []
    for group in groups[::-1]:  # horizontal bars grow upwards
        figures = _class_figures(group)
        values = [figures.get(name, (0.0, 0.0)) for name in names]
        series.append(
            Series(
                group.label,
                [round(mean, 2) for mean, _ in values],
                names,
                group.colour,
                kind="bars",
                error=[spread for _, spread in values] if len(group.runs) > 1 else None,
            )
        )
    height = 90 + len(names) * (14 + 9 * len(groups))
    return Panel(
        "AP by class", "AP", "", series, horizontal=True, wide=True, height=min(height, 2400)
    )


def _class_figures(group: Group) -> dict[str, tuple[float, float]]:
    """Mean and spread of AP in percent, by class."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        per_class = run.figures.get("per_class")
        for name, value in per_class.items() if isinstance(per_class, dict) else ():
            if value >= 0:
                found.setdefault(str(name), []).append(100 * value)
    return {
        name: (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
        for name, values in found.items()
    }


def alignment(matches: Matches) -> float | None:
    """Rank correlation of score and overlap, over detections that have found an object."""
    found = matches.overlaps >= _FOUND
    return rank_correlation(matches.scores[found], matches.overlaps[found])


def _scatter(group: Group, matches: Matches) -> Panel:
    found = matches.overlaps >= _FOUND
    rank, overlap = ranks(matches.scores[found]), matches.overlaps[found]
    chosen = np.unique(np.linspace(0, len(rank) - 1, min(_DOTS, len(rank))).astype(int))
    dots = Series(
        "",
        rank[chosen].round(3).tolist(),
        overlap[chosen].round(3).tolist(),
        group.colour,
        kind="points",
        size=4,
        opacity=0.45,
    )
    bins = np.minimum((rank * 12).astype(int), 11)
    filled = [k for k in range(12) if (bins == k).any()]
    line = Series(
        "",
        [round((k + 0.5) / 12, 3) for k in filled],
        [round(float(overlap[bins == k].mean()), 3) for k in filled],
        GREY,
        width=3,
    )
    rho = alignment(matches)
    title = f"{group.label}: ρ = {rho:.2f}" if rho is not None else group.label
    panel = Panel(title, "rank of the score", "IoU with the object", [dots, line])
    panel.x_range, panel.y_range = (-0.02, 1.02), (_FOUND - 0.01, 1.01)
    panel.height = 300
    return panel

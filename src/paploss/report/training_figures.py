"""How trainings went: loss, AP, learning rate, gradients, speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paploss.report.figure import Dash, Figure, Panel, Series, thinned
from paploss.report.groups import Group

_POINTS = 40_000  # in all lines of a panel together, lest many long runs make a heavy page

Row = dict[str, float]


def training_figures(groups: Sequence[Group]) -> list[Figure]:
    """One figure; runs of one loss have one colour."""
    groups = [group for group in groups if any(run.metrics for run in group.runs)]
    if not groups:
        return []
    loss = Panel("Loss", "epoch", "loss", _lines(groups, "loss"))
    loss.note = "Losses of different names have different units."
    ap = Panel("AP on the evaluation split", "epoch", "AP", _lines(groups, "AP", 100, size=6))
    ap.from_zero = True
    rate = Panel("Learning rate", "epoch", "learning rate", _lines(groups, "learning_rate"))
    step = Panel("Time of a step", "epoch", "seconds", _lines(groups, _seconds_a_step))
    step.from_zero = True
    panels = [loss, ap, _gradients(groups), _balance(groups), rate, step]
    return [
        Figure(
            "training",
            "Trainings",
            "One line a run, one colour a loss.",
            [panel for panel in panels if any(series.x for series in panel.series)],
        )
    ]


def _gradients(groups: Sequence[Group]) -> Panel:
    series = _lines(groups, "class_gradient") + _lines(groups, "box_gradient", dash="dash")
    panel = Panel("Gradient at the two branches", "epoch", "norm", series, log_y=True)
    panel.note = "Solid: class scores. Dashed: box outputs."
    return panel


def _balance(groups: Sequence[Group]) -> Panel:
    panel = Panel("Box gradient over class gradient", "epoch", "ratio", _lines(groups, _ratio))
    panel.log_y = True
    panel.note = "The balance that the gradient scale λ sets."
    return panel


def _ratio(row: Row) -> float | None:
    own, other = row.get("box_gradient"), row.get("class_gradient")
    return own / other if own and other else None


def _seconds_a_step(row: Row) -> float | None:
    return row.get("seconds_a_step")


def _lines(
    groups: Sequence[Group],
    value: str | Callable[[Row], float | None],
    factor: float = 1.0,
    *,
    dash: Dash = "solid",
    size: float = 0,
) -> list[Series]:
    read = value if callable(value) else lambda row: row.get(value)
    most = max(30, _POINTS // max(1, sum(len(group.runs) for group in groups)) // 8)
    series = []
    for group in groups:
        for run in group.runs:
            rows = [
                (row["epoch"], factor * number)
                for row in _with_step_times(run.metrics)
                if "epoch" in row and (number := read(row)) is not None
            ]
            x, y = thinned([epoch for epoch, _ in rows], [number for _, number in rows], most)
            if x:
                # A line of one point would not be seen.
                markers = size or (5 if len(x) == 1 else 0)
                line = Series(group.label, x, y, group.colour, dash=dash, size=markers)
                line.labels = [f"seed {run.seed}"] * len(x) if len(group.runs) > 1 else None
                line.width = 1.6
                series.append(line)
    return series


def _with_step_times(metrics: Sequence[Row]) -> list[Row]:
    """Rows with the time of a step since the row before; the first also has the start-up in it."""
    rows, before = [], {"step": 0.0, "seconds": 0.0}
    for row in metrics:
        if "seconds" in row:
            steps = row["step"] - before["step"]
            if steps > 0 and before["step"] > 0 and row["seconds"] > before["seconds"]:
                row = row | {"seconds_a_step": (row["seconds"] - before["seconds"]) / steps}
            before = row
        rows.append(row)
    return rows

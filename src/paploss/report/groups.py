"""Runs that differ in their seed only, taken together: means and spreads."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paploss.report.figure import colour
from paploss.report.files import flat, setting
from paploss.report.runs import SearchRun, TrainingRun

METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
# What tells apart runs of one loss, by how much a reader cares.
_TELLING = (
    "detector.name", "data.path", "detector.backbone", "epochs", "optimizer.learning_rate",
    "batch_size", "data.images", "detector.weights", "loss.parameters", "loss.localization",
)  # fmt: skip


class Figures(NamedTuple):
    """Of one metric over seeds."""

    mean: float
    spread: float | None  # None with one seed
    values: list[float]


@dataclass
class Group:
    """Trainings with the same settings and different seeds."""

    label: str
    runs: list[TrainingRun]
    colour: str
    searched: bool = False

    def figures(self, metric: str) -> Figures | None:
        """Of a COCO metric on the shown split; None where no run has it."""
        values = [
            float(value)
            for run in self.runs
            if isinstance(value := setting(run.figures, f"metrics.{metric}"), int | float)
            and value >= 0
        ]
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Figures(statistics.mean(values), spread, values)

    @property
    def ap(self) -> float:
        """For comparisons; -1 if it is not known."""
        figures = self.figures("AP")
        return -1.0 if figures is None else figures.mean

    @property
    def seconds(self) -> float:
        """Of one training, on average."""
        return statistics.mean(run.seconds for run in self.runs)


def group_runs(searches: list[SearchRun], trainings: list[TrainingRun]) -> list[Group]:
    """All trainings, those of one setting together, in the order they were given."""
    runs = [run for search in searches for run in search.trainings] + trainings
    found: dict[tuple[str, str], list[TrainingRun]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        found.setdefault((run.loss, run.identity), []).append(run)
    groups = [
        Group(label, members, colour(place), searched=label.partition(" (")[0] == "searched")
        for place, ((label, _), members) in enumerate(found.items())
    ]
    for label in {group.label for group in groups}:
        _tell_apart([group for group in groups if group.label == label])
    return groups


def _tell_apart(groups: list[Group]) -> None:
    """Add to labels that are alike settings in which their runs differ, as few as will do."""
    if len(groups) < 2:
        return
    settings = [flat(group.runs[0].settings) for group in groups]
    names = list(dict.fromkeys([*_TELLING, *(key for each in settings for key in each)]))
    telling = [n for n in names if len({str(each.get(n)) for each in settings}) > 1 and n != "seed"]
    for name in telling[:3]:
        if len({group.label for group in groups}) == len(groups):
            break
        for group, each in zip(groups, settings, strict=True):
            group.label += f", {_in_words(name, each.get(name))}"
    for place, group in enumerate(groups):
        if [other.label for other in groups].count(group.label) > 1:
            group.label = f"{group.label} ({place + 1})"


def _in_words(name: str, value: object) -> str:
    """A setting as a label has it.

    Example:
        >>> _in_words("data.path", "/data/bccd"), _in_words("optimizer.learning_rate", 0.002)
        ('bccd', 'learning rate 0.002')
    """
    if name in ("data.path", "detector.name"):
        return Path(str(value)).name
    return f"{name.rpartition('.')[2].replace('_', ' ')} {value}"

"""Run directories: trainings and searches, as far as they have come."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paploss.loss.parameters import LossParameters, load_heads
from paploss.presets import list_presets, load_preset_heads
from paploss.report.files import (
    Notes,
    flat,
    numbers,
    read_json,
    read_metrics,
    read_settings,
    setting,
)
from paploss.report.trials import Trials, read_trials

Heads = dict[str, LossParameters]


@dataclass
class TrainingRun:
    """A training: its settings, and what it has written so far."""

    path: Path
    settings: dict[str, Any]
    metrics: list[dict[str, float]]
    results: dict[str, Any]  # evaluation.json; empty before the end
    loss: str  # as it is called on the page
    notes: Notes = field(repr=False)

    @property
    def split(self) -> str:
        """Which split is shown: test if there is one."""
        return "test" if setting(self.settings, "data.test_split") else "evaluation"

    @property
    def figures(self) -> dict[str, Any]:
        """Of the shown split: metrics, per_class, ap_by_iou, precision_recall; maybe empty."""
        return numbers(self.results.get(self.split))

    @property
    def seed(self) -> Any:
        return setting(self.settings, "seed", 0)

    @property
    def seconds(self) -> float:
        """Spent on training steps."""
        return max((row["seconds"] for row in self.metrics if "seconds" in row), default=0.0)

    @property
    def ranking(self) -> bool:
        """Whether scores of this run have been calibrated, as those of ranking losses are."""
        return "calibration" in self.results

    @cached_property
    def identity(self) -> str:
        """Equal for runs that differ in nothing but their seed."""
        others = {key: value for key, value in flat(self.settings).items() if key != "seed"}
        return json.dumps(others, sort_keys=True, default=str)

    @cached_property
    def detections(self) -> list[dict[str, Any]] | None:
        """Of the shown split, in COCO's result format."""
        from paploss.evaluation import load_detections

        missing = "not there: no gallery and no scores against overlap for this run"
        return self.notes.attempt(
            self.path / "detections.json",
            load_detections,
            missing=missing if self.results else None,
        )

    @property
    def heads(self) -> Heads | None:
        """The functions it was trained with, if its loss has any."""
        if setting(self.settings, "loss.name") != "pap":
            return None
        name = setting(self.settings, "loss.parameters")
        if not isinstance(name, str):  # then it was the preset that stands in for its detector
            own = f"{setting(self.settings, 'detector.name')}-r50-fpn-coco-tied"
            name = own if own in list_presets() else "retinanet-r50-fpn-coco-tied"
        found = find_heads(name, self.path, self.notes) or {}
        others = _losses_of_heads(self.settings)
        return {head: shape for head, shape in found.items() if head not in others} or None

    @property
    def command(self) -> str:
        return f"paploss train {shlex.quote(str(self.path / 'config.yaml'))} --run runs/again"


@dataclass
class SearchRun:
    """A search: its trials, what it found, and the trainings that followed."""

    path: Path
    settings: dict[str, Any]
    trials: Trials | None
    heads: Heads | None  # best.loss.json
    about: dict[str, Any]
    comparison: dict[str, Any]
    trainings: list[TrainingRun]
    notes: Notes = field(repr=False)
    name: str = ""  # as it is called on the page

    @property
    def detector(self) -> str:
        return str(setting(self.settings, "train.detector.name", "detector"))

    @property
    def data(self) -> str:
        return str(setting(self.settings, "train.data.path", "data"))

    @property
    def sampler(self) -> str:
        return str(setting(self.settings, "sampler.name", "ppo2"))

    @property
    def start(self) -> Heads | None:
        """Where the search began: a loss, or f(x) = x."""
        init = setting(self.settings, "space.init")
        if isinstance(init, str) and init != "linear":
            return find_heads(init, self.path, self.notes)
        segments = setting(self.settings, "space.segments", 5)
        return {head: LossParameters.linear(segments) for head in self.heads or ["detector"]}

    @property
    def seconds(self) -> float:
        """Of all trials and trainings together, wherever they ran."""
        trials = sum(self.trials.seconds) if self.trials else 0.0
        return trials + sum(run.seconds for run in self.trainings)

    @property
    def command(self) -> str:
        return f"paploss search {shlex.quote(str(self.path / 'config.yaml'))} --run runs/again"


def find_heads(name: str, run: Path, notes: Notes) -> Heads | None:
    """Of a preset or of a loss file, which may have moved together with its run."""
    if name in list_presets():
        return load_preset_heads(name)
    file = Path(name)
    near = [folder / file.name for folder in (run, run.parent, run.parent.parent)]
    found = next((path for path in (file, *near) if path.is_file()), file)
    return notes.attempt(found, load_heads, missing="the loss file is gone")


def read_runs(paths: list[Path], notes: Notes) -> tuple[list[SearchRun], list[TrainingRun]]:
    """Searches and trainings in the given directories; a directory of runs stands for all of them.

    Trainings of a search are among its own ``trainings`` only.
    """
    searches: list[SearchRun] = []
    trainings: list[TrainingRun] = []
    for path in dict.fromkeys(paths):
        if not path.is_dir():
            raise ValueError(f"{path}: expected a run directory")
        for directory in _run_directories(path):
            if _is_search(directory, notes):
                searches.append(read_search(directory, notes))
            else:
                run = read_training(directory, notes)
                trainings += [run] if run.settings or run.metrics or run.results else []
    for search in searches:
        search.name = _distinct_name(search, searches)
        if len(searches) > 1:
            for run in search.trainings:
                run.loss += f" ({search.name})" if run.loss == "searched" else ""
    return searches, trainings


def _run_directories(path: Path) -> list[Path]:
    marks = ("config.yaml", "study.db", "metrics.csv", "evaluation.json")
    if any((path / mark).exists() for mark in marks):
        return [path]
    below = sorted({file.parent for file in path.glob("*/config.yaml")})
    return below or [path]


def _is_search(path: Path, notes: Notes) -> bool:
    if (path / "study.db").exists():
        return True
    settings = notes.attempt(path / "config.yaml", read_settings) or {}
    return "sampler" in settings


def _distinct_name(search: SearchRun, searches: list[SearchRun]) -> str:
    names = [other.path.resolve().name for other in searches]
    own = search.path.resolve()
    return own.name if names.count(own.name) == 1 else f"{own.parent.name}/{own.name}"


def read_training(path: Path, notes: Notes, *, loss: str | None = None) -> TrainingRun:
    """A training, as far as it has come; ``loss`` is what its search calls it."""
    missing = "not there: is this a run directory?"
    settings = notes.attempt(path / "config.yaml", read_settings, missing=missing) or {}
    metrics = notes.attempt(
        path / "metrics.csv", read_metrics, missing="not there: the training has not begun"
    )
    results = notes.attempt(path / "evaluation.json", read_json)
    if results is None and not (path / "evaluation.json").exists() and metrics:
        notes.add(path, "the training has not come to its end; shown as far as it is")
    name = setting(settings, "loss.name", "unknown loss")
    parameters = setting(settings, "loss.parameters")
    if isinstance(parameters, str):
        name = f"{name} ({Path(parameters).name.removesuffix('.loss.json')})"
    for head, own in _losses_of_heads(settings).items():
        name = f"{name}, {head}: {own}"
    return TrainingRun(path, settings, metrics or [], results or {}, loss or str(name), notes)


def _losses_of_heads(settings: dict[str, Any]) -> dict[str, str]:
    """Names of the losses that single heads have to themselves."""
    heads = setting(settings, "loss.heads")
    if not isinstance(heads, dict):
        return {}
    return {str(head): str(setting(heads, f"{head}.name", "unknown loss")) for head in heads}


def read_search(path: Path, notes: Notes) -> SearchRun:
    """A search, as far as it has come."""
    missing = "not there: is this a run directory?"
    settings = notes.attempt(path / "config.yaml", read_settings, missing=missing) or {}
    storage = setting(settings, "storage")
    trials = None
    if isinstance(storage, str):
        notes.add(path, "its trials are in a store elsewhere; not shown")
    else:
        trials = notes.attempt(
            path / "study.db",
            lambda file: read_trials(file, setting(settings, "sampler.samples", 8)),
            missing="not there: no trial has begun",
        )
    loss_file = path / "best.loss.json"
    heads = notes.attempt(loss_file, load_heads)
    if not loss_file.exists():
        notes.add(path, "the search has not come to its end; shown as far as it is")
    about = (notes.attempt(loss_file, read_json) or {}).get("about", {}) if heads else {}
    comparison = notes.attempt(path / "comparison.json", read_json) or {}
    names = _loss_names(comparison)
    trainings = [
        read_training(file.parent, notes, loss=_final_loss(file.parent, names))
        for file in sorted(path.glob("final/*/config.yaml"))
    ]
    order = list(dict.fromkeys(names.values()))
    trainings.sort(key=lambda run: order.index(run.loss) if run.loss in order else len(order))
    return SearchRun(path, settings, trials, heads, about, comparison, trainings, notes)


def _loss_names(comparison: dict[str, Any]) -> dict[str, str]:
    """What the comparison calls each run, by the name of its directory."""
    losses = comparison.get("losses")
    return {
        Path(str(run)).name: str(loss)
        for loss, row in (losses.items() if isinstance(losses, dict) else ())
        for run in (row.get("runs", ()) if isinstance(row, dict) else ())
    }


def _final_loss(path: Path, names: dict[str, str]) -> str | None:
    if path.name in names:
        return names[path.name]
    return path.name.rpartition("-seed")[0] or None if path.name.startswith("trial-") else None

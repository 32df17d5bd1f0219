"""After a search: trainings of full length with the loss it found and with others, side by side."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paploss.search.config import SearchConfig
from paploss.search.executors import make_executor, run_all
from paploss.search.objective import Outcome
from paploss.search.study import FoundLoss
from paploss.training.config import LossConfig, TrainConfig, loss_by_name
from paploss.training.loop import TrainingCollapsedError, train
from paploss.training.run import RunDirectory, write_whole

METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


class FinalJob(NamedTuple):
    """A training to run."""

    key: int
    directory: str
    config: str  # of the training, as json


class FinalTask:
    """Trains in a run directory; a stopped training goes on where it was."""

    def run(self, job: FinalJob, keep_going: Any = None) -> Outcome:
        start = time.perf_counter()
        config = TrainConfig.model_validate_json(job.config)
        try:
            result = train(config, RunDirectory(job.directory))
        except TrainingCollapsedError as error:
            return Outcome(0.0, "collapsed", time.perf_counter() - start, str(error))
        ap = result["evaluation"]["metrics"]["AP"]
        return Outcome(ap, "complete", time.perf_counter() - start)


def final_task(config: str) -> FinalTask:
    return FinalTask()


@dataclass(frozen=True)
class FinalTraining:
    """One loss, one seed."""

    loss: str  # as it is called in tables
    seed: int
    config: TrainConfig
    run: RunDirectory


def final_trainings(config: SearchConfig, directory: Path, found: FoundLoss) -> list[FinalTraining]:
    """The trainings to compare, the searched loss first.

    Its loss file is kept with its trial's number: a search that goes on may find another one.
    """
    folder = directory / "final"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"trial-{found.trial}.loss.json"
    shutil.copy(directory / "best.loss.json", file)
    losses = {"searched": (file.name.removesuffix(".loss.json"), loss_by_name(str(file)))}
    for loss in config.final.against or []:
        name = loss if "/" not in loss else Path(loss).name.removesuffix(".loss.json")
        losses[name] = name, loss_by_name(loss)

    def training(loss: str, name: str, settings: LossConfig, seed: int) -> FinalTraining:
        if settings.name == "pap":
            own = {"name": "pap", "parameters": settings.parameters, "box_weight": None}
            settings = config.train.loss.model_copy(update=own)
        final = config.train.model_copy(update={"loss": settings, "seed": seed})
        return FinalTraining(loss, seed, final, RunDirectory(folder / f"{name}-seed{seed}"))

    seeds = range(config.train.seed, config.train.seed + config.final.seeds)
    return [
        training(loss, name, settings, seed)
        for loss, (name, settings) in losses.items()
        for seed in seeds
    ]


def run_final_trainings(
    config: SearchConfig,
    trainings: list[FinalTraining],
    on_progress: Callable[[float, float], None] = lambda epochs, of_epochs: None,
) -> dict[str, str]:
    """Run what has not come to its end yet; returns what went wrong, by run directory.

    They run on this machine, side by side as the trials of a local search do.
    """
    missing = [training for training in trainings if not training.run.evaluation.exists()]
    of_epochs = sum(training.config.epochs for training in trainings)

    def tell() -> None:
        on_progress(sum(training.run.epochs_done() for training in trainings), of_epochs)

    jobs = [
        FinalJob(key, str(training.run.path), training.config.model_dump_json())
        for key, training in enumerate(missing)
    ]
    # The time limit of a trial is not that of a full training.
    here: dict[str, Any] = {"name": "local", "timeout": None}
    if config.executor.name == "ray":
        here["workers"] = 1
    executor_here = config.executor.model_copy(update=here)
    settings = config.model_copy(update={"executor": executor_here})
    wrong = {}
    with contextlib.closing(make_executor(settings, final_task)) as executor:
        for key, outcome in run_all(jobs, executor, on_waiting=tell, patience=2.0):
            if outcome.state != "complete":
                wrong[str(missing[key].run.path)] = f"{outcome.state}: {outcome.message}"
    return wrong


def compare(
    directory: Path, trainings: list[FinalTraining], wrong: dict[str, str]
) -> dict[str, Any]:
    """Mean and spread over seeds on the test split, a row a loss; kept in ``comparison.json``."""
    rows: dict[str, dict[str, Any]] = {}
    split = "test" if trainings[0].config.data.test_split else "evaluation"
    for training in trainings:
        row = rows.setdefault(training.loss, {"runs": [], "seeds": [], "problems": []})
        row["runs"].append(str(training.run.path.relative_to(directory)))
        row["seeds"].append(training.seed)
        if str(training.run.path) in wrong:
            row["problems"].append(wrong[str(training.run.path)])
            continue
        metrics = json.loads(training.run.evaluation.read_text(encoding="utf-8"))[split]["metrics"]
        for name in METRICS:
            row.setdefault(name, []).append(metrics[name])
    for row in rows.values():
        for name in METRICS:
            values = row.pop(name, [])
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else None
                row[name] = {"mean": statistics.mean(values), "spread": spread, "values": values}
    content = {"split": split, "losses": rows}
    write_whole(directory / "comparison.json", json.dumps(content, indent=1) + "\n")
    return content

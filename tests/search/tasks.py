"""Tasks that take no time, or go wrong on purpose; in a module, for worker processes import them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from paploss import LossParameters
from paploss.search.executors import Trial
from paploss.search.objective import Outcome


def quality(heads: Mapping[str, LossParameters]) -> float:
    vector = np.concatenate([parameters.to_vector() for parameters in heads.values()])
    return float(np.exp(-8 * np.mean((vector - 0.6) ** 2)))


class Quick:
    """A smooth reward."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def run(self, job: Trial, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        time.sleep(self.seconds)
        reward = quality(job.heads) + 0.01 * (job.seed or 0)
        if keep_going is not None and not keep_going(reward):
            return Outcome(0.0, "pruned", self.seconds)
        return Outcome(reward, "complete", self.seconds)


def quick(config: str) -> Quick:
    return Quick()


def short(config: str) -> Quick:
    return Quick(0.2)


def long(config: str) -> Quick:
    return Quick(1.0)


class Reversed(Quick):
    """What is best after one epoch is worst after more."""

    def run(self, job: Trial, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        return Outcome(1 - quality(job.heads), "complete", 0.0)


def reversed_by_epochs(config: str) -> Quick:
    return Reversed() if json.loads(config)["proxy"]["epochs"] > 1 else Quick()


class WantsScale(Quick):
    """A longer training likes a gradient scale of 4, whatever the functions."""

    def run(self, job: Trial, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        scales = [parameters.gradient_scale for parameters in job.heads.values()]
        return Outcome(1 - 0.1 * float(np.abs(np.log2(scales) - 2).mean()), "complete", 0.0)


def wants_scale_by_epochs(config: str) -> Quick:
    return WantsScale() if json.loads(config)["proxy"]["epochs"] > 1 else Quick()


class Faulty(Quick):
    """Goes wrong in one job: the first to take the token ``fault`` in the data directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def run(self, job: Trial, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        marks = json.loads((self.directory / "fault.json").read_text())
        mine = self.directory / f"{quality(job.heads):.12f}"
        attempt = len(list(self.directory.glob(f"{mine.name}*")))
        token = self.directory / "chosen"
        with contextlib.suppress(FileExistsError):  # another worker may ask at the same moment
            token.symlink_to(mine.name)
        if token.readlink().name == mine.name and attempt < marks["times"]:
            Path(f"{mine}-{attempt}").touch()
            if marks["fault"] == "die":
                os.kill(os.getpid(), 9)
            if marks["fault"] == "hang":
                time.sleep(1000)
            if marks["fault"] == "memory":
                raise MemoryError("no room for 1e9 anchors")
            return Outcome(0.0, "collapsed", 0.0, "the loss is nan")
        return super().run(job, keep_going)


def faulty(config: str) -> Faulty:
    return Faulty(Path(json.loads(config)["train"]["data"]["path"]))


def not_there(config: str) -> Quick:
    raise FileNotFoundError("no such data")

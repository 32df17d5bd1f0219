"""The trials of a search, read from its Optuna study."""

from __future__ import annotations

import math
import sqlite3
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paploss.loss.parameters import FUNCTION_NAMES, LossParameters, points_from_fractions

STATES = ("complete", "collapsed", "pruned", "failed")


@dataclass(frozen=True)
class Trial:
    """One sample of a search."""

    number: int
    round: int  # from 1
    reward: float
    state: str  # one of STATES
    seconds: float
    values: dict[str, float]  # the searched numbers in [0, 1], by name


@dataclass(frozen=True)
class Policy:
    """Mean and width of a PPO2 round."""

    mean: dict[str, float]
    sigma: float


@dataclass(frozen=True)
class Trials:
    """All finished trials of a search, and the policies of its rounds if its sampler keeps them."""

    trials: list[Trial]
    policies: dict[int, Policy]
    importance: dict[str, float]  # by searched number, most important first; maybe empty

    @property
    def rounds(self) -> int:
        return max((trial.round for trial in self.trials), default=0)

    @property
    def seconds(self) -> list[float]:
        return [trial.seconds for trial in self.trials]

    def of_round(self, number: int) -> list[Trial]:
        return [trial for trial in self.trials if trial.round == number]

    def best(self, until_round: int | None = None) -> Trial | None:
        """The best trial up to a round."""
        last = self.rounds if until_round is None else until_round
        seen = [trial for trial in self.trials if trial.round <= last]
        return max(seen, key=lambda trial: (trial.reward, -trial.number), default=None)


def read_trials(path: Path, samples: int) -> Trials:
    """Trials of a study in an SQLite file, of which only a copy in memory is read.

    Args:
        path: of ``study.db``; a search may be writing to it.
        samples: trials of a round.
    """
    import optuna
    from sqlalchemy.pool import StaticPool

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True) as source:
        source.backup(copy)
    source.close()
    storage = optuna.storages.RDBStorage(
        "sqlite://",
        engine_kwargs={"creator": lambda: copy, "poolclass": StaticPool},
        skip_compatibility_check=True,
        skip_table_creation=True,
    )
    try:
        name = optuna.get_all_study_names(storage)[0]
        study = optuna.load_study(study_name=name, storage=storage)
        attributes = storage.get_study_system_attrs(study._study_id)
        trials = [_trial(trial, samples) for trial in study.trials if trial.state.is_finished()]
        return Trials(trials, _policies(attributes), _importance(study))
    finally:
        storage.engine.dispose()
        copy.close()


def _trial(trial: Any, samples: int) -> Trial:
    outcome = trial.user_attrs.get("outcome", {})
    state = outcome.get("state", "complete" if trial.state.name == "COMPLETE" else "failed")
    reward = trial.value if trial.state.name == "COMPLETE" and trial.value is not None else 0.0
    return Trial(
        trial.number,
        trial.number // max(1, samples) + 1,
        float(reward),
        state if state in STATES else "failed",
        float(outcome.get("seconds", 0.0)),
        {name: float(value) for name, value in trial.params.items()},
    )


def _policies(attributes: dict[str, Any]) -> dict[int, Policy]:
    prefix = "ppo2:round:"  # as the sampler writes it
    return {
        int(key.removeprefix(prefix)): Policy(dict(value["mean"]), float(value["sigma"]))
        for key, value in attributes.items()
        if key.startswith(prefix)
    }


def _importance(study: Any) -> dict[str, float]:
    """Which numbers tell the best trials from the others; nothing where that cannot be told."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    rewards = {trial.value for trial in study.trials if trial.value is not None}
    if len(rewards) < 8:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (RuntimeError, ValueError):  # trials that are too few, or all alike
        return {}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def loss_of(
    values: dict[str, float], start: dict[str, LossParameters], *, shared: bool, safe: bool
) -> dict[str, LossParameters]:
    """The loss that searched numbers stand for; what is not among them is as in the start.

    Args:
        values: by name, ``head.f2.x1`` or ``head.scale``.
        start: the loss of every head that the search began with.
        shared: one function in all five places.
        safe: only losses that never punish a better box.
    """
    heads = {}
    for head, parameters in start.items():
        functions = list(parameters.functions)
        for place, function in enumerate(FUNCTION_NAMES):
            pairs: list[tuple[float, float]] = []
            while (name := f"{head}.{function}.x{len(pairs) + 1}") in values:
                pairs.append((values[name], values[f"{head}.{function}.y{len(pairs) + 1}"]))
            if pairs:
                functions[place] = points_from_fractions(np.array(pairs))
        scale = values.get(f"{head}.scale")
        loss = LossParameters(
            tuple(functions[:1] * 5 if shared else functions),
            parameters.gradient_scale if scale is None else 10 ** (2 * scale - 1),
        )
        heads[head] = loss.safe() if safe else loss
    return heads

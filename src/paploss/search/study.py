"""The driver of a search: rounds of trials, kept in an Optuna study, until the best loss is known.

The driver alone writes to the store. All it knows is there: a driver that is killed at any moment and
started again repeats the trials that had not finished, with the same numbers, and goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.pruners import MedianPruner
from optuna.trial import FrozenTrial, Trial, TrialState

from paploss.loss.parameters import GRADIENT_SCALES, LossParameters, save_heads
from paploss.search import executors
from paploss.search.config import LINEAR, SEGMENTS, SearchConfig
from paploss.search.executors import (
    Executor,
    MakeTask,
    check_executor,
    make_executor,
    proxy_task,
    run_all,
)
from paploss.search.objective import Outcome
from paploss.search.samplers import make_sampler
from paploss.search.space import SearchSpace
from paploss.training.loop import load_parameters

STUDY = "search"
_OUTCOME = "outcome"  # attribute of a trial
_DIRECTORY = "directory"  # attribute of a study in a store of many
_REPEATS = "repeats"  # attribute of the study: rewards of the finalists when trained again


@dataclass(frozen=True)
class SearchProgress:
    """What a display may want to know whenever a trial has finished, or a finalist's training."""

    round: int
    rounds: int
    trials: int
    of_trials: int
    best: float
    round_mean: float
    collapsed: int
    failed: int
    seconds_left: float | None
    finalists: int = 0  # trainings that have finished
    of_finalists: int = 0  # of those that are known to be needed; 0 while there are trials left
    best_finalist: float = 0.0


@dataclass(frozen=True)
class FoundLoss:
    """The answer of a search."""

    heads: dict[str, LossParameters]
    trial: int
    reward: float


def make_space(config: SearchConfig) -> SearchSpace:
    """What is searched, for the heads of the detector."""
    heads = config.train.detector.heads
    if config.train.loss.heads:
        raise ValueError(
            "train.loss.heads: a search finds a loss for every head, "
            f"found one given for {', '.join(config.train.loss.heads)}"
        )
    init = config.space.init
    if init is None or init == LINEAR:
        start = {head: LossParameters.linear(config.space.segments) for head in heads}
    else:
        if config.space.segments != SEGMENTS:
            raise ValueError(
                f"space.segments: {init} has its own; found {config.space.segments}, "
                f"which needs init: {LINEAR}"
            )
        try:
            given = load_parameters(init)
        except FileNotFoundError:
            raise ValueError(
                f"space.init: expected {LINEAR}, a preset or a loss file, found {init!r}"
            ) from None
        if len(given) > 1 and set(given) != set(heads):
            raise ValueError(
                f"{init}: holds the heads {', '.join(given)}, the detector has {', '.join(heads)}"
            )
        start = {head: given.get(head) or next(iter(given.values())) for head in heads}
    return SearchSpace(
        start,
        shared=config.space.shared,
        safe=config.space.safe,
        fixed=frozenset(config.space.fixed),
    )


def _sqlite(path: Path) -> optuna.storages.RDBStorage:
    """A store in a file, written ahead: a trial's 41 numbers would else wait for the disk 41 times.

    A killed process loses nothing; a machine that loses its power may lose the last moments.
    """

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"creator": connect})


class Search:
    """A search in a run directory.

    Args:
        config: a search that was begun may be continued with more rounds, and on other machines.
        directory: of ``study.db`` and ``best.loss.json``.
        on_progress: called whenever a trial has finished, or a finalist's training.
        make_task: what gives a loss its reward.
    """

    def __init__(
        self,
        config: SearchConfig,
        directory: Path,
        on_progress: Callable[[SearchProgress], None] = lambda progress: None,
        *,
        make_task: MakeTask = proxy_task,
    ) -> None:
        check_executor(config.executor, config.proxy.prune)
        self.config, self.directory, self.on_progress = config, directory, on_progress
        self.make_task = make_task
        self.space = make_space(config)
        self.start = self.space.values()
        self._distributions: dict[str, BaseDistribution] = {
            name: FloatDistribution(0, 1) for name in self.space.names
        }
        directory.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # progress is shown by who asks for it
        self.study = optuna.create_study(
            storage=config.storage or _sqlite(directory / "study.db"),
            study_name=STUDY if config.storage is None else directory.name,
            direction="maximize",
            pruner=MedianPruner(n_startup_trials=config.sampler.samples),
            load_if_exists=True,
        )
        if config.storage is not None:
            self._claim_study(directory.resolve())
        self._durations: list[float] = []  # of trials
        self._finalists: list[Outcome] = []
        self._of_finalists = 0

    def _claim_study(self, directory: Path) -> None:
        """A store for many searches knows them by the names of their directories."""
        owner = self.study.user_attrs.get(_DIRECTORY)
        if owner is None:
            self.study.set_user_attr(_DIRECTORY, str(directory))
        elif owner != str(directory):
            raise ValueError(
                f"storage: the study {self.study.study_name!r} belongs to the run {owner}, not to "
                f"{directory}: choose another --run"
            )

    # ---------------------------------------------------------------- rounds

    def run(self) -> FoundLoss:
        """Search to the end, and write the best loss to ``best.loss.json``."""
        with contextlib.closing(make_executor(self.config, self.make_task)) as executor:
            for number in range(self.config.sampler.rounds):
                self._run_round(number, executor)
        best, factor = self._choose()
        heads = self._heads(best, factor)
        save_heads(heads, self.directory / "best.loss.json", about=self._about(best, factor))
        return FoundLoss(heads, best.number, _reward(best))

    def _run_round(self, number: int, executor: Executor) -> None:
        size = self.config.sampler.samples
        first = number * size
        known = [
            trial
            for trial in self.study.get_trials(deepcopy=False)[first : first + size]
            if trial.state != TrialState.WAITING  # enqueued, not begun
        ]
        trials = [self._complete(trial) for trial in known if not trial.state.is_finished()]
        trials += [self._ask(missing) for missing in range(first + len(known), first + size)]
        jobs = [executors.Trial(trial.number, self.space.heads(trial.params)) for trial in trials]
        ids = {trial.number: trial._trial_id for trial in trials}
        ask = partial(self._may_go_on, ids)
        for key, outcome in run_all(jobs, executor, may_go_on=ask):
            self._durations.append(outcome.seconds)
            self._tell(key, ids[key], outcome)
            self.on_progress(self._progress(number))

    def _ask(self, number: int) -> FrozenTrial:
        self.study.sampler = make_sampler(self.config.sampler, self.start, number)
        if self.config.sampler.name != "ppo2" and not self.study.get_trials(deepcopy=False):
            # PPO2 samples around the start; its rivals are told of it by their first trial.
            self.study.enqueue_trial(self.start)
        trial = self.study.ask(self._distributions)
        if trial.number != number:
            raise ValueError(
                f"{self.directory}: expected trial {number}, found {trial.number}: "
                "is another search writing to this study?"
            )
        return self._stored(trial._trial_id)

    def _complete(self, frozen: FrozenTrial) -> FrozenTrial:
        """A trial that a killed driver had begun; numbers it had not drawn yet are drawn now."""
        if frozen.params.keys() != self._distributions.keys():
            self.study.sampler = make_sampler(self.config.sampler, self.start, frozen.number)
            trial = Trial(self.study, frozen._trial_id)
            for name in self.space.names:
                trial.suggest_float(name, 0, 1)
        return self._stored(frozen._trial_id)

    def _stored(self, trial_id: int) -> FrozenTrial:
        return self.study._storage.get_trial(trial_id)

    def _may_go_on(self, ids: dict[int, int], number: int, ap: float) -> bool:
        trial_id = ids[number]
        self.study._storage.set_trial_intermediate_value(trial_id, 1, ap)
        return not self.study.pruner.prune(self.study, self._stored(trial_id))

    def _tell(self, number: int, trial_id: int, outcome: Outcome) -> None:
        self.study._storage.set_trial_user_attr(trial_id, _OUTCOME, asdict(outcome))
        if outcome.state == "pruned":
            self.study.tell(number, state=TrialState.PRUNED)
        else:  # a collapsed or failed sample is a reward of 0, not a hole
            self.study.tell(number, outcome.reward)

    def problems(self) -> list[str]:
        """What went wrong with trials for other reasons than their loss."""
        outcomes = {
            trial.number: trial.user_attrs.get(_OUTCOME, {})
            for trial in self.study.get_trials(deepcopy=False)
        }
        return [
            f"trial {number}: {outcome['message']}"
            for number, outcome in outcomes.items()
            if outcome.get("message") and outcome["state"] in ("failed", "complete")
        ]

    # ---------------------------------------------------------------- the answer

    def _choose(self) -> tuple[FrozenTrial, float]:
        """The best trial, and the factor that its gradient scales want.

        Where asked for, it is that of the best few that does best when trained again. Trainings of
        another length may want other scales, for a short one may not see what boxes gain later.
        """
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        ranked = sorted(complete, key=lambda trial: (-_reward(trial), trial.number))
        finalists = ranked[: self.config.finalists.count]
        judged = self._judge([(trial, 1.0) for trial in finalists])
        best = max(finalists, key=lambda trial: judged[trial.number, 1.0])
        if self.config.finalists.epochs is None or "scale" in self.config.space.fixed:
            return best, 1.0
        factors = [1.0]
        while True:
            top = max(factors, key=lambda factor: judged[best.number, factor])
            new = [f for f in (top / 2, top * 2) if f not in factors and self._reaches(best, f)]
            if not new:
                return best, top
            judged |= self._judge([(best, factor) for factor in new])
            factors += new

    def _reaches(self, trial: FrozenTrial, factor: float) -> bool:
        """Whether scales that are so many times the trial's are among those that are searched."""
        low, high = GRADIENT_SCALES
        heads = self._heads(trial, factor).values()
        return all(low <= parameters.gradient_scale <= high for parameters in heads)

    def _heads(self, trial: FrozenTrial, factor: float) -> dict[str, LossParameters]:
        return {
            head: replace(parameters, gradient_scale=factor * parameters.gradient_scale)
            for head, parameters in self.space.heads(trial.params).items()
        }

    def _judge(self, candidates: list[tuple[FrozenTrial, float]]) -> dict[tuple[int, float], float]:
        """Mean reward of trials with factors of their scales, when trained as finalists are."""
        seeds = [self.config.proxy.seed + k for k in range(self.config.finalists.seeds)]
        proxy = self.config.finalists.proxy(self.config.proxy)
        rewards: dict[str, float] = self.study.user_attrs.get(_REPEATS, {})

        def name(trial: FrozenTrial, factor: float, seed: int) -> str:
            scale = f", scale x {factor:g}" if factor != 1 else ""
            return f"trial {trial.number}{scale}, seed {seed}, {proxy.epochs} epochs of {proxy.fraction:g}"

        if proxy == self.config.proxy:  # the first seed was the trial's own
            rewards |= {name(trial, 1.0, seeds[0]): _reward(trial) for trial, _ in candidates}
        wanted = [(*candidate, seed) for candidate in candidates for seed in seeds]
        jobs = [
            executors.Trial(key, self._heads(trial, factor), seed)
            for key, (trial, factor, seed) in enumerate(wanted)
            if name(trial, factor, seed) not in rewards
        ]
        if jobs:
            config = self.config.model_copy(update={"proxy": proxy})
            with contextlib.closing(make_executor(config, self.make_task)) as executor:
                self._of_finalists += len(jobs)
                for key, outcome in run_all(jobs, executor):
                    rewards[name(*wanted[key])] = outcome.reward
                    self.study.set_user_attr(_REPEATS, rewards)
                    self._finalists.append(outcome)
                    self.on_progress(self._progress(self.config.sampler.rounds - 1))
        return {
            (trial.number, factor): statistics.mean(rewards[name(trial, factor, s)] for s in seeds)
            for trial, factor in candidates
        }

    def _about(self, best: FrozenTrial, factor: float) -> dict[str, Any]:
        return {
            "title": f"Searched for {self.config.train.detector.name} "
            f"on {self.config.train.data.path}",
            "detector": self.config.train.detector.name,
            "data": self.config.train.data.path,
            "source": f"paploss search, {self.config.sampler.name}, "
            f"{self.config.sampler.rounds} x {self.config.sampler.samples} trials, "
            f"seed {self.config.sampler.seed}, trial {best.number}"
            + (f" with scale x {factor:g}" if factor != 1 else ""),
            "reward": _reward(best),
        }

    def _progress(self, number: int) -> SearchProgress:
        trials = self.study.get_trials(deepcopy=False)
        finished = [trial for trial in trials if trial.state.is_finished()]
        size = self.config.sampler.samples
        of_round = [t for t in finished if t.number // size == number]
        states = [trial.user_attrs.get(_OUTCOME, {}).get("state") for trial in finished]
        total = size * self.config.sampler.rounds
        durations, waiting = self._durations, total - len(finished)
        if self._of_finalists:
            durations = [outcome.seconds for outcome in self._finalists]
            waiting = self._of_finalists - len(self._finalists)
        left = None
        if durations:
            lanes = max(1, min(self.config.executor.workers or 1, size))
            left = statistics.median(durations) * waiting / lanes
        return SearchProgress(
            round=number + 1,
            rounds=self.config.sampler.rounds,
            trials=len(finished),
            of_trials=total,
            best=max(map(_reward, finished), default=0.0),
            round_mean=statistics.mean(map(_reward, of_round)) if of_round else 0.0,
            collapsed=states.count("collapsed"),
            failed=states.count("failed"),
            seconds_left=left,
            finalists=len(self._finalists),
            of_finalists=self._of_finalists,
            best_finalist=max((outcome.reward for outcome in self._finalists), default=0.0),
        )


def _reward(trial: FrozenTrial) -> float:
    return trial.value if trial.state == TrialState.COMPLETE and trial.value is not None else 0.0

"""PPO2Sampler: the search of section 3.3 as a sampler for Optuna."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from paploss.search.ppo2 import (
    Policy,
    check_settings,
    next_mean,
    random_seed,
    scheduled_sigma,
    truncated_normal_quantile,
)

_logger = logging.getLogger(__name__)

# System attributes, where Optuna's own samplers keep their state too. Of a trial: the number of its
# round. Of the study, one for each round: its policy, {"mean": {name: number}, "sigma": number}.
_TRIAL_ROUND = "ppo2:round"
_STUDY_ROUND = "ppo2:round:"


class _Round(NamedTuple):
    number: int  # from 1
    mean: dict[str, float]  # by parameter, in units of its range; of those seen in earlier rounds
    sigma: float


class PPO2Sampler(BaseSampler):
    """Samples trials by rounds of PPO2; minimising studies are turned around.

    **Parameters.** Floats of any range, also logarithmic, are scaled to [0, 1]. Integers, floats with
    a step and categories are drawn at random. Several objectives are a `ValueError`.

    **Rounds.** A trial belongs to the round that is open when its first parameter is suggested. A
    round ends when ``samples_per_round`` of its trials have finished. The next trial opens the next
    round, whose mean follows from those finished trials (of more, from those with the lowest numbers).
    So a driver that asks for S trials, tells them in any order and asks for the next S has trial n
    in round n // S + 1. Asking earlier never blocks: it gives one more sample of the open round, which
    stands in for a trial that does not finish (a killed worker's, say), or else comes too late for
    the update and can only be the best trial.

    **Rewards.** A pruned trial counts with its last intermediate value. A failed one is a reward of
    0, or the worst of its round if that is lower. Enqueued trials and those of other samplers belong
    to no round, and a failed trial that Optuna runs again counts once.

    **Any process can go on.** A sample follows from the seed, the trial's number, the parameter's
    name and the round's policy, which is kept in the study. With another ``rounds``, the rounds that
    have begun keep their sigma and later ones follow the new schedule (see `PPO2`). A trial that
    was running when its process died can be set back to WAITING in the storage to be run again as
    it was.

    Args:
        rounds: T. Rounds after the last keep the sigma of the last.
        samples_per_round: S.
        sigma: width of the first round, in units of a parameter's range.
        clip: epsilon of eq. (11).
        initial_mean: start by parameter name, in the parameter's own units; the middle of its range
            for those left out.
        seed: of the samples, not negative; a random one if None.
        next_sigma: see `PPO2`; False is the paper's rule.

    Example:
        >>> import optuna
        >>> study = optuna.create_study(direction="maximize", sampler=PPO2Sampler(rounds=20, seed=0))
        >>> study.optimize(lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.8), n_trials=160)
        >>> round(study.best_params["x"], 1)
        0.8
    """

    def __init__(
        self,
        rounds: int = 40,
        samples_per_round: int = 8,
        sigma: float = 0.2,
        clip: float = 0.1,
        initial_mean: Mapping[str, float] | None = None,
        seed: int | None = None,
        *,
        next_sigma: bool = True,
    ) -> None:
        check_settings(
            rounds=rounds, samples_per_round=samples_per_round, sigma=sigma, clip=clip, seed=seed
        )
        self._rounds = rounds
        self._samples_per_round = samples_per_round
        self._sigma = sigma
        self._clip = clip
        self._initial_mean = dict(initial_mean or {})
        self._seed = random_seed() if seed is None else seed
        self._next_sigma = next_sigma
        self._drawn_at_random: set[str] = set()  # parameters that were warned of

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The parameters that all trials so far have in common.

        They are drawn at once to read the storage once. Others are drawn one by one, with the same
        result: the components of a policy are independent of each other.
        """
        common = intersection_search_space(_all_trials(study), include_pruned=True)
        return {name: value for name, value in common.items() if _is_continuous(value)}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        _check_single_objective(study)
        if not search_space:
            return {}
        current = self._round_of(study, trial)
        return {
            name: self._draw(current, study, trial, name, distribution)
            for name, distribution in search_space.items()
        }

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        _check_single_objective(study)
        current = self._round_of(study, trial)
        return self._draw(current, study, trial, param_name, param_distribution)

    # ---------------------------------------------------------------- one sample

    def _draw(
        self,
        current: _Round,
        study: Study,
        trial: FrozenTrial,
        name: str,
        distribution: BaseDistribution,
    ) -> Any:
        # By name and not by position: in the first trials nobody knows yet which parameters follow.
        # By trial number: no two are alike, also where processes ask at the same moment.
        random = np.random.default_rng(
            [self._seed, trial.number, int.from_bytes(name.encode(), "big")]
        )
        if not _is_continuous(distribution):
            self._warn_of_random_draw(name, distribution)
            fallback = RandomSampler(seed=int(random.integers(2**32)))
            return fallback.sample_independent(study, trial, name, distribution)
        mean = current.mean.get(name)
        if mean is None:
            mean = self._start_of(name, distribution)
        fraction = truncated_normal_quantile(
            np.array(random.random()), np.array(mean), current.sigma
        )
        return _from_fraction(float(fraction), distribution)

    def _start_of(self, name: str, distribution: FloatDistribution) -> float:
        if name not in self._initial_mean:
            return 0.5
        value = self._initial_mean[name]
        if not distribution.low <= value <= distribution.high:
            raise ValueError(
                f"initial_mean: expected {name} in [{distribution.low}, {distribution.high}], "
                f"found {value}"
            )
        return _to_fraction(value, distribution)

    def _warn_of_random_draw(self, name: str, distribution: BaseDistribution) -> None:
        if name not in self._drawn_at_random:
            self._drawn_at_random.add(name)
            _logger.warning(
                "PPO2Sampler searches floats without a step: %s (%s) is drawn at random.",
                name,
                type(distribution).__name__,
            )

    # ---------------------------------------------------------------- rounds

    def _round_of(self, study: Study, trial: FrozenTrial) -> _Round:
        """The round that the trial belongs to; at first the open one, from then on always that one."""
        storage, trial_id = study._storage, trial._trial_id
        stored = _stored_rounds(study)
        number = storage.get_trial(trial_id).system_attrs.get(_TRIAL_ROUND)
        if number in stored:
            return stored[number]
        current = self._open_round(study, stored)
        storage.set_trial_system_attr(trial_id, _TRIAL_ROUND, current.number)
        return current

    def _open_round(self, study: Study, stored: Mapping[int, _Round]) -> _Round:
        """The latest round that still wants samples, a new one if the latest has them all.

        Processes that get here at once write the same round, as long as whole rounds are asked for.
        Otherwise a trial that finishes between their looks may give them different ones, of which
        one stays: both are fair updates of the same round.
        """
        if stored:
            current = stored[max(stored)]
        else:
            current = _Round(1, {}, self._sigma)
            _store_round(study, current)
        trials = _all_trials(study)
        while len(members := _finished_members(trials, current)) >= self._samples_per_round:
            current = self._next_round(study, current, members[: self._samples_per_round])
            _store_round(study, current)
        return current

    def _next_round(self, study: Study, current: _Round, members: Sequence[FrozenTrial]) -> _Round:
        fractions = [_fractions(trial) for trial in members]
        # A parameter keeps its mean in rounds where it does not occur.
        mean = dict(current.mean)
        for trial in members:
            for name, distribution in trial.distributions.items():
                if _is_continuous(distribution) and name not in mean:
                    mean[name] = self._start_of(name, distribution)
        names = sorted(mean)
        sigma = scheduled_sigma(current.number + 1, self._rounds, self._sigma)
        updated = next_mean(
            Policy(np.array([mean[name] for name in names]), current.sigma),
            np.array([[row.get(name, math.nan) for name in names] for row in fractions]),
            _rewards(members, maximise=study.direction == StudyDirection.MAXIMIZE),
            sigma if self._next_sigma else current.sigma,
            clip=self._clip,
        )
        return _Round(current.number + 1, dict(zip(names, updated.tolist(), strict=True)), sigma)


# ---------------------------------------------------------------- reading trials


def _finished_members(trials: Sequence[FrozenTrial], current: _Round) -> list[FrozenTrial]:
    """Finished samples of a round by number."""
    run_again = {n for trial in trials for n in trial.system_attrs.get("retry_history", ())}
    return [
        trial
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state.is_finished()
        and trial.system_attrs.get(_TRIAL_ROUND) == current.number
        and "fixed_params" not in trial.system_attrs  # enqueued: not, or not all, from the policy
        and trial.number not in run_again
    ]


def _rewards(trials: Sequence[FrozenTrial], *, maximise: bool) -> np.ndarray[Any, Any]:
    """Rewards (S,), larger is better; that of a failure is 0, or the lowest of the others if lower."""
    values = np.array([_value(trial) for trial in trials]) * (1 if maximise else -1)
    known = np.isfinite(values)
    return np.where(known, values, np.min(values, where=known, initial=0.0))


def _value(trial: FrozenTrial) -> float:
    """NaN if there is none."""
    if trial.state == TrialState.COMPLETE and trial.value is not None:
        return trial.value
    if trial.state == TrialState.PRUNED and trial.last_step is not None:
        return trial.intermediate_values[trial.last_step]
    return math.nan


def _fractions(trial: FrozenTrial) -> dict[str, float]:
    return {
        name: _to_fraction(trial.params[name], distribution)
        for name, distribution in trial.distributions.items()
        if _is_continuous(distribution)
    }


def _is_continuous(distribution: BaseDistribution) -> TypeGuard[FloatDistribution]:
    return (
        isinstance(distribution, FloatDistribution)
        and distribution.step is None
        and not distribution.single()
    )


def _to_fraction(value: float, distribution: FloatDistribution) -> float:
    """Where in its range a value lies, from 0 to 1."""
    low, high = distribution.low, distribution.high
    if distribution.log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _from_fraction(fraction: float, distribution: FloatDistribution) -> float:
    low, high = distribution.low, distribution.high
    if distribution.log:
        value = math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
    else:
        value = low + fraction * (high - low)
    return min(max(value, low), high)  # rounding may lead out of the range


# ---------------------------------------------------------------- storage


def _all_trials(study: Study) -> list[FrozenTrial]:
    # Not study.get_trials: Hyperband shows a sampler the trials of one bracket only.
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def _stored_rounds(study: Study) -> dict[int, _Round]:
    rounds = {}
    for key, value in study._storage.get_study_system_attrs(study._study_id).items():
        if key.startswith(_STUDY_ROUND):
            number = int(key.removeprefix(_STUDY_ROUND))
            rounds[number] = _Round(number, value["mean"], value["sigma"])
    return rounds


def _store_round(study: Study, current: _Round) -> None:
    # In one attribute, so that nobody reads half a round. Optuna's databases hold 64 kB in it,
    # those of 2,045 characters have been gone since its version 2.6.
    study._storage.set_study_system_attr(
        study._study_id,
        f"{_STUDY_ROUND}{current.number}",
        {"mean": current.mean, "sigma": current.sigma},
    )


def _check_single_objective(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError(
            f"PPO2Sampler searches for one objective, the study has {len(study.directions)}"
        )

from __future__ import annotations

import itertools
import logging
import multiprocessing
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import Engine, event

from paploss.search import PPO2Sampler
from paploss.search.ppo2 import Policy, next_mean

S = 4
SPACE: dict[str, BaseDistribution] = {name: FloatDistribution(0, 1) for name in ("c", "a", "b")}
Params = dict[str, Any]


@event.listens_for(Engine, "connect")
def _do_not_wait_for_the_disk(connection: Any, _: Any) -> None:
    """Hundreds of commits, each some 30 ms on a busy disk: nothing here has to survive a power cut."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def make_sampler(**settings: Any) -> PPO2Sampler:
    return PPO2Sampler(**{"rounds": 5, "samples_per_round": S, "seed": 7, **settings})


def make_study(direction: str = "maximize", **settings: Any) -> Study:
    return optuna.create_study(direction=direction, sampler=make_sampler(**settings))


def value(params: Params) -> float:
    return 1 - sum((params[name] - 0.7) ** 2 for name in SPACE)


def run_round(
    study: Study, order: tuple[int, ...] = (0, 1, 2, 3), space: dict[str, BaseDistribution] = SPACE
) -> None:
    """Ask for a whole round, then tell it in the given order."""
    trials = [study.ask(space) for _ in range(S)]
    for k in order:
        study.tell(trials[k], value(trials[k].params))


def params_of(study: Study) -> list[Params]:
    return [trial.params for trial in study.trials]


def rounds_of(study: Study) -> list[int]:
    return [trial.system_attrs["ppo2:round"] for trial in study.trials]


def policy_of(study: Study, number: int) -> dict[str, Any]:
    stored: dict[str, Any] = study._storage.get_study_system_attrs(study._study_id)[
        f"ppo2:round:{number}"
    ]
    return stored


@pytest.fixture(scope="module")
def expected() -> list[Params]:
    """Three rounds in one process, round by round."""
    study = make_study()
    for _ in range(3):
        run_round(study)
    return params_of(study)


class TestConformance(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """Optuna's own tests of a sampler; two samples a round, so that rounds end within them."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: PPO2Sampler(samples_per_round=2, seed=0)


# ---------------------------------------------------------------- the algorithm


def test_rounds_follow_the_mathematics() -> None:
    study = make_study(clip=0.15)
    for _ in range(3):
        run_round(study)
    assert rounds_of(study) == [1] * S + [2] * S + [3] * S
    names, mean = sorted(SPACE), np.full(3, 0.5)
    for number in (1, 2):
        trials = study.trials[(number - 1) * S : number * S]
        sigma, following = 0.2 * (6 - number) / 5, 0.2 * (5 - number) / 5
        x = np.array([[trial.params[name] for name in names] for trial in trials])
        rewards = np.array([trial.value for trial in trials])
        mean = next_mean(Policy(mean, sigma), x, rewards, following, clip=0.15)
        assert policy_of(study, number + 1) == {
            "mean": dict(zip(names, mean.tolist(), strict=True)),
            "sigma": pytest.approx(following),
        }


def test_the_papers_rule_keeps_the_width_of_the_round() -> None:
    study = make_study(next_sigma=False)
    run_round(study)
    study.ask(SPACE)
    names = sorted(SPACE)
    x = np.array([[trial.params[name] for name in names] for trial in study.trials[:S]])
    rewards = np.array([trial.value for trial in study.trials[:S]])
    mean = next_mean(Policy(np.full(3, 0.5), 0.2), x, rewards, 0.2, clip=0.1)
    assert list(policy_of(study, 2)["mean"].values()) == mean.tolist()


def test_finds_what_it_looks_for() -> None:
    study = make_study(rounds=20, samples_per_round=8)
    study.optimize(lambda trial: value({n: trial.suggest_float(n, 0, 1) for n in SPACE}), 160)
    assert study.best_value > 0.995  # 0.88 at the start
    for name in SPACE:
        assert policy_of(study, 20)["mean"][name] == pytest.approx(0.7, abs=0.1)


def test_minimising_is_maximising_the_negative(expected: list[Params]) -> None:
    study = make_study(direction="minimize")
    for _ in range(3 * S):
        trial = study.ask(SPACE)
        study.tell(trial, -value(trial.params))
    assert params_of(study) == expected


def test_other_ranges_are_scaled(expected: list[Params]) -> None:
    study = make_study()
    space = {"a": FloatDistribution(-3, 5), "b": FloatDistribution(1e-4, 1, log=True)}
    for _ in range(3 * S):
        trial = study.ask(space | {"c": FloatDistribution(0, 1)})
        fractions = {
            "a": (trial.params["a"] + 3) / 8,
            "b": 1 + np.log10(trial.params["b"]) / 4,
            "c": trial.params["c"],
        }
        assert fractions == pytest.approx(expected[trial.number], abs=1e-6)
        study.tell(trial, value(fractions))


def test_starts_where_it_is_told() -> None:
    study = make_study(sigma=1e-3, initial_mean={"a": 0.9, "b": 2.0})
    space = SPACE | {"b": FloatDistribution(0, 10)}
    for _ in range(2 * S):  # also in the second round, whose mean comes from the study
        trial = study.ask(space)
        assert trial.params == pytest.approx({"a": 0.9, "b": 2.0, "c": 0.5}, abs=0.05)
        study.tell(trial, 1.0)
    study = make_study(initial_mean={"a": 1.5})
    with pytest.raises(ValueError, match=r"initial_mean: expected a in \[0.0, 1.0\], found 1.5"):
        study.ask(SPACE)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="samples_per_round: expected at least 2, found 1"):
        PPO2Sampler(samples_per_round=1)


def test_seeds_decide() -> None:
    assert make_study(seed=1).ask(SPACE).params != make_study(seed=2).ask(SPACE).params
    assert make_study(seed=None).ask(SPACE).params != make_study(seed=None).ask(SPACE).params


# ---------------------------------------------------------------- the same samples everywhere


def test_one_trial_after_the_other(expected: list[Params]) -> None:
    study = make_study()
    # In another order of suggestion, too.
    study.optimize(
        lambda trial: value({name: trial.suggest_float(name, 0, 1) for name in sorted(SPACE)}),
        3 * S,
    )
    assert params_of(study) == expected


@pytest.mark.parametrize("order", list(itertools.permutations(range(S)))[5::6])
def test_told_in_any_order(order: tuple[int, ...], expected: list[Params]) -> None:
    study = make_study()
    for _ in range(3):
        run_round(study, order)
    assert params_of(study) == expected


def test_a_new_process_goes_on(tmp_path: Path, expected: list[Params]) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    optuna.create_study(storage=storage, study_name="s", direction="maximize")
    for _ in range(3 * S):  # every trial with new objects
        study = optuna.load_study(storage=storage, study_name="s", sampler=make_sampler())
        trial = study.ask(SPACE)
        study.tell(trial, value(trial.params))
    assert params_of(study) == expected


def run_half_a_round(storage: str) -> None:
    study = optuna.load_study(storage=storage, study_name="s", sampler=make_sampler())
    trials = [study.ask(SPACE) for _ in range(S // 2)]
    for trial in trials:
        study.tell(trial, value(trial.params))


def test_processes_share_a_round(tmp_path: Path, expected: list[Params]) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        for number in (1, 2, 3):
            jobs = [processes.submit(run_half_a_round, storage) for _ in range(2)]
            for job in jobs:
                job.result()
            assert rounds_of(study)[-S:] == [number] * S
    assert params_of(study) == expected


def test_a_killed_trial_can_run_again_as_it_was(tmp_path: Path, expected: list[Params]) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    study.sampler = make_sampler()
    run_round(study)
    asked = [study.ask(SPACE) for _ in range(S)]
    study.tell(asked[0], value(asked[0].params))
    # The process ends here, with three trials running.
    study = optuna.load_study(storage=storage, study_name="s", sampler=make_sampler())
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
    for _ in range(3 + S):
        trial = study.ask(SPACE)
        study.tell(trial, value(trial.params))
    assert params_of(study) == expected


def test_more_rounds_later() -> None:
    study = make_study(rounds=2)
    for _ in range(2):
        run_round(study)
    before = params_of(study)
    study.sampler = make_sampler(rounds=8)
    run_round(study)
    run_round(study)
    assert params_of(study)[: 2 * S] == before
    sigmas = [policy_of(study, number)["sigma"] for number in (1, 2, 3, 4)]
    assert sigmas == pytest.approx([0.2, 0.1, 0.2 * 6 / 8, 0.2 * 5 / 8])


def test_rounds_after_the_last_keep_its_width() -> None:
    study = make_study(rounds=2)
    for _ in range(4):
        run_round(study)
    assert [policy_of(study, k)["sigma"] for k in (1, 2, 3, 4)] == [0.2, 0.1, 0.1, 0.1]


# ---------------------------------------------------------------- trials out of order


def test_who_asks_early_gets_more_of_the_open_round() -> None:
    study = make_study()
    early = [study.ask(SPACE) for _ in range(S + 2)]
    assert rounds_of(study) == [1] * (S + 2)
    assert len({tuple(trial.params.values()) for trial in early}) == S + 2
    # One never ends; the fifth stands in for it, the sixth comes too late.
    for trial in early[1 : S + 1]:
        study.tell(trial, value(trial.params))
    study.ask(SPACE)
    study.tell(early[S + 1], 100.0)
    study.tell(early[0], 100.0)
    study.ask(SPACE)
    assert rounds_of(study)[-2:] == [2, 2]
    names = sorted(SPACE)
    x = np.array([[trial.params[name] for name in names] for trial in early[1 : S + 1]])
    rewards = np.array([value(trial.params) for trial in early[1 : S + 1]])
    mean = next_mean(Policy(np.full(3, 0.5), 0.2), x, rewards, 0.16, clip=0.1)
    assert list(policy_of(study, 2)["mean"].values()) == mean.tolist()


def test_threads_get_different_samples() -> None:
    study = make_study()
    study.optimize(
        lambda trial: value({name: trial.suggest_float(name, 0, 1) for name in SPACE}), 24, n_jobs=4
    )
    assert len({tuple(sorted(params.items())) for params in params_of(study)}) == 24
    assert max(rounds_of(study)) > 1


def second_round_after(finish: Callable[[Study, Trial], None], direction: str = "maximize") -> Any:
    """The second policy, where the second trial of the first round ends in its own way."""
    study = make_study(direction)
    trials = [study.ask(SPACE) for _ in range(S)]
    for k, trial in enumerate(trials):
        finish(study, trial) if k == 1 else study.tell(trial, 1.0 + value(trial.params))
    study.ask(SPACE)
    return policy_of(study, 2)


def report_and_prune(study: Study, trial: Trial, *values: float) -> None:
    for step, reported in enumerate(values):
        trial.report(reported, step)
    study.tell(trial, state=TrialState.PRUNED)


def test_failures_are_rewards_of_0() -> None:
    zero = second_round_after(lambda study, trial: study.tell(trial, 0.0))
    assert second_round_after(lambda study, trial: study.tell(trial, 3.0)) != zero
    for finish in (
        lambda study, trial: study.tell(trial, state=TrialState.FAIL),
        lambda study, trial: study.tell(trial, float("inf")),
        report_and_prune,
        lambda study, trial: report_and_prune(study, trial, float("nan")),
    ):
        assert second_round_after(finish) == zero


def test_a_failure_is_never_better_than_what_worked() -> None:
    """All losses to minimise here are above 1, so that 0 would be the best of them."""
    fail = second_round_after(lambda s, t: s.tell(t, state=TrialState.FAIL), "minimize")
    study = make_study("minimize")
    others = [value(study.ask(SPACE).params) for _ in range(S)]
    del others[1]
    worst = second_round_after(lambda s, t: s.tell(t, 1.0 + max(others)), "minimize")
    assert fail == worst


def test_a_pruned_trial_counts_with_its_last_value() -> None:
    told = second_round_after(lambda study, trial: study.tell(trial, 1.25))
    assert second_round_after(lambda s, t: report_and_prune(s, t, 9.0, 1.25)) == told


def test_a_trial_that_is_run_again_counts_once() -> None:
    study, undisturbed = make_study(), make_study()
    run_round(undisturbed)
    trials = [study.ask(SPACE) for _ in range(S)]
    for k in (0, 2, 3):
        study.tell(trials[k], value(trials[k].params))
    study.tell(trials[1], state=TrialState.FAIL)
    # What the heartbeat of Optuna's database storage does with trials of dead processes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        run_again = optuna.storages.RetryHeartbeatStaleTrialCallback()
    run_again(study, study.trials[1])
    retry = study.ask(SPACE)
    assert retry.params == trials[1].params
    study.tell(retry, value(retry.params))
    study.ask(SPACE)
    undisturbed.ask(SPACE)
    # The same four samples, the second being the last now.
    names = sorted(SPACE)
    found, expected = (policy_of(s, 2)["mean"] for s in (study, undisturbed))
    np.testing.assert_allclose([found[n] for n in names], [expected[n] for n in names], atol=1e-6)


def test_enqueued_and_foreign_trials_belong_to_no_round() -> None:
    study = make_study()
    study.enqueue_trial({"a": 0.1, "b": 0.2, "c": 0.3})
    study.enqueue_trial({"a": 0.1})
    study.add_trial(optuna.create_trial(params={}, distributions={}, value=5.0))
    study.add_trial(
        optuna.create_trial(
            params={"a": "x", "z": 0.5},
            distributions={"a": CategoricalDistribution(["x"]), "z": FloatDistribution(0, 1)},
            value=6.0,
        )
    )
    for _ in range(2 + S):
        trial = study.ask(SPACE)
        study.tell(trial, value(trial.params))
    assert study.trials[0].params == {"a": 0.1, "b": 0.2, "c": 0.3}
    assert study.trials[1].params["a"] == 0.1
    study.ask(SPACE)
    drawn = study.trials[4:]
    assert [trial.system_attrs["ppo2:round"] for trial in drawn] == [1] * S + [2]
    names = sorted(SPACE)
    x = np.array([[trial.params[name] for name in names] for trial in drawn[:S]])
    rewards = np.array([trial.value for trial in drawn[:S]])
    mean = next_mean(Policy(np.full(3, 0.5), 0.2), x, rewards, 0.16, clip=0.1)
    assert list(policy_of(study, 2)["mean"].values()) == mean.tolist()


def test_parameters_may_come_and_go() -> None:
    """A trial that fails before its last suggestion, one with more than the others."""
    study = make_study()

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("a", 0, 1)
        if trial.number == 1:
            raise RuntimeError("out of memory")
        y = trial.suggest_float("b", 0, 1)
        return x + y + (trial.suggest_float("c", 0, 1) if trial.number == 2 else 0)

    study.optimize(objective, 3 * S, catch=(RuntimeError,))
    assert rounds_of(study) == [1] * S + [2] * S + [3] * S
    mean = policy_of(study, 3)["mean"]
    assert mean["a"] > 0.5
    assert mean["b"] > 0.5
    assert mean["c"] == pytest.approx(policy_of(study, 2)["mean"]["c"])


def test_what_it_cannot_search_is_drawn_at_random_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def draw(trial: Trial) -> float:
        trial.suggest_categorical("kind", ["p", "q", "r"])
        trial.suggest_int("count", 1, 10**6)
        return trial.suggest_float("x", 0, 1)

    studies = [make_study(), make_study()]
    with caplog.at_level(logging.WARNING, "paploss"):
        studies[0].optimize(draw, 2 * S)
    assert [record.getMessage() for record in caplog.records] == [
        "PPO2Sampler searches floats without a step: kind (CategoricalDistribution) is drawn at random.",
        "PPO2Sampler searches floats without a step: count (IntDistribution) is drawn at random.",
    ]
    studies[1].optimize(draw, 2 * S)
    assert params_of(studies[0]) == params_of(studies[1])
    assert len({params["count"] for params in params_of(studies[0])}) == 2 * S
    assert set(policy_of(studies[0], 2)["mean"]) == {"x"}


def test_rounds_pass_the_brackets_of_hyperband() -> None:
    study = optuna.create_study(
        sampler=make_sampler(), pruner=optuna.pruners.HyperbandPruner(1, 9, 3), study_name="s"
    )

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.report(x, 1)
        trial.should_prune()  # from now on, the brackets exist
        return x

    study.optimize(objective, 3 * S)
    assert rounds_of(study) == [1] * S + [2] * S + [3] * S


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=make_sampler())
    with pytest.raises(ValueError, match="searches for one objective, the study has 2"):
        study.ask(SPACE)


def test_fits_a_database_with_two_heads(tmp_path: Path) -> None:
    """82 parameters with names as long as they get."""
    names = [f"roi_heads.f{k}.a_rather_long_name_{k}" for k in range(82)]
    space: dict[str, BaseDistribution] = {name: FloatDistribution(0, 1) for name in names}
    study = optuna.create_study(
        storage=f"sqlite:///{tmp_path}/study.db", sampler=PPO2Sampler(samples_per_round=2, seed=0)
    )
    for k in range(3):
        study.tell(study.ask(space), float(k))
    assert set(policy_of(study, 2)["mean"]) == set(names)


def frozen(study: Study) -> FrozenTrial:
    return study._storage.get_trial(study._storage.create_new_trial(study._study_id))


def test_drawn_at_once_or_one_by_one_is_the_same() -> None:
    study = make_study()
    run_round(study)
    trial = frozen(study)
    at_once = study.sampler.sample_relative(study, trial, SPACE)
    for name, distribution in SPACE.items():
        assert study.sampler.sample_independent(study, trial, name, distribution) == at_once[name]
    assert set(study.sampler.infer_relative_search_space(study, trial)) == set(SPACE)

"""Search algorithms by name: PPO2 and its rivals, all as Optuna samplers."""

from __future__ import annotations

import warnings

from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from paploss.search.config import SamplerConfig
from paploss.search.sampler import PPO2Sampler

# Trials at random, or at the start, before a model of the objective is trusted.
_STARTUP = 16


def make_sampler(config: SamplerConfig, start: dict[str, float], number: int) -> BaseSampler:
    """The sampler of one trial.

    Optuna's own samplers lose their random state with the process, so each trial has a sampler of its
    own, whose seed follows from the trial's number: a search that continues goes on as it would have.

    Args:
        config: name and settings.
        start: where the search begins, by parameter name.
        number: of the trial.
    """
    seed = (config.seed * 1_000_003 + number) % 2**32
    if config.name == "ppo2":
        return PPO2Sampler(
            config.rounds, config.samples, config.sigma, initial_mean=start, seed=config.seed
        )
    if config.name == "random":
        return RandomSampler(seed=seed)
    if config.name == "tpe":
        return TPESampler(
            n_startup_trials=_STARTUP, multivariate=True, constant_liar=True, seed=seed
        )
    if config.name == "cmaes":
        with warnings.catch_warnings():
            # Optuna means to drop x0 in version 6, and has nothing in its place.
            warnings.simplefilter("ignore", FutureWarning)
            return CmaEsSampler(
                x0=dict(start),
                sigma0=config.sigma,
                n_startup_trials=1,
                popsize=config.samples,
                seed=seed,
            )
    return GPSampler(n_startup_trials=_STARTUP, seed=seed)

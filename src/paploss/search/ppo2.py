"""PPO2 on [0, 1]^D, the search of section 3.3, as ask and tell. Mathematics only: numpy and scipy.

A round draws S samples from a truncated normal distribution. Their rewards move its mean by PPO2's
clipped objective, and its width shrinks from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, ndtr, ndtri  # type: ignore[import-untyped]

Array = npt.NDArray[np.float64]

# How section 4.1 solves eq. (10): Adam, its learning rate rising from 0 over the first steps.
_STEPS = 100
_WARM_UP_STEPS = 30
_LEARNING_RATE = 0.01
_DECAY_OF_MEAN, _DECAY_OF_SQUARE, _SMALL = 0.9, 0.999, 1e-8  # Adam's usual ones

# The mean is optimised through its logit, which 0 and 1 do not have.
_EDGE = 1e-4
# Adam reads directions, not sizes: a larger ratio would add nothing but infinities.
_LARGEST_LOG_RATIO = 50.0


class Policy(NamedTuple):
    """What a round draws from: the normal distribution N(mean, sigma^2 I), truncated to [0, 1]^D."""

    mean: Array  # (D,), before truncation
    sigma: float


class Sample(NamedTuple):
    x: Array  # (D,)
    reward: float


class PPO2:
    """Maximises a noisy function on [0, 1]^D.

    Sample k of round t follows from ``(seed, t, k)`` and the policy of its round, whatever was asked
    before; the policy follows from the samples of the rounds before. So any process can draw it.

    The width falls with the round t of T = ``rounds``: sigma_t = sigma (T - t + 1) / T. Rounds after
    the last keep the width of the last. ``rounds`` may be set to a larger number to go on with a
    search: a round that has begun keeps its width, those after it follow the new schedule. A search
    that had ended thereby starts to look around again, from where it stood.

    Args:
        dimensions: D.
        rounds: T.
        samples_per_round: S, at least 2: a reward counts by its difference to the round's mean.
        sigma: width of the first round.
        clip: epsilon of eq. (11).
        next_sigma: the new density of eq. (11) has the width of the next round, which is the policy
            that will be drawn from; so does the authors' released code. False gives it the width of
            the present round, as the paper writes it. In 30 seeds of each of the three functions of
            benchmarks/search_algorithms.py the former found the better value in 23, 28 and 21 (by
            0.04 to 0.08 on average, where 1 is the optimum). The released code also lets Adam's
            learning rate fall after its warm-up, which made no difference there and is left out.
        initial_mean: (D,) mean of the first round; 0.5 everywhere if None.
        seed: of the samples, not negative; a random one if None.

    Example:
        >>> optimizer = PPO2(dimensions=3, rounds=20, seed=0)
        >>> for _ in range(optimizer.rounds):
        ...     samples = [optimizer.ask() for _ in range(optimizer.samples_per_round)]
        ...     optimizer.tell([(x, -((x - 0.8) ** 2).sum()) for x in samples])
        >>> optimizer.best.x.round(1).tolist()
        [0.8, 0.8, 0.8]
    """

    def __init__(
        self,
        dimensions: int,
        *,
        rounds: int = 40,
        samples_per_round: int = 8,
        sigma: float = 0.2,
        clip: float = 0.1,
        next_sigma: bool = True,
        initial_mean: npt.ArrayLike | None = None,
        seed: int | None = None,
    ) -> None:
        check_settings(
            rounds=rounds, samples_per_round=samples_per_round, sigma=sigma, clip=clip, seed=seed
        )
        if dimensions < 1:
            raise ValueError(f"dimensions: expected at least 1, found {dimensions}")
        self.rounds = rounds
        self.samples_per_round = samples_per_round
        self.clip = clip
        self.next_sigma = next_sigma
        self.seed = random_seed() if seed is None else seed
        self._first_sigma = sigma
        self._mean = _check_mean(np.full(dimensions, 0.5) if initial_mean is None else initial_mean)
        if self._mean.shape != (dimensions,):
            raise ValueError(
                f"initial_mean: expected {dimensions} numbers, found shape {self._mean.shape}"
            )
        self._round = 1
        self._sigma: float | None = None  # set when the round begins
        self._asked = 0
        self._best: Sample | None = None

    @property
    def round(self) -> int:
        """The current round t, from 1."""
        return self._round

    @property
    def policy(self) -> Policy:
        """What the current round draws from."""
        sigma = scheduled_sigma(self._round, self.rounds, self._first_sigma)
        return Policy(self._mean.copy(), sigma if self._sigma is None else self._sigma)

    @property
    def best(self) -> Sample:
        """The sample of the highest reward told so far, the search's answer (Algorithm 1)."""
        if self._best is None:
            raise ValueError("best: no samples were told yet")
        return self._best

    def ask(self, index: int | None = None) -> Array:
        """The next sample (D,) of the current round, or the one of the given index from 0."""
        if index is None:
            index = self._asked
            self._asked += 1
        policy = self.policy
        self._sigma = policy.sigma  # the round has begun
        random = np.random.default_rng([self.seed, self._round, index])
        return truncated_normal_quantile(random.random(len(policy.mean)), *policy)

    def tell(self, samples: Sequence[tuple[npt.ArrayLike, float]]) -> None:
        """End the current round with all its samples and their rewards, in any order."""
        if len(samples) != self.samples_per_round:
            raise ValueError(
                f"samples: expected the {self.samples_per_round} of a round, found {len(samples)}"
            )
        x = np.array([x for x, _ in samples], dtype=np.float64)
        rewards = np.array([reward for _, reward in samples], dtype=np.float64)
        if x.shape[1:] != self._mean.shape or not np.all((x >= 0) & (x <= 1)):
            raise ValueError(
                f"samples: expected {len(self._mean)} numbers in [0, 1] each, found {x}"
            )
        order = np.lexsort(
            x.T
        )  # sums must not round differently where rewards come in another order
        x, rewards = x[order], rewards[order]
        following = scheduled_sigma(self._round + 1, self.rounds, self._first_sigma)
        policy = self.policy
        self._mean = next_mean(
            policy, x, rewards, following if self.next_sigma else policy.sigma, clip=self.clip
        )
        winner = int(rewards.argmax())
        if self._best is None or rewards[winner] > self._best.reward:
            self._best = Sample(x[winner], float(rewards[winner]))
        self._round += 1
        self._sigma = None
        self._asked = 0


def check_settings(
    *, rounds: int, samples_per_round: int, sigma: float, clip: float, seed: int | None
) -> None:
    """A `ValueError` that names the first setting that makes no search."""
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, found {rounds}")
    if samples_per_round < 2:
        raise ValueError(f"samples_per_round: expected at least 2, found {samples_per_round}")
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma: expected a positive number, found {sigma}")
    if not 0 < clip < 1:
        raise ValueError(f"clip: expected a number between 0 and 1, found {clip}")
    if seed is not None and seed < 0:
        raise ValueError(f"seed: expected a number that is not negative, found {seed}")


def random_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


def scheduled_sigma(round_: int, rounds: int, sigma: float) -> float:
    """sigma_t = sigma (T - t + 1) / T, falling linearly; after round T as in round T."""
    return sigma * max(rounds - round_ + 1, 1) / rounds


# ---------------------------------------------------------------- the truncated normal distribution


def truncated_normal_log_density(x: Array, mean: Array, sigma: float) -> Array:
    """Log density at x in [0, 1], each component on its own; mean in [0, 1]. Shapes broadcast."""
    squares = ((x - mean) / sigma) ** 2
    return np.asarray(
        -squares / 2 - math.log(sigma * math.sqrt(2 * math.pi)) - _log_mass(mean, sigma)
    )


def truncated_normal_score(x: Array, mean: Array, sigma: float) -> Array:
    """Derivative of the log density by the mean: (x - E[x]) / sigma^2, normaliser included."""
    slope = (_normal_density(mean / sigma) - _normal_density((1 - mean) / sigma)) / np.exp(
        _log_mass(mean, sigma)
    )  # of log_mass, times sigma
    return np.asarray(((x - mean) / sigma - slope) / sigma)


def truncated_normal_quantile(probability: Array, mean: Array, sigma: float) -> Array:
    """The x in [0, 1] below which the distribution has the given probability."""
    cut_below, cut_above = ndtr(-mean / sigma), ndtr((mean - 1) / sigma)
    mass = 1 - cut_below - cut_above
    below = cut_below + probability * mass
    above = cut_above + (1 - probability) * mass
    # Of the two tails the smaller number is the exact one: 1 - 1e-20 is 1.
    deviation = np.where(below < above, ndtri(below), -ndtri(above))
    return np.asarray(np.clip(mean + sigma * deviation, 0, 1))


def _log_mass(mean: Array, sigma: float) -> Array:
    """Log of the part of a normal distribution that lies in [0, 1]."""
    return np.asarray(np.log1p(-(ndtr(-mean / sigma) + ndtr((mean - 1) / sigma))))


def _normal_density(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


# ---------------------------------------------------------------- the update of the mean


def next_mean(
    policy: Policy, samples: Array, rewards: Array, following_sigma: float, *, clip: float
) -> Array:
    """Mean (D,) of the next round, eq. (10); the present one if all rewards are equal.

    Args:
        policy: what the samples were drawn from.
        samples: (S, D) in [0, 1]; NaN where a sample has no such component.
        rewards: (S,) finite, larger is better.
        following_sigma: width of the new density in eq. (11). Never wider than the policy's is used:
            no sample would seem more likely than before, whichever way the mean moves.
        clip: epsilon of eq. (11).
    """
    if not np.all(np.isfinite(rewards)):
        raise ValueError(f"rewards: expected finite numbers, found {rewards.tolist()}")
    if np.ptp(rewards) == 0:
        return policy.mean.copy()
    advantages = rewards - rewards.mean()
    sigma = min(policy.sigma, following_sigma)
    old_density = truncated_normal_log_density(samples, *policy)

    def gradient(z: Array) -> Array:
        mean: Array = expit(z)
        _, by_mean = clipped_objective(mean, sigma, samples, old_density, advantages, clip=clip)
        return by_mean * mean * (1 - mean)

    return np.asarray(expit(_adam(gradient, logit(policy.mean.clip(_EDGE, 1 - _EDGE)))))


def clipped_objective(
    mean: Array,
    sigma: float,
    samples: Array,
    old_log_density: Array,
    advantages: Array,
    *,
    clip: float,
) -> tuple[float, Array]:
    """What eq. (10) maximises, and its gradient (D,) by the mean.

    The ratio of densities is clipped in each component on its own (section 4.1), the product over
    the components comes after.

    Args:
        mean: (D,) of the new density.
        sigma: width of the new density.
        samples: (S, D), NaN where a sample has no such component.
        old_log_density: (S, D) of the samples under the policy that they were drawn from.
        advantages: (S,) reward minus the mean reward of the round.
        clip: epsilon.
    """
    present = ~np.isnan(samples)
    log_ratio = np.where(
        present, truncated_normal_log_density(samples, mean, sigma) - old_log_density, 0
    )  # (S, D)
    score = np.where(present, truncated_normal_score(samples, mean, sigma), 0)  # (S, D)
    low, high = math.log(1 - clip), math.log(1 + clip)
    inside = (log_ratio >= low) & (log_ratio <= high)

    # eq. (11)
    free = advantages * np.exp(np.minimum(log_ratio.sum(1), _LARGEST_LOG_RATIO))  # (S,)
    clipped = advantages * np.exp(log_ratio.clip(low, high).sum(1))
    taken = np.minimum(free, clipped)
    # A clipped component no longer follows the mean, unless the free product is the smaller one.
    follows = inside | (free <= clipped)[:, None]
    return float(taken.mean()), np.asarray((taken[:, None] * score * follows).mean(0))


def _adam(gradient: Callable[[Array], Array], start: Array) -> Array:
    """Climb from the start (D,): Adam with a linear warm-up."""
    position = start
    mean = square = np.zeros_like(start)
    for step in range(1, _STEPS + 1):
        slope = gradient(position)
        mean = _DECAY_OF_MEAN * mean + (1 - _DECAY_OF_MEAN) * slope
        square = _DECAY_OF_SQUARE * square + (1 - _DECAY_OF_SQUARE) * slope**2
        direction = (mean / (1 - _DECAY_OF_MEAN**step)) / (
            np.sqrt(square / (1 - _DECAY_OF_SQUARE**step)) + _SMALL
        )
        position = position + _LEARNING_RATE * min(step / _WARM_UP_STEPS, 1) * direction
    return position


def _check_mean(mean: npt.ArrayLike) -> Array:
    result = np.array(mean, dtype=np.float64)
    if not np.all((result >= 0) & (result <= 1)):
        raise ValueError(f"initial_mean: expected numbers in [0, 1], found {result.tolist()}")
    return result

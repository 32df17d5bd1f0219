from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm

from paploss.search.ppo2 import (
    PPO2,
    Array,
    Policy,
    clipped_objective,
    next_mean,
    scheduled_sigma,
    truncated_normal_log_density,
    truncated_normal_quantile,
    truncated_normal_score,
)

fractions = st.floats(0, 1)
# Down to widths where all but a few of the numbers in [0, 1] are far out in a tail.
sigmas = st.floats(-4, 1).map(lambda exponent: 10.0**exponent)
seeds = st.integers(0, 2**32 - 1)


def oracle(mean: Any, sigma: float) -> Any:
    return truncnorm(-mean / sigma, (1 - mean) / sigma, loc=mean, scale=sigma)


# ---------------------------------------------------------------- the truncated normal distribution


@given(x=fractions, mean=fractions, sigma=sigmas)
def test_log_density_is_that_of_scipy(x: float, mean: float, sigma: float) -> None:
    found = truncated_normal_log_density(np.array(x), np.array(mean), sigma)
    np.testing.assert_allclose(found, oracle(mean, sigma).logpdf(x), rtol=1e-10, atol=1e-10)


@given(probability=fractions, mean=fractions, sigma=sigmas)
def test_quantiles_are_those_of_scipy(probability: float, mean: float, sigma: float) -> None:
    found = truncated_normal_quantile(np.array(probability), np.array(mean), sigma)
    np.testing.assert_allclose(found, oracle(mean, sigma).ppf(probability), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sigma", [1e-3, 0.03, 0.1, 0.2, 2.0])
def test_both_tails_are_equally_exact(sigma: float) -> None:
    probability = 0.5 ** np.arange(1, 53)[:, None]
    mean = np.arange(65) / 64
    low = truncated_normal_quantile(probability, mean, sigma)
    high = truncated_normal_quantile(1 - probability, 1 - mean, sigma)
    np.testing.assert_allclose(high, 1 - low, rtol=0, atol=1e-15)


@pytest.mark.parametrize("mean", [0.0, 0.01, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("sigma", [0.2, 1e-3, 1e-9])
def test_samples_follow_the_distribution(mean: float, sigma: float) -> None:
    optimizer = PPO2(5000, sigma=sigma, initial_mean=np.full(5000, mean), seed=1)
    x = optimizer.ask()
    assert x.min() >= 0
    assert x.max() <= 1
    assert (
        kstest((x - mean) / sigma, truncnorm(-mean / sigma, (1 - mean) / sigma).cdf).pvalue > 0.01
    )


@given(x=fractions, mean=st.floats(0.001, 0.999), sigma=sigmas.filter(lambda sigma: sigma > 0.01))
def test_score_is_the_derivative_of_the_log_density(x: float, mean: float, sigma: float) -> None:
    step = 1e-4 * min(sigma, mean, 1 - mean)
    low, high = (
        truncated_normal_log_density(np.array(x), np.array(m), sigma)
        for m in (mean - step, mean + step)
    )
    found = truncated_normal_score(np.array(x), np.array(mean), sigma)
    rounding = 1e-15 * (1 + abs(low)) / step
    np.testing.assert_allclose(found, (high - low) / (2 * step), rtol=1e-6, atol=rounding + 1e-6)


# ---------------------------------------------------------------- the update


def torch_objective(
    mean: torch.Tensor, sigma: float, x: Array, policy: Policy, rewards: Array, clip: float
) -> torch.Tensor:
    """Eq. (11) and its mean as one would write them with torch."""

    def log_density(mean: torch.Tensor, sigma: float) -> torch.Tensor:
        normal = torch.distributions.Normal(mean, sigma)
        mass = normal.cdf(torch.ones_like(mean)) - normal.cdf(torch.zeros_like(mean))
        return normal.log_prob(torch.from_numpy(x)) - mass.log()

    advantages = torch.from_numpy(rewards - rewards.mean())
    log_ratio = log_density(mean, sigma) - log_density(torch.from_numpy(policy.mean), policy.sigma)
    clipped = log_ratio.clamp(np.log(1 - clip), np.log(1 + clip)).sum(1).exp()
    return torch.minimum(log_ratio.sum(1).exp() * advantages, clipped * advantages).mean()


def make_round(seed: int, count: int = 8, dimensions: int = 41) -> tuple[Policy, Array, Array]:
    random = np.random.default_rng(seed)
    policy = Policy(random.uniform(0.05, 0.95, dimensions), float(random.uniform(0.05, 0.3)))
    x = truncated_normal_quantile(random.random((count, dimensions)), *policy)
    return policy, x, random.normal(size=count)


@given(
    seed=seeds,
    count=st.integers(2, 9),
    dimensions=st.integers(1, 12),
    narrower=st.floats(0.5, 1),
    clip=st.floats(0.02, 0.5),
)
def test_objective_and_gradient_are_those_of_autograd(
    seed: int, count: int, dimensions: int, narrower: float, clip: float
) -> None:
    policy, x, rewards = make_round(seed, count, dimensions)
    # Some ratios inside the clip range, some outside.
    noise = np.random.default_rng(seed).normal(size=dimensions)
    mean = (policy.mean + 0.1 * policy.sigma * noise).clip(0.01, 0.99)
    sigma = narrower * policy.sigma
    leaf = torch.tensor(mean, requires_grad=True)
    expected = torch_objective(leaf, sigma, x, policy, rewards, clip)
    expected.backward()
    value, gradient = clipped_objective(
        mean,
        sigma,
        x,
        truncated_normal_log_density(x, *policy),
        rewards - rewards.mean(),
        clip=clip,
    )
    assert leaf.grad is not None
    np.testing.assert_allclose(value, expected.item(), rtol=1e-9, atol=1e-12)
    scale = np.abs(leaf.grad.numpy()).max()
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-8, atol=1e-9 * scale + 1e-12)


@settings(max_examples=5)
@given(seed=seeds, narrower=st.sampled_from([1.0, 0.9]))
def test_next_mean_is_that_of_torchs_adam(seed: int, narrower: float) -> None:
    policy, x, rewards = make_round(seed, dimensions=6)
    sigma = narrower * policy.sigma
    z = torch.logit(torch.tensor(policy.mean)).requires_grad_()
    adam = torch.optim.Adam([z], lr=0.01, maximize=True)
    warm_up = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min((step + 1) / 30, 1))
    for _ in range(100):
        adam.zero_grad()
        torch_objective(z.sigmoid(), sigma, x, policy, rewards, 0.1).backward()
        adam.step()
        warm_up.step()
    found = next_mean(policy, x, rewards, sigma, clip=0.1)
    np.testing.assert_allclose(found, z.sigmoid().detach().numpy(), atol=1e-7)


@settings(max_examples=30)
@given(
    seed=seeds,
    exponent=st.floats(-9, 0),
    following=st.floats(0.01, 100),
    edge=fractions,
    from_policy=st.booleans(),
)
def test_next_mean_stays_a_mean_at_any_width(
    seed: int, exponent: float, following: float, edge: float, from_policy: bool
) -> None:
    """Also where ratios of densities would overflow; warnings of numpy are errors in these tests."""
    random = np.random.default_rng(seed)
    policy = Policy(np.array([0.0, 1.0, edge, random.random()]), 10**exponent)
    x = random.random((4, 4))
    if from_policy:
        x = truncated_normal_quantile(x, *policy)
    found = next_mean(policy, x, random.normal(size=4), following * policy.sigma, clip=0.1)
    assert np.all((found >= 0) & (found <= 1))


def test_the_mean_can_leave_the_edge() -> None:
    policy = Policy(np.array([0.0, 1.0]), 0.2)
    x = np.array([[0.1, 0.9], [0.3, 0.7]])
    found = next_mean(policy, x, np.array([0.0, 1.0]), 0.2, clip=0.1)
    assert found[0] > 2e-4
    assert found[1] < 1 - 2e-4


@settings(max_examples=20)
@given(seed=seeds)
def test_the_mean_moves_to_better_samples(seed: int) -> None:
    low, high = np.sort(np.random.default_rng(seed).uniform(0, 1, 2))
    policy = Policy(np.array([(low + high) / 2]), 0.2)
    x = np.array([[low], [high]])
    assert next_mean(policy, x, np.array([0.0, 1.0]), 0.2, clip=0.1) > policy.mean
    assert next_mean(policy, x, np.array([1.0, 0.0]), 0.2, clip=0.1) < policy.mean


@settings(max_examples=10)
@given(seed=seeds, shift=st.integers(-10, 10))
def test_only_differences_of_rewards_count(seed: int, shift: int) -> None:
    policy, x, rewards = make_round(seed, dimensions=3)
    found = next_mean(policy, x, rewards + shift, policy.sigma, clip=0.1)
    expected = next_mean(policy, x, rewards, policy.sigma, clip=0.1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_equal_rewards_leave_the_mean_where_it_is() -> None:
    policy, x, _ = make_round(0)
    # The mean of eight times 0.1 is not 0.1.
    found = next_mean(policy, x, np.full(8, 0.1), 0.9 * policy.sigma, clip=0.1)
    assert found.tolist() == policy.mean.tolist()


def test_a_component_that_samples_do_not_have_has_no_effect() -> None:
    policy, x, rewards = make_round(0, dimensions=5)
    x[:, 2] = np.nan
    found = next_mean(policy, x, rewards, policy.sigma, clip=0.1)
    without = Policy(np.delete(policy.mean, 2), policy.sigma)
    expected = next_mean(without, np.delete(x, 2, 1), rewards, policy.sigma, clip=0.1)
    np.testing.assert_allclose(np.delete(found, 2), expected, rtol=1e-12)
    np.testing.assert_allclose(found[2], policy.mean[2], rtol=1e-12)


# ---------------------------------------------------------------- ask and tell


def tell_round(optimizer: PPO2, optimum: float = 0.8) -> list[tuple[Array, float]]:
    x = [optimizer.ask() for _ in range(optimizer.samples_per_round)]
    told = [(sample, -float(((sample - optimum) ** 2).sum())) for sample in x]
    optimizer.tell(told)
    return told


def test_sigma_falls_linearly_to_the_last_round() -> None:
    assert [scheduled_sigma(t, 4, 0.2) for t in range(1, 7)] == pytest.approx(
        [0.2, 0.15, 0.1, 0.05, 0.05, 0.05]
    )
    optimizer = PPO2(2, rounds=4, seed=0)
    found = []
    for _ in range(4):
        found.append(optimizer.policy.sigma)
        tell_round(optimizer)
    assert found == pytest.approx([0.2, 0.15, 0.1, 0.05])


def test_raised_rounds_change_the_rounds_to_come_only() -> None:
    optimizer = PPO2(2, rounds=2, seed=0)
    tell_round(optimizer)
    optimizer.ask()
    optimizer.rounds = 8
    assert optimizer.policy.sigma == 0.1  # begun
    tell_round(optimizer)
    assert optimizer.round == 3
    assert optimizer.policy.sigma == pytest.approx(0.2 * 6 / 8)


def test_a_sample_follows_from_seed_round_and_index() -> None:
    optimizer, other = PPO2(41, seed=3), PPO2(41, seed=3)
    tell_round(optimizer)
    tell_round(other)
    in_order = [optimizer.ask() for _ in range(8)]
    for index in (5, 0, 7, 3):
        assert other.ask(index).tolist() == in_order[index].tolist()
    assert other.ask().tolist() == in_order[0].tolist()
    assert len({tuple(x) for x in in_order}) == 8
    assert PPO2(41, seed=4).ask().tolist() != PPO2(41, seed=3).ask().tolist()
    assert PPO2(41).ask().tolist() != PPO2(41).ask().tolist()


def test_the_order_of_told_samples_does_not_matter() -> None:
    optimizer, other = PPO2(41, seed=3), PPO2(41, seed=3)
    told = tell_round(optimizer)
    other.tell([told[k] for k in (7, 2, 5, 0, 1, 6, 4, 3)])
    assert other.policy.mean.tolist() == optimizer.policy.mean.tolist()


def test_best_is_the_sample_of_the_highest_reward() -> None:
    optimizer = PPO2(2, samples_per_round=2, seed=0)
    with pytest.raises(ValueError, match="best: no samples"):
        _ = optimizer.best
    optimizer.tell([([0.1, 0.2], 1.0), ([0.3, 0.4], 3.0)])
    optimizer.tell([([0.5, 0.6], 2.0), ([0.7, 0.8], -5.0)])
    assert optimizer.best.reward == 3
    assert optimizer.best.x.tolist() == [0.3, 0.4]


@pytest.mark.parametrize("next_sigma", [True, False])
def test_improves_on_its_start_in_41_dimensions(next_sigma: bool) -> None:
    random = np.random.default_rng(0)
    optimum = random.uniform(0.1, 0.9, 41)

    def value(x: Array) -> float:
        return float(np.exp(-((x - optimum) ** 2).sum() / 2))

    optimizer = PPO2(41, rounds=20, next_sigma=next_sigma, seed=0)
    start = value(optimizer.policy.mean)
    for _ in range(20):
        x = [optimizer.ask() for _ in range(8)]
        optimizer.tell([(sample, value(sample) + 0.02 * random.normal()) for sample in x])
    assert value(optimizer.best.x) > start + 0.15
    assert value(optimizer.policy.mean) > start + 0.15


# ---------------------------------------------------------------- bad use


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": 0}, "dimensions: expected at least 1, found 0"),
        ({"rounds": 0}, "rounds: expected at least 1, found 0"),
        ({"samples_per_round": 1}, "samples_per_round: expected at least 2, found 1"),
        ({"sigma": 0.0}, "sigma: expected a positive number, found 0.0"),
        ({"sigma": float("nan")}, "sigma: expected a positive number, found nan"),
        ({"clip": 1.0}, "clip: expected a number between 0 and 1, found 1.0"),
        ({"seed": -1}, "seed: expected a number that is not negative, found -1"),
        ({"initial_mean": [0.5]}, r"initial_mean: expected 2 numbers, found shape \(1,\)"),
        ({"initial_mean": [0.5, 1.1]}, r"initial_mean: expected numbers in \[0, 1\], found"),
        ({"initial_mean": [0.5, np.nan]}, r"initial_mean: expected numbers in \[0, 1\], found"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO2(**{"dimensions": 2, **settings})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([([0.1, 0.2], 1.0)], "samples: expected the 2 of a round, found 1"),
        ([([0.1, 0.2], 1.0), ([0.3, 1.4], 2.0)], r"samples: expected 2 numbers in \[0, 1\]"),
        ([([0.1, 0.2], 1.0), ([0.3, np.nan], 2.0)], r"samples: expected 2 numbers in \[0, 1\]"),
        ([([0.1], 1.0), ([0.3], 2.0)], r"samples: expected 2 numbers in \[0, 1\]"),
        ([([0.1, 0.2], 1.0), ([0.3, 0.4], np.nan)], "rewards: expected finite numbers, found"),
        ([([0.1, 0.2], 1.0), ([0.3, 0.4], np.inf)], "rewards: expected finite numbers, found"),
    ],
)
def test_bad_samples_are_named_and_change_nothing(samples: Any, message: str) -> None:
    optimizer = PPO2(2, samples_per_round=2, seed=0)
    with pytest.raises(ValueError, match=message):
        optimizer.tell(samples)
    assert optimizer.round == 1
    assert optimizer.policy.mean.tolist() == [0.5, 0.5]

"""The kernel's parts against plain sums, with weights and with functions that do not end in 0 and 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paploss import LossParameters
from paploss.loss.piecewise_linear import PiecewiseLinear
from paploss.loss.ranking_sums import FunctionTables, RankingSums, look_up
from paploss.loss.reference import normalized_difference

LINEAR = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)])
BENT = PiecewiseLinear([(0.0, 0.0), (0.3, 0.6), (0.7, 0.65), (1.0, 1.0)])
SIGMOID = PiecewiseLinear(LossParameters.substitution("sigmoid").functions[0])


def dense(scores: Tensor, references: Tensor, f: PiecewiseLinear) -> tuple[Tensor, Tensor]:
    """Values f and slopes f' of all differences, (P, N) each; f' per unit of score."""
    difference = scores.double() - references.double()[:, None]
    value, slope = f.value_and_slope(normalized_difference(difference))
    return value, slope / 2 * ((difference >= -1) & (difference < 1))


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.01, 0.7, 30.0]))
def test_sums_and_their_transpose(seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(40, 3, generator=generator, dtype=torch.float64) * spread
    references = torch.randn(7, generator=generator, dtype=torch.float64) * spread
    coefficients = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    weights = torch.randn(120, generator=generator, dtype=torch.float64)
    functions = (BENT, SIGMOID)
    ranking = RankingSums(references, FunctionTables(functions))
    intervals, counted = ranking.locate(scores)
    places, weighed = ranking.weigh(scores.flatten(), weights)
    assert torch.equal(intervals.flatten().long(), places)

    values, slopes, in_reach = ranking.sums([counted, weighed])
    table_slopes = ranking.transposed_slopes(coefficients)
    table_values = ranking.transposed_values(coefficients, table_slopes)
    for column, (f, w) in enumerate(zip(functions, (torch.ones(120), weights), strict=True)):
        value, slope = dense(scores.flatten(), references, f)
        torch.testing.assert_close(values[column], value @ w.double())
        torch.testing.assert_close(slopes[column], slope @ w.double())
        difference = scores.flatten() - references[:, None]
        within = ((difference >= -1) & (difference < 1)).double()
        torch.testing.assert_close(in_reach[column], within @ w.double())
        torch.testing.assert_close(
            look_up(table_slopes[column], intervals).flatten(), coefficients[column] @ slope
        )
        torch.testing.assert_close(
            ranking.at_scores(table_values[column], table_slopes[column], scores.flatten(), places),
            coefficients[column] @ value,
        )


def test_large_input_in_parts_equals_searching_every_score(kernel: str) -> None:
    """Enough scores for several chunks and threads, knots and scores of the same precision."""
    references = torch.randn(200)
    ranking = RankingSums(references, FunctionTables([BENT, LINEAR]))
    scores = torch.randn(70_000, 8)
    scores[:200, 0] = references  # exact hits
    scores[200:400, 1] = references + 1
    ignored = torch.rand(len(scores)) < 0.1
    for given_scores in (scores, scores.double(), scores.half(), scores.T.contiguous().T):
        intervals, histogram = ranking.locate(given_scores, ignored)
        expected = torch.bucketize(given_scores.double().contiguous(), ranking.knots, right=True)
        expected[ignored] = len(ranking.knots) + 1
        assert torch.equal(intervals.long(), expected)
        kept = expected[~ignored].flatten()
        counts, summed = histogram
        assert torch.equal(counts, kept.bincount(minlength=len(ranking.knots) + 1).double())
        distances = torch.zeros_like(counts).index_add_(
            0, kept, given_scores[~ignored].double().flatten() - ranking._left[kept]
        )
        torch.testing.assert_close(summed, distances)


def test_an_outlier_among_the_references_costs_no_exactness(kernel: str) -> None:
    references = torch.tensor([0.0, 0.1, 1e6])
    ranking = RankingSums(references, FunctionTables([BENT]))
    scores = torch.linspace(-3, 3, 5000)[:, None]
    intervals, _ = ranking.locate(scores)
    assert torch.equal(
        intervals.long(), torch.bucketize(scores.double(), ranking.knots, right=True)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_look_up(dtype: torch.dtype, kernel: str) -> None:
    table = torch.randn(100).to(dtype)
    intervals = torch.randint(100, (40_000, 2), dtype=torch.int32)
    assert torch.equal(look_up(table, intervals), table[intervals.long()])
    assert torch.equal(look_up(table, intervals.short()), table[intervals.long()])

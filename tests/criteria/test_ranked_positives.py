"""The kernel's part that the error-driven losses add: a margin, and transposed sums at all scores."""

from __future__ import annotations

import pytest
import torch

from paploss.loss.piecewise_linear import PiecewiseLinear
from paploss.loss.ranking_sums import FunctionTables, RankingSums

BENT = PiecewiseLinear([(0.0, 0.2), (0.3, 0.6), (0.7, 0.65), (1.0, 0.9)])
LINEAR = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)])


@pytest.mark.parametrize("margin", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_values_at_all_scores(
    margin: float, dtype: torch.dtype, offset: float, kernel: str
) -> None:
    scores = (torch.randn(500, 7) * 2 + offset).to(dtype)
    references = torch.cat([scores[:9, 0], scores[:3, 0]])  # some twice
    ignored = torch.rand(500) < 0.3
    coefficients = torch.rand(2, 12, dtype=torch.float64)
    ranking = RankingSums(references, FunctionTables([BENT, LINEAR], margin))
    intervals, histogram = ranking.locate(scores, ignored)
    scores[ignored] = torch.nan  # must not matter

    difference = scores.double()[..., None] - references.double()  # (N, C, P)
    x = (difference / margin).clamp(-1, 1) / 2 + 0.5
    values = torch.stack([BENT(x), LINEAR(x)])  # (2, N, C, P)
    kept = values[:, ~ignored]
    expected = torch.einsum("fncp,fp->nc", kept, coefficients)
    found = ranking.values_at(coefficients, scores, intervals)
    assert found.dtype == dtype
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-6, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(found[~ignored].double(), expected, rtol=tolerance, atol=tolerance)
    assert not found[ignored].any()
    torch.testing.assert_close(ranking.sums([histogram] * 2).values, kept.sum((1, 2)))


def test_several_histograms_for_one_function() -> None:
    scores = torch.randn(30, 2)
    ranking = RankingSums(scores[:4, 0], FunctionTables([LINEAR]))
    _, histogram = ranking.locate(scores)
    once = ranking.sums([histogram]).values
    assert torch.allclose(
        ranking.sums([histogram, 2 * histogram]).values, once * torch.tensor([[1.0], [2.0]])
    )

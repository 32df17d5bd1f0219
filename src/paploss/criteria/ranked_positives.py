"""Error-driven ranking losses: the places of the positives among all scores, and given gradients.

AP Loss, aLRP Loss and Rank & Sort Loss share a scheme. The step "score j is above score i" is made
soft, ``H(d) = clip(d / (2 margin) + 1/2, 0, 1)``, and each positive i gets an error from how many
scores are above it. No derivative is taken. Instead the error itself pulls i up, and pushes down
the negatives that caused it, in proportion to their H(s_j - s_i):

    gradient of positive i   = - error_i / |P|
    gradient of negative j   = sum_i  error_i / FP_i * H(s_j - s_i) / |P|,   FP_i = sum_j H(s_j - s_i)

H is piecewise linear, so both directions are sums of `RankingSums`: time and memory grow linearly
with the number of scores.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paploss.loss.parameterized_ap import Positives
from paploss.loss.piecewise_linear import PiecewiseLinear
from paploss.loss.ranking_sums import FunctionTables, RankingSums


@lru_cache(maxsize=16)
def _soft_step(margin: float, device: torch.device) -> FunctionTables:
    return FunctionTables([PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)], device)], margin)


class RankedPositives:
    """Where each positive stands among all scores of a batch.

    Args:
        logits: (N, C).
        positives: at least one.
        margin: score difference from which one score counts as wholly above the other.

    Attributes:
        scores: (P,) of the positives, float64.
        positives_above: (P,) ``sum_j H(s_j - s_i)`` over the positives, i itself counted as 1/2.
        false_positives: (P,) the same over all negatives. NaN if a score is NaN or infinite.
    """

    def __init__(self, logits: Tensor, positives: Positives, margin: float) -> None:
        logits = logits.detach()
        self.positives = positives
        self.scores = logits[positives.rows, positives.classes].double()
        self._ranking = RankingSums(self.scores, _soft_step(margin, logits.device))
        self._intervals, everything = self._ranking.locate(logits, positives.ignored_rows)
        _, alike = self._ranking.weigh(self.scores, torch.ones_like(self.scores))
        self.positives_above, above = self._ranking.sums([alike, everything - alike]).values
        self.false_positives = above.clamp(min=0) + everything.sum() * 0

    def weighted_above(self, weights: Tensor) -> Tensor:
        """``sum_j w_j H(s_j - s_i)`` over the positives, i itself counted as 1/2; (P,) -> (P,)."""
        _, histogram = self._ranking.weigh(self.scores, weights.double())
        return self._ranking.sums([histogram]).values[0]

    def spread(self, shares: Tensor, logits: Tensor) -> Tensor:
        """``sum_i shares_i H(s_j - s_i)`` for every score j of the batch; (P,) -> (N, C)."""
        return self._ranking.values_at(shares[None], logits, self._intervals)


class _ErrorDriven(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, loss: Tensor, errors: Tensor, shares: Tensor, ranked: Any
    ) -> Tensor:
        ctx.save_for_backward(logits, errors, shares)
        ctx.ranked = ranked
        return loss.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, errors, shares = ctx.saved_tensors
        rows, classes, _ = ctx.ranked.positives
        scale = grad.double() / len(errors)
        grad_logits = ctx.ranked.spread(shares * scale, logits)
        grad_logits[rows, classes] = (-errors * scale).to(logits.dtype)
        return grad_logits, None, None, None, None


def error_driven_loss(
    logits: Tensor, loss: Tensor, errors: Tensor, ranked: RankedPositives, smallest: float = 1e-10
) -> Tensor:
    """A loss of known value whose gradients are the errors of the positives, as described above.

    Args:
        logits: (N, C), with gradient.
        loss: the value, a scalar.
        errors: (P,).
        ranked: the positives of these logits.
        smallest: errors with fewer false positives than this have no cause, and no effect.
    """
    caused = ranked.false_positives > smallest
    shares = torch.where(caused, errors / ranked.false_positives, 0.0)
    errors = torch.where(caused, errors, 0.0)
    result: Tensor = _ErrorDriven.apply(logits, loss, errors, shares, ranked)
    return result

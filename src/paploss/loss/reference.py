"""The dense formula, term by term as in eq. (6): for tests and readers, not for training."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.loss.parameters import LossParameters
from paploss.loss.piecewise_linear import PiecewiseLinear


def normalized_difference(difference: Tensor) -> Tensor:
    """g(d) = clip(d, -1, 1) / 2 + 1/2; at a corner the slope is that of the right side."""
    sloped = (difference >= -1) & (difference < 1)
    return torch.where(sloped, difference, difference.detach().clamp(-1, 1)) / 2 + 0.5


def parameterized_ap_loss_reference(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor,
    parameters: LossParameters,
    *,
    block_denominator_gradient: bool = True,
) -> Tensor:
    """Same arguments and result as `paploss.parameterized_ap_loss`, with P x N matrices."""
    f1, f2, f3, f4, f5 = (PiecewiseLinear(f, logits.device) for f in parameters.functions)
    kept = labels != -2
    logits, labels, quality = logits[kept].double(), labels[kept], quality[kept].double()
    classes = torch.arange(logits.shape[1], device=logits.device)
    positive = labels[:, None] == classes  # (N, C)
    if not positive.any():
        return logits.sum() * 0 + quality[:0].sum()
    l = torch.where(positive, quality[:, None], 0.0).flatten()  # noqa: E741  the paper's l(b_j)
    s = logits.flatten()  # (B,)
    i = positive.flatten().nonzero().squeeze(1)  # (P,) indices of the positives
    x = normalized_difference(s - s[i, None])  # (P, B)
    others = (torch.arange(len(s), device=s.device) != i[:, None]).double()  # j != i
    numerator = (f2(x) * (1 - f3(l)) * others).sum(1)
    denominator = 1 + (f4(x) * others).sum(1)
    if block_denominator_gradient:
        denominator = denominator.detach()
    average_precision = (f1(l[i]) - numerator / denominator * f5(l[i])).mean()
    return 1 - average_precision

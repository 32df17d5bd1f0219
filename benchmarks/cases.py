"""Scores like those a detector produces early and late in training, and the losses to compare."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from paploss import load_preset, parameterized_ap_loss
from paploss.loss.parameters import Points

CLASSES = 80
PARAMETERS = load_preset("retinanet-r50-fpn-coco")


def make_case(scores: int, positives: int, phase: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (N, 80), labels, quality. Early: every negative is within the margin of the positives."""
    generator = torch.Generator().manual_seed(0)
    rows = scores // CLASSES
    logits = torch.randn(rows, CLASSES, generator=generator)
    labels = torch.full((rows,), -1)
    chosen = torch.randperm(rows, generator=generator)[:positives]
    labels[chosen] = torch.randint(CLASSES, (positives,), generator=generator)
    if phase == "early":
        logits = logits * 0.3 - 4.6
    else:  # 1 of 1,000 negatives is hard, the rest far below
        hard = torch.rand(rows, CLASSES, generator=generator) < 1e-3
        logits = torch.where(hard, logits - 1, logits - 9)
        logits[chosen, labels[chosen]] += 9
    quality = torch.rand(rows, generator=generator)
    return logits, labels, quality


def paploss_step(logits: Tensor, labels: Tensor, quality: Tensor) -> None:
    parameterized_ap_loss(logits, labels, quality, PARAMETERS).backward()


def dense_step(logits: Tensor, labels: Tensor, quality: Tensor) -> None:
    """Equation (6) with P x N matrices in float32, as in the authors' released code."""
    f1, f2, f3, f4, f5 = (_dense_function(points) for points in PARAMETERS.functions)
    rows = (labels >= 0).nonzero().squeeze(1)
    scores, box = logits[rows, labels[rows]], quality[rows]
    weights = torch.ones_like(logits)
    weights[rows, labels[rows]] = 1 - f3(box)
    x = (logits.flatten() - scores[:, None]).clamp(-1, 1) / 2 + 0.5  # (P, N)
    with torch.no_grad():
        denominator = 1 + f4(x).sum(1) - f4(torch.tensor(0.5))
        own = f2(torch.tensor(0.5)) * (1 - f3(box))
    numerator = (f2(x) * weights.flatten()).sum(1) - own
    (1 - (f1(box) - numerator / denominator * f5(box)).mean()).backward()


def _dense_function(points: Points) -> Callable[[Tensor], Tensor]:
    x, y = torch.tensor(points).T.contiguous()
    slopes = y.diff() / x.diff()

    def function(value: Tensor) -> Tensor:
        segment = torch.bucketize(value.detach(), x[1:-1].contiguous(), right=True)
        return y[segment] + slopes[segment] * (value - x[segment])

    return function


def focal_step(logits: Tensor, labels: Tensor, quality: Tensor) -> None:
    targets = torch.zeros_like(logits)
    positive = (labels >= 0).nonzero().squeeze(1)
    targets[positive, labels[positive]] = 1
    sigmoid_focal_loss(logits, targets, reduction="sum").backward()


def ap_loop_step(logits: Tensor, labels: Tensor, quality: Tensor) -> None:
    """AP loss of Chen et al. as its definition reads: a loop over the positives, ascending."""
    with torch.no_grad():
        positive = (labels >= 0).nonzero().squeeze(1)
        is_positive = torch.zeros_like(logits, dtype=torch.bool)
        is_positive[positive, labels[positive]] = True
        scores, order = logits[is_positive].sort()
        relevant = ~is_positive & (logits >= scores[0] - 1)
        negatives = logits[relevant]
        negative_gradient = torch.zeros_like(negatives)
        precisions = torch.zeros_like(scores)
        highest = 0.0
        for index, score in enumerate(scores):
            above_positives = ((scores - score) / 2 + 0.5).clamp(0, 1)
            above_positives[index] = 1
            above = ((negatives - score) / 2 + 0.5).clamp(0, 1)
            rank_of_positive = above_positives.sum()
            rank = rank_of_positive + above.sum()
            precision = rank_of_positive / rank
            above /= rank
            if precision <= highest:
                above *= (1 - highest) / (1 - precision)
            highest = max(highest, float(precision))
            precisions[index] = highest
            negative_gradient += above
        gradient = torch.zeros_like(logits)
        gradient[relevant] = negative_gradient / len(scores)
        positive_gradient = torch.empty_like(precisions)
        positive_gradient[order] = (precisions - 1) / len(scores)
        gradient[is_positive] = positive_gradient
    (logits * gradient).sum().backward()


Step = Callable[[Tensor, Tensor, Tensor], None]
STEPS: dict[str, Step] = {
    "paploss": paploss_step,
    "focal": focal_step,
    "dense": dense_step,
    "ap loop": ap_loop_step,
}

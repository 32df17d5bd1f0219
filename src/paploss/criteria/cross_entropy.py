"""Softmax cross entropy, background as one more class, with a box loss beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paploss.criteria.box_regression import BoxLoss
from paploss.criteria.criterion import Criterion
from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import IGNORED, Positives, at_least_float32

# Two-stage detectors divide by all sampled rows, positive or not; GIoU then has a weight of 10.
USUAL_WEIGHTS = {"l1": 1.0, "giou": 10.0}
_LEFT_OUT = -100  # what PyTorch ignores


class CrossEntropyCriterion(Criterion):
    """Cross entropy and a box loss of the positives, both divided by the rows not ignored.

    How many background rows take part is the detector's choice: it samples, or it does not.

    Args:
        box_loss: ``l1`` or ``giou``.
        box_weight: factor of the box loss; 1 for ``l1``, 10 for ``giou`` by default.

    Shape:
        logits (N, C + 1), see `MatchedPredictions`; losses ``cross_entropy`` and ``box``.
    """

    score = "softmax"
    ranking = False

    def __init__(self, box_loss: str = "l1", *, box_weight: float | None = None) -> None:
        super().__init__()
        self.box_loss = BoxLoss(box_loss, box_weight, USUAL_WEIGHTS)

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        losses = row_cross_entropy(matched)
        return {
            "cross_entropy": losses.sum() / rows_that_count(matched.labels),
            "box": self.box_loss(matched, rows_that_count(matched.labels)),
        }

    def extra_repr(self) -> str:
        return str(self.box_loss)


def row_cross_entropy(matched: MatchedPredictions) -> Tensor:
    """Cross entropy of each row, (N,); the last column is background; 0 for ignored rows."""
    background = matched.logits.shape[1] - 1
    targets = torch.where(matched.labels < 0, background, matched.labels)
    targets = targets.masked_fill(matched.labels == IGNORED, _LEFT_OUT)
    return functional.cross_entropy(
        at_least_float32(matched.logits), targets, ignore_index=_LEFT_OUT, reduction="none"
    )


def rows_that_count(labels: Tensor) -> Tensor:
    """How many rows are not ignored, at least 1."""
    return (labels != IGNORED).sum().clamp(min=1)

"""Focal loss (Lin et al. 2017) with a box loss beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from paploss.criteria.box_regression import BoxLoss
from paploss.criteria.criterion import Criterion, positives_or_one
from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import Positives, at_least_float32

# MMDetection's RetinaNet takes L1 as it is and GIoU twice; Deformable DETR adds both.
_USUAL_ALONE = {"l1": 1.0, "giou": 2.0}
_USUAL_TOGETHER = {"l1": 5.0, "giou": 2.0}


class FocalCriterion(Criterion):
    """Sigmoid focal loss of all scores and a box loss of the positives, both per positive.

    Args:
        box_loss: ``l1``, ``giou``, or ``l1+giou`` as in Deformable DETR.
        box_weight: weight of the box loss, by default 1 for ``l1`` and 2 for ``giou``; a factor of
            both where they are added (5 and 2).
        class_weight: factor of the focal loss.
        alpha: weight of positives against 1 - alpha of negatives.
        gamma: how much easy examples are weighed down.

    Shape:
        logits (N, C), see `MatchedPredictions`; losses ``focal`` and ``box``.
    """

    score = "sigmoid"
    ranking = False

    def __init__(
        self,
        box_loss: str = "l1",
        *,
        box_weight: float | None = None,
        class_weight: float = 1.0,
        alpha: float = 0.25,
        gamma: float = 2.0,
    ) -> None:
        super().__init__()
        usual = _USUAL_TOGETHER if "+" in box_loss else _USUAL_ALONE
        self.box_loss = BoxLoss(box_loss, box_weight, usual)
        self.class_weight = class_weight
        self.alpha = alpha
        self.gamma = gamma

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        logits = at_least_float32(matched.logits)
        targets = torch.zeros_like(logits)
        targets[positives.rows, positives.classes] = 1
        losses: Tensor = sigmoid_focal_loss(logits, targets, alpha=self.alpha, gamma=self.gamma)
        rows = losses.sum(1)
        if positives.ignored_rows is not None:  # left out here, (N,), not as a copy of the logits
            rows = rows.masked_fill(positives.ignored_rows, 0.0)
        count = positives_or_one(positives)
        return {
            "focal": self.class_weight * rows.sum() / count,
            "box": self.box_loss(matched, count),
        }

    def extra_repr(self) -> str:
        return (
            f"{self.box_loss}, class_weight={self.class_weight:g}, "
            f"alpha={self.alpha:g}, gamma={self.gamma:g}"
        )

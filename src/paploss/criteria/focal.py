"""Focal loss (Lin et al. 2017) with a box loss beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from paploss.criteria.box_regression import BoxLoss
from paploss.criteria.criterion import Criterion, per_positive
from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import Positives, at_least_float32


class FocalCriterion(Criterion):
    """Sigmoid focal loss of all scores and a box loss of the positives, both per positive.

    Args:
        box_loss: ``l1`` or ``giou``.
        box_weight: factor of the box loss; 1 for ``l1``, 2 for ``giou`` by default.
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
        alpha: float = 0.25,
        gamma: float = 2.0,
    ) -> None:
        super().__init__()
        self.box_loss = BoxLoss(box_loss, box_weight)
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
        return {"focal": per_positive(rows.sum(), positives), "box": self.box_loss(matched)}

    def extra_repr(self) -> str:
        return (
            f"box_loss={self.box_loss.name}, box_weight={self.box_loss.weight}, "
            f"alpha={self.alpha}, gamma={self.gamma}"
        )

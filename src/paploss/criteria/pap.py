"""Parameterized AP Loss as a criterion: one loss for both branches."""

from __future__ import annotations

from torch import Tensor

from paploss.criteria.criterion import Criterion
from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import ParameterizedAPLoss, Positives
from paploss.loss.parameters import LossParameters


class ParameterizedAPCriterion(Criterion):
    """`ParameterizedAPLoss` over matched predictions.

    Args:
        parameters: the loss's shape; its gradient scale acts on the predicted boxes.
        localization: ``giou``, ``iou`` or ``l1``.
        block_denominator_gradient: as in `parameterized_ap_loss`.

    Shape:
        logits (N, C), see `MatchedPredictions`; loss ``pap``.
    """

    score = "sigmoid"
    ranking = True

    def __init__(
        self,
        parameters: LossParameters,
        localization: str = "giou",
        *,
        block_denominator_gradient: bool = True,
    ) -> None:
        super().__init__()
        self.loss = ParameterizedAPLoss(
            parameters, localization, block_denominator_gradient=block_denominator_gradient
        )

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        loss = self.loss.of_positives(
            matched.logits, positives, matched.predicted_boxes, matched.target_boxes
        )
        return {"pap": loss}

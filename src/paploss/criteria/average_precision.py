"""AP Loss (Chen et al. 2019): one minus average precision, trained by error-driven updates."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.criteria.box_regression import BoxLoss
from paploss.criteria.criterion import Criterion, positives_or_one
from paploss.criteria.matched import MatchedPredictions
from paploss.criteria.ranked_positives import RankedPositives, error_driven_loss
from paploss.loss.parameterized_ap import Positives, not_traced, nothing_to_rank

_USUAL = {"l1": 1.0, "giou": 2.0}


class AveragePrecisionCriterion(Criterion):
    """AP Loss of the scores and a box loss per positive.

    Args:
        box_loss: ``l1`` or ``giou``.
        box_weight: factor of the box loss; 1 for ``l1``, 2 for ``giou`` by default.
        margin: score difference from which one score counts as wholly above the other.

    Shape:
        logits (N, C), see `MatchedPredictions`; losses ``ap`` and ``box``.
    """

    score = "sigmoid"
    ranking = True

    def __init__(
        self, box_loss: str = "l1", *, box_weight: float | None = None, margin: float = 1.0
    ) -> None:
        super().__init__()
        self.box_loss = BoxLoss(box_loss, box_weight, _USUAL)
        self.margin = margin

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        return {
            "ap": average_precision_loss(matched.logits, positives, margin=self.margin),
            "box": self.box_loss(matched, positives_or_one(positives)),
        }

    def extra_repr(self) -> str:
        return str(self.box_loss)


@not_traced
def average_precision_loss(logits: Tensor, positives: Positives, *, margin: float = 1.0) -> Tensor:
    """1 - mean interpolated precision of the positives.

    The precision of positive i is rank+_i / (rank+_i + FP_i), where rank+_i counts i itself as 1.
    Interpolated, it is the highest precision at any score not above s_i, since a lower threshold
    with a better precision has a better recall too.

    Args:
        logits: (N, C).
        positives: from `find_positives`.
        margin: of the soft step.
    """
    if len(positives.rows) == 0:
        return nothing_to_rank(logits, logits)
    with torch.no_grad():
        ranked = RankedPositives(logits, positives, margin)
        among_positives = ranked.positives_above + 0.5
        errors = ranked.false_positives / (
            among_positives + ranked.false_positives
        )  # 1 - precision
        ascending = ranked.scores.argsort(stable=True)
        # The released loop scales the negatives' part by (1 - interpolated) / (1 - precision): that
        # is to spread the interpolated error in the same proportions.
        interpolated = torch.empty_like(errors)
        interpolated[ascending] = errors[ascending].cummin(0).values
        loss = interpolated.mean()
    return error_driven_loss(logits, loss, interpolated, ranked)

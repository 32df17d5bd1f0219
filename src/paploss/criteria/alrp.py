"""aLRP Loss (Oksuz et al. 2020): average Localisation-Recall-Precision, for both branches."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.criteria.box_regression import giou_errors
from paploss.criteria.criterion import Criterion
from paploss.criteria.matched import MatchedPredictions
from paploss.criteria.ranked_positives import RankedPositives, error_driven_loss
from paploss.loss.parameterized_ap import Positives, not_traced, nothing_to_rank

_INITIAL_BALANCE = 50.0
_FEWEST_FALSE_POSITIVES = 1e-5  # below, the released code gives no gradient


class ALRPCriterion(Criterion):
    """aLRP Loss: a badly localised positive is an error of all positives ranked below it.

    The box part is multiplied by a self-balance weight: 50 in the first epoch, afterwards the last
    epoch's mean of both parts over that of the box part. `end_epoch` takes that step; who never
    calls it trains with 50. Batches count in training mode, if they have positives. The weight and
    the running sums are in the `state_dict`.

    Args:
        box_weight: one more factor of the box part.
        tau: IoU from which a box counts as found; box errors are measured against 1 - tau.
        margin: score difference from which one score counts as wholly above the other.

    Shape:
        logits (N, C), see `MatchedPredictions`; losses ``alrp_classification`` and ``alrp_box``.
    """

    score = "sigmoid"
    ranking = True
    balance: Tensor
    sums: Tensor

    def __init__(self, *, box_weight: float = 1.0, tau: float = 0.5, margin: float = 1.0) -> None:
        super().__init__()
        self.box_weight = box_weight
        self.tau = tau
        self.margin = margin
        self.register_buffer("balance", torch.tensor(_INITIAL_BALANCE))
        self.register_buffer("sums", torch.zeros(2))  # of both parts since the epoch began

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        box_errors = giou_errors(matched) / 2 / (1 - self.tau)
        classification, box = alrp_loss(matched.logits, positives, box_errors, margin=self.margin)
        if self.training:
            with torch.no_grad():
                parts = torch.stack([classification.to(self.sums), box.to(self.sums)])
                self.sums += torch.where(parts.isfinite().all(), parts, 0.0)
        return {
            "alrp_classification": classification,
            "alrp_box": box * (self.box_weight * self.balance.to(box.device)),
        }

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Set the self-balance weight from the epoch that ends, and start to count anew."""
        if self.sums[1] > 0:
            self.balance.copy_(self.sums.sum() / self.sums[1])
        self.sums.zero_()

    def extra_repr(self) -> str:
        return f"box_weight={self.box_weight}, tau={self.tau}"


@not_traced
def alrp_loss(
    logits: Tensor, positives: Positives, box_errors: Tensor, *, margin: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Classification and box part of the aLRP Loss, without self-balance.

    With rank_i = rank+_i + FP_i, the classification part has the value mean FP_i / rank_i and the
    error-driven gradients of ``(FP_i + sum_{j != i} H(s_j - s_i) E_j) / rank_i``: positives above i
    in the ranking should be well localised. The box part is the mean over i of the sum of E_j over
    the positives scored at least as high, divided by rank_i, differentiable in E.

    Args:
        logits: (N, C).
        positives: from `find_positives`.
        box_errors: (P,) E_i, with gradient.
        margin: of the soft step.
    """
    if len(positives.rows) == 0:
        return nothing_to_rank(logits, logits), box_errors.sum()
    with torch.no_grad():
        ranked = RankedPositives(logits, positives, margin)
        rank = ranked.positives_above + 0.5 + ranked.false_positives  # i itself counts as 1
        loss = (ranked.false_positives / rank).mean()
        misplaced = ranked.weighted_above(box_errors) - 0.5 * box_errors  # without j = i
        errors = (ranked.false_positives + misplaced) / rank
        # Of positives with the same score, the first in the batch is taken as the higher one.
        descending = ranked.scores.argsort(descending=True, stable=True)
    classification = error_driven_loss(logits, loss, errors, ranked, _FEWEST_FALSE_POSITIVES)
    box = (box_errors[descending].cumsum(0) / rank[descending].to(box_errors.dtype)).mean()
    return classification, box

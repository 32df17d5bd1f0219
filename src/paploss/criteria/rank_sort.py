"""Rank & Sort Loss (Oksuz et al. 2021): positives above negatives, better boxes above worse ones."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.criteria.box_regression import giou_errors
from paploss.criteria.criterion import Criterion
from paploss.criteria.matched import MatchedPredictions
from paploss.criteria.ranked_positives import RankedPositives, error_driven_loss
from paploss.loss.localization import iou_quality
from paploss.loss.parameterized_ap import Positives, at_least_float32, not_traced, nothing_to_rank

_MARGIN = 0.5
_SMALLEST = 1e-10  # soft counts below this are none


class RankSortCriterion(Criterion):
    """Rank & Sort Loss of the scores, and a GIoU loss that is kept as large as it.

    The box loss is a mean over the positives, weighted by their highest class probability (a
    constant), and multiplied by (ranking + sorting) / box, so that both tasks weigh the same.

    Args:
        box_weight: one more factor of the box loss.
        margin: score difference from which one score counts as wholly above the other.

    Shape:
        logits (N, C), see `MatchedPredictions`; losses ``ranking``, ``sorting`` and ``box``.
    """

    score = "sigmoid"
    ranking = True

    def __init__(self, *, box_weight: float = 1.0, margin: float = _MARGIN) -> None:
        super().__init__()
        self.box_weight = box_weight
        self.margin = margin

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        with torch.no_grad():
            iou = iou_quality(
                at_least_float32(matched.predicted_boxes), at_least_float32(matched.target_boxes)
            )
        ranking, sorting = rank_sort_loss(matched.logits, positives, iou, margin=self.margin)
        box = self._box_loss(matched, positives)
        with torch.no_grad():
            # Perfect boxes need no gradient, and would get an infinite one.
            balance = torch.where(box > _SMALLEST, (ranking + sorting) / box, 0.0)
        return {"ranking": ranking, "sorting": sorting, "box": box * balance * self.box_weight}

    def _box_loss(self, matched: MatchedPredictions, positives: Positives) -> Tensor:
        errors = giou_errors(matched)
        with torch.no_grad():
            confidence = at_least_float32(matched.logits[positives.rows]).amax(1).sigmoid()
            # Probabilities may all vanish; positives then count alike.
            confidence = torch.where(confidence.sum() < _SMALLEST, 1.0, confidence)
            weights = confidence / confidence.sum()
        return (errors * weights.to(errors.dtype)).sum()

    def extra_repr(self) -> str:
        return f"box_weight={self.box_weight}, margin={self.margin}"


@not_traced
def rank_sort_loss(
    logits: Tensor, positives: Positives, quality: Tensor, *, margin: float = _MARGIN
) -> tuple[Tensor, Tensor]:
    """Ranking and sorting part, each the mean of an error over the positives.

    Here a positive counts itself as H(0) = 1/2. The ranking error is FP_i / rank_i. The sorting
    error is the mean of 1 - y_j over the positives above i (weights H) minus the same mean over
    those of them that ought to be there, y_j >= y_i. It pulls i up and pushes down the positives
    with y_j < y_i, in proportion to H(s_j - s_i).

    Args:
        logits: (N, C).
        positives: from `find_positives`.
        quality: (P,) y_i, IoU of the predicted boxes; a constant here.
        margin: of the soft step.
    """
    if len(positives.rows) == 0:
        nothing = nothing_to_rank(logits, logits)
        return nothing, nothing
    with torch.no_grad():
        ranked = RankedPositives(logits, positives, margin)
        errors = ranked.false_positives / (ranked.positives_above + ranked.false_positives)
        sorting, by_score = _sorting_part(ranked, quality.double(), margin)
    ranking_loss = error_driven_loss(logits, errors.mean(), errors, ranked)
    # The sorting part concerns the positives alone; its gradients are given, too.
    scores = logits[positives.rows, positives.classes]
    steps = (scores - scores.detach()) * by_score.to(scores.dtype)  # 0
    return ranking_loss, sorting.mean().to(ranking_loss.dtype) + steps.sum(dtype=ranking_loss.dtype)


def _sorting_part(ranked: RankedPositives, quality: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Sorting error of each positive, and the gradient of their mean by its score; (P,) each."""
    count = len(quality)
    ascending, order = quality.sort()
    best_first = order.flip(0)
    no_worse = count - torch.searchsorted(ascending, quality)  # positives with y_j >= y_i
    better = count - torch.searchsorted(ascending, quality, right=True)  # y_j > y_i

    def above(first: Tensor, weights: Tensor) -> Tensor:
        return _sums_over_first(ranked.scores, best_first, first, weights, margin)

    lack = 1 - quality
    rank_in_target, lack_in_target = above(no_worse, torch.stack([torch.ones_like(lack), lack]))
    current = ranked.weighted_above(lack) / ranked.positives_above
    errors = current - lack_in_target / rank_in_target
    missorted = ranked.positives_above - rank_in_target  # sum of H over y_j < y_i
    caused = missorted > _SMALLEST
    errors = torch.where(caused, errors, 0.0)
    shares = torch.where(caused, errors / missorted, 0.0)
    # Of j: sum over i with y_i > y_j of share_i H(s_j - s_i), where H(d) = 1 - H(-d).
    of_better = torch.cat([shares.new_zeros(1), shares[best_first].cumsum(0)]).take(better)
    pushed_down = of_better - above(better, shares[None])[0]
    return errors, (pushed_down - errors) / count


def _sums_over_first(
    scores: Tensor, order: Tensor, first: Tensor, weights: Tensor, margin: float
) -> Tensor:
    """``sum w_j H(s_j - s_i)`` over the first n_i positives of an order, for every positive i.

    The positives, in that order, are cut into blocks of 1, 2, 4, ... and each block is sorted by
    score. A stretch of n is one block for each bit of n, and within a block the sum follows from
    running sums at s_i - margin and s_i + margin. Time P log(P)^2, no P x P matrix.

    Args:
        scores: (P,) s.
        order: (P,) positives in order.
        first: (P,) n_i.
        weights: (W, P) w.
        margin: of H.

    Returns:
        (W, P)
    """
    count = len(scores)
    scores = scores - scores.mean()  # small numbers, small rounding errors
    ascending, by_score = scores.sort()
    place = torch.empty_like(by_score)  # whole numbers that compare as scores do
    place[by_score] = torch.arange(count, device=scores.device)
    opening = torch.searchsorted(ascending, scores - margin)
    closing = torch.searchsorted(ascending, scores + margin)
    ordered = torch.cat([weights, weights * scores]).index_select(1, order)  # (2 W, P)
    place = place[order]
    numbers = torch.arange(count, device=scores.device)
    result = torch.zeros_like(weights)
    for level in range(count.bit_length()):
        whole = count >> level << level  # only whole blocks are ever needed
        keys, within = ((numbers[:whole] >> level) * count + place[:whole]).sort()
        running = torch.nn.functional.pad(ordered.index_select(1, within).cumsum(1), (1, 0))
        needed = (first >> level) & 1 == 1
        block = ((first >> level) - 1).clamp(min=0)
        begin = torch.searchsorted(keys, block * count + opening)
        middle = torch.searchsorted(keys, block * count + closing)
        end = (block + 1 << level).clamp(max=whole)
        below, between, beyond = (running.index_select(1, i).chunk(2) for i in (begin, middle, end))
        inside, moment = between[0] - below[0], between[1] - below[1]
        ramp = (moment - inside * scores) / (2 * margin) + inside / 2
        result += torch.where(needed, ramp + beyond[0] - between[0], 0.0)
    return result

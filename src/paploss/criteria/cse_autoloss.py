"""CSE-AutoLoss-A (Liu et al. 2021), the searched loss of two-stage detectors."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.criteria.criterion import Criterion
from paploss.criteria.cross_entropy import USUAL_WEIGHTS, row_cross_entropy, rows_that_count
from paploss.criteria.matched import MatchedPredictions
from paploss.loss.localization import iou_quality
from paploss.loss.parameterized_ap import Positives, at_least_float32

_SMALLEST_UNION = 1e-7
_SMALLEST_ENCLOSING = 1.0  # a pixel: the formula's -2/e has no lower bound


class CSEAutoLossACriterion(Criterion):
    r"""Cross entropy weighted by IoU, and a searched relative of the GIoU loss.

    .. math::
        L_{cls} = -(1 + \sin(IoU)) \log softmax(x)_y, \qquad
        L_{box} = 1 - \frac{i}{u} + \frac{e - i - 2}{e}

    i, u and e are the areas of the intersection, the union and the enclosing box, **in pixels**
    (the constant 2 gives the formula a unit). IoU is that of the predicted box, a constant for the
    class branch, and 0 for background.

    Args:
        box_weight: factor of the box loss; by default that of GIoU beside cross entropy.

    Shape:
        logits (N, C + 1), see `MatchedPredictions`; losses ``cross_entropy`` and ``box``.
    """

    score = "softmax"
    ranking = False

    def __init__(self, *, box_weight: float = USUAL_WEIGHTS["giou"]) -> None:
        super().__init__()
        self.box_weight = box_weight

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        predicted = at_least_float32(matched.predicted_boxes)
        target = at_least_float32(matched.target_boxes)
        losses = row_cross_entropy(matched)
        with torch.no_grad():
            weights = torch.ones_like(losses)
            iou = iou_quality(predicted, target).to(losses.dtype)
            weights[positives.rows] = 1 + iou.sin()
        rows = rows_that_count(matched.labels)
        return {
            "cross_entropy": (losses * weights).sum() / rows,
            "box": self.box_weight * cse_box_losses(predicted, target).sum() / rows,
        }

    def extra_repr(self) -> str:
        return f"box_weight={self.box_weight}"


def cse_box_losses(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - i/u + (e - i - 2)/e of pairs of boxes in pixels, (P, 4) x (P, 4) -> (P,)."""
    intersection = _area(
        torch.max(predicted[:, :2], target[:, :2]), torch.min(predicted[:, 2:], target[:, 2:])
    )
    enclosing = _area(
        torch.min(predicted[:, :2], target[:, :2]), torch.max(predicted[:, 2:], target[:, 2:])
    ).clamp(min=_SMALLEST_ENCLOSING)
    areas = _area(predicted[:, :2], predicted[:, 2:]) + _area(target[:, :2], target[:, 2:])
    union = (areas - intersection).clamp(min=_SMALLEST_UNION)
    return 1 - intersection / union + (enclosing - intersection - 2) / enclosing


def _area(corner: Tensor, opposite: Tensor) -> Tensor:
    size = (opposite - corner).clamp(min=0)
    return size[:, 0] * size[:, 1]

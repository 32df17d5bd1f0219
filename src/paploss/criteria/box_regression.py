"""Losses of the box branch alone, summed over the positives."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import l1_loss
from torchvision.ops import generalized_box_iou_loss

from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import at_least_float32

# As usual for dense detectors: MMDetection's RetinaNet takes L1 as it is and GIoU twice.
DEFAULT_WEIGHTS = {"l1": 1.0, "giou": 2.0}


def l1_of_deltas(matched: MatchedPredictions) -> Tensor:
    """Sum of absolute differences, in the code of the box branch."""
    return l1_loss(
        at_least_float32(matched.box_deltas),
        at_least_float32(matched.target_deltas),
        reduction="sum",
    )


def giou_of_boxes(matched: MatchedPredictions) -> Tensor:
    """Sum of 1 - GIoU."""
    return giou_errors(matched).sum()


def giou_errors(matched: MatchedPredictions) -> Tensor:
    """1 - GIoU of each positive, (P,), in [0, 2]."""
    errors: Tensor = generalized_box_iou_loss(
        at_least_float32(matched.predicted_boxes), at_least_float32(matched.target_boxes)
    )
    return errors


BOX_LOSSES: dict[str, Callable[[MatchedPredictions], Tensor]] = {
    "l1": l1_of_deltas,
    "giou": giou_of_boxes,
}


class BoxLoss:
    """A box loss by name with its weight.

    Args:
        name: ``l1`` or ``giou``.
        weight: factor; by default 1 for ``l1`` and 2 for ``giou``.
    """

    def __init__(self, name: str, weight: float | None = None) -> None:
        if name not in BOX_LOSSES:
            raise ValueError(f"box_loss: expected one of {', '.join(BOX_LOSSES)}, found {name!r}")
        self.name = name
        self.weight = DEFAULT_WEIGHTS[name] if weight is None else weight

    def __call__(self, matched: MatchedPredictions) -> Tensor:
        """Weighted mean over the positives; 0 in the graph if there are none."""
        total = BOX_LOSSES[self.name](matched)
        return self.weight * total / max(1, len(matched.predicted_boxes))

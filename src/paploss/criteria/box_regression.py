"""Losses of the box branch alone, summed over the positives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import l1_loss
from torchvision.ops import generalized_box_iou_loss

from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import at_least_float32


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
    """One box loss by name, or two added (``l1+giou``), with weights.

    Args:
        name: ``l1``, ``giou`` or ``l1+giou``.
        weight: of the one loss; a factor of both weights where there are two.
        usual: weight of each loss where ``weight`` does not say it.
    """

    def __init__(self, name: str, weight: float | None, usual: Mapping[str, float]) -> None:
        parts = name.split("+")
        if name not in (*BOX_LOSSES, "+".join(BOX_LOSSES)):
            raise ValueError(
                f"box_loss: expected one of {', '.join(BOX_LOSSES)} or "
                f"{'+'.join(BOX_LOSSES)}, found {name!r}"
            )
        self.name = name
        if weight is not None and len(parts) == 1:
            self.weights = {name: weight}
        else:
            factor = 1.0 if weight is None else weight
            self.weights = {part: usual[part] * factor for part in parts}

    def __call__(self, matched: MatchedPredictions, count: int | Tensor) -> Tensor:
        """Weighted sum over the positives divided by a count; 0 in the graph if there are none."""
        parts = [weight * BOX_LOSSES[part](matched) for part, weight in self.weights.items()]
        return torch.stack(parts).sum() / count

    def __repr__(self) -> str:
        weights = "+".join(f"{weight:g}*{part}" for part, weight in self.weights.items())
        return f"box_loss={weights}"

"""Localisation scores l(b): how well predicted boxes fit their targets, as numbers in [0, 1] (eq. 4).

Boxes are ``(x1, y1, x2, y2)`` rows. Everything is elementwise over pairs of rows and differentiable
in the predicted boxes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_TINY = 1e-12  # keeps ratios of degenerate (zero-area) boxes finite, small against normalised boxes


def _area(boxes: Tensor) -> Tensor:
    size = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0)
    return size[:, 0] * size[:, 1]


def _intersection_and_union(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    corner = torch.max(predicted[:, :2], target[:, :2])
    opposite = torch.min(predicted[:, 2:], target[:, 2:])
    intersection = _area(torch.cat([corner, opposite], dim=1))
    return intersection, _area(predicted) + _area(target) - intersection


def iou_quality(predicted: Tensor, target: Tensor) -> Tensor:
    """Intersection over union, (P, 4) x (P, 4) -> (P,)."""
    intersection, union = _intersection_and_union(predicted, target)
    return intersection / union.clamp(min=_TINY)


def giou_quality(predicted: Tensor, target: Tensor) -> Tensor:
    """Generalised IoU rescaled from [-1, 1] to [0, 1], (P, 4) x (P, 4) -> (P,).

    Unlike IoU it still has a slope when the boxes do not touch.
    """
    intersection, union = _intersection_and_union(predicted, target)
    corner = torch.min(predicted[:, :2], target[:, :2])
    opposite = torch.max(predicted[:, 2:], target[:, 2:])
    enclosing = _area(torch.cat([corner, opposite], dim=1))
    giou = intersection / union.clamp(min=_TINY) - (enclosing - union) / enclosing.clamp(min=_TINY)
    return ((giou + 1) / 2).clamp(0, 1)


def l1_quality(predicted: Tensor, target: Tensor) -> Tensor:
    """1 - sum of |corner differences| in units of the target's width and height, clipped to [0, 1].

    Measured against the target box so that it means the same for every detector and object size.
    """
    size = (target[:, 2:] - target[:, :2]).clamp(min=_TINY).repeat(1, 2)
    return (1 - ((predicted - target).abs() / size).sum(dim=1)).clamp(0, 1)


LOCALIZATION_QUALITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "giou": giou_quality,
    "iou": iou_quality,
    "l1": l1_quality,
}

"""Criteria by name."""

from __future__ import annotations

from paploss.criteria.alrp import ALRPCriterion
from paploss.criteria.average_precision import AveragePrecisionCriterion
from paploss.criteria.criterion import Criterion
from paploss.criteria.cross_entropy import CrossEntropyCriterion
from paploss.criteria.cse_autoloss import CSEAutoLossACriterion
from paploss.criteria.focal import FocalCriterion
from paploss.criteria.pap import ParameterizedAPCriterion
from paploss.criteria.rank_sort import RankSortCriterion
from paploss.loss.parameters import LossParameters
from paploss.presets import load_preset

CRITERIA = (
    "pap",
    "focal+l1",
    "focal+giou",
    "ce+l1",
    "ce+giou",
    "ap+l1",
    "alrp",
    "rs",
    "cse-autoloss-a",
)
DEFAULT_PRESET = "retinanet-r50-fpn-coco-tied"


def build_criterion(
    name: str,
    *,
    parameters: LossParameters | None = None,
    localization: str = "giou",
    box_weight: float | None = None,
) -> Criterion:
    """A criterion by its name.

    Args:
        name: one of `CRITERIA`.
        parameters: shape of ``pap``; by default those of the preset `DEFAULT_PRESET`.
        localization: how ``pap`` measures boxes: ``giou``, ``iou`` or ``l1``. Others do not use it.
        box_weight: factor of the box loss of all others; by default each one's own (1; 2 for GIoU
            beside focal loss or cross entropy). ``pap`` has its gradient scale instead.

    Example:
        >>> build_criterion("focal+giou")
        FocalCriterion(box_loss=giou, box_weight=2.0, alpha=0.25, gamma=2.0)
    """
    if name not in CRITERIA:
        raise ValueError(f"criterion: expected one of {', '.join(CRITERIA)}, found {name!r}")
    if name == "pap":
        if box_weight is not None:
            raise ValueError("box_weight: pap has none; set the gradient scale of its parameters")
        return ParameterizedAPCriterion(parameters or load_preset(DEFAULT_PRESET), localization)
    if parameters is not None:
        raise ValueError(f"parameters: only pap takes them, found some for {name!r}")
    family, _, box_loss = name.partition("+")
    if family == "focal":
        return FocalCriterion(box_loss, box_weight=box_weight)
    if family == "ce":
        return CrossEntropyCriterion(box_loss, box_weight=box_weight)
    if family == "ap":
        return AveragePrecisionCriterion(box_loss, box_weight=box_weight)
    factor = 1.0 if box_weight is None else box_weight
    if name == "alrp":
        return ALRPCriterion(box_weight=factor)
    if name == "rs":
        return RankSortCriterion(box_weight=factor)
    return CSEAutoLossACriterion(box_weight=factor)

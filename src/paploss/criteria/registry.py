"""Criteria by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from paploss.criteria.alrp import ALRPCriterion
from paploss.criteria.average_precision import AveragePrecisionCriterion
from paploss.criteria.criterion import Criterion
from paploss.criteria.cross_entropy import CrossEntropyCriterion
from paploss.criteria.cse_autoloss import CSEAutoLossACriterion
from paploss.criteria.focal import FocalCriterion
from paploss.criteria.heads import Criteria
from paploss.criteria.pap import ParameterizedAPCriterion
from paploss.criteria.rank_sort import RankSortCriterion
from paploss.loss.parameters import LossParameters
from paploss.presets import load_preset

CRITERIA = (
    "pap",
    "focal+l1",
    "focal+giou",
    "focal+l1+giou",
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
    block_denominator_gradient: bool = True,
    box_weight: float | None = None,
) -> Criterion:
    """A criterion by its name.

    Args:
        name: one of `CRITERIA`.
        parameters: shape of ``pap``; by default those of the preset `DEFAULT_PRESET`.
        localization: how ``pap`` measures boxes: ``giou``, ``iou`` or ``l1``. Others do not use it.
        block_denominator_gradient: as in `parameterized_ap_loss`; for ``pap`` only, too.
        box_weight: factor of the box loss, by default each one's own; for ``pap``, of its gradient scale.

    Example:
        >>> build_criterion("focal+giou")
        FocalCriterion(box_loss=2*giou, class_weight=1, alpha=0.25, gamma=2)
    """
    if name not in CRITERIA:
        raise ValueError(f"criterion: expected one of {', '.join(CRITERIA)}, found {name!r}")
    if name == "pap":
        shape = parameters or load_preset(DEFAULT_PRESET)
        return ParameterizedAPCriterion(
            replace(shape, gradient_scale=(box_weight or 1.0) * shape.gradient_scale),
            localization,
            block_denominator_gradient=block_denominator_gradient,
        )
    if parameters is not None:
        raise ValueError(f"parameters: only pap takes them, found some for {name!r}")
    family, _, box_loss = name.partition("+")
    if family == "focal":
        class_weight = 2.0 if box_loss == "l1+giou" else 1.0  # as in Deformable DETR
        return FocalCriterion(box_loss, box_weight=box_weight, class_weight=class_weight)
    if family == "ce":
        return CrossEntropyCriterion(box_loss, box_weight=box_weight)
    if family == "ap":
        return AveragePrecisionCriterion(box_loss, box_weight=box_weight)
    given = {} if box_weight is None else {"box_weight": box_weight}
    if name == "alrp":
        return ALRPCriterion(**given)
    if name == "rs":
        return RankSortCriterion(**given)
    return CSEAutoLossACriterion(**given)


# Weight of the proposals' head in aLRP's and RS's own configurations of Faster R-CNN.
_WEIGHT_OF_PROPOSALS = {"alrp": 0.2, "rs": 0.2}


def build_criteria(
    name: str,
    heads: Iterable[str],
    *,
    parameters: Mapping[str, LossParameters] | None = None,
    **options: Any,
) -> Criteria:
    """The same criterion for every head of a detector.

    Args:
        name: one of `CRITERIA`.
        heads: of the detector; the one of its proposals is called ``rpn``.
        parameters: shape of ``pap`` for each head; those of the only head given are used for all.
        options: all others of `build_criterion`.
    """
    heads = tuple(heads)
    criteria = {}
    for head in heads:
        shape = None
        if parameters is not None:
            if len(parameters) > 1 and set(parameters) != set(heads):
                raise ValueError(
                    f"parameters: the loss has the heads {', '.join(parameters)}, "
                    f"the detector {', '.join(heads)}"
                )
            shape = parameters.get(head) or next(iter(parameters.values()))
        criteria[head] = build_criterion(name, parameters=shape, **options)
        if head == "rpn":
            criteria[head].weight = _WEIGHT_OF_PROPOSALS.get(name, 1.0)
    return Criteria(criteria, heads)

"""transformers' DETR family on its way into the waist: every layer is matched and ranked on its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_convert
from transformers import (
    ConditionalDetrForObjectDetection,
    DabDetrForObjectDetection,
    DeformableDetrForObjectDetection,
    DetrForObjectDetection,
    RTDetrForObjectDetection,
    RTDetrV2ForObjectDetection,
)
from transformers.loss import loss_rt_detr as _loss_rt_detr
from transformers.loss.loss_deformable_detr import DeformableDetrHungarianMatcher
from transformers.loss.loss_for_object_detection import HungarianMatcher

from paploss.criteria import CRITERIA, Criteria, MatchedPredictions, build_criterion
from paploss.criteria.cse_autoloss import CSEAutoLossACriterion
from paploss.detectors.overrides import Overrides
from paploss.loss.parameterized_ap import at_least_float32

loss_rt_detr: Any = _loss_rt_detr  # it has no types
_RT_DETR = (RTDetrForObjectDetection, RTDetrV2ForObjectDetection)
MODELS: tuple[type, ...] = (
    DetrForObjectDetection,
    ConditionalDetrForObjectDetection,
    DabDetrForObjectDetection,
    DeformableDetrForObjectDetection,
    *_RT_DETR,
)

Labels = list[dict[str, Tensor]]  # of each image: class_labels (n,), boxes (n, 4) cx, cy, w, h
Indices = list[tuple[Tensor, Tensor]]  # of each image: matched queries, and the target of each
Outputs = dict[str, Tensor]  # logits (B, Q, C), pred_boxes (B, Q, 4) cx, cy, w, h
LossAndOutputs = tuple[Tensor, dict[str, Tensor], list[Outputs] | None]


def install(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    """Let a model of `MODELS` train with a criterion, given ``labels`` as transformers takes them.

    The model's scores stay what they are, but for a sigmoid criterion on DETR: its head has a last
    column for background, which then is not trained; scores are the sigmoid of the other columns,
    and not the softmax that transformers' image processor of DETR would take. Thresholds on scores
    are given to the image processors: with a ranking criterion give them 0.
    """
    background_column = isinstance(model, DetrForObjectDetection)
    _check_score(type(model).__name__, criteria, background_column)
    loss = RTDetrLoss if isinstance(model, _RT_DETR) else DetrLoss
    overrides.set(model, "_loss_function", loss(criteria, background_column=background_column))


def _check_score(model: str, criteria: Criteria, background_column: bool) -> None:
    if isinstance(criteria["detector"], CSEAutoLossACriterion):
        raise ValueError(
            f"loss: cse-autoloss-a measures boxes in pixels, those of {model} are parts of the image"
        )
    if criteria.score == "softmax" and not background_column:
        sigmoid = [name for name in CRITERIA if build_criterion(name).score == "sigmoid"]
        raise ValueError(
            f"loss: {model} takes losses of one sigmoid score a class ({', '.join(sigmoid)}); "
            "this one needs a softmax head, as DetrForObjectDetection has"
        )


class _Layer(NamedTuple):
    """Predictions that are ranked together."""

    suffix: str  # of the names of their losses
    logits: Tensor  # (B, Q, C)
    boxes: Tensor  # (B, Q, 4) cx, cy, w, h as parts of the image
    indices: Indices | None = None  # where the matching is known already


class DetrLoss:
    """Stands in for ``loss_function`` of DETR, Conditional, DAB and Deformable DETR.

    With ``config.auxiliary_loss`` every decoder layer has losses of its own: those of the last keep
    the criterion's names, those of layer k are called ``pap_k`` (``focal_k``, ``box_k``). Proposals
    of a two-stage Deformable DETR have none: transformers does not train them either.

    Args:
        criteria: of the head ``detector``.
        background_column: whether the last column of the logits is for background.
    """

    def __init__(self, criteria: Criteria, *, background_column: bool) -> None:
        self.criteria = criteria
        self.leave_out_background = background_column and criteria.score == "sigmoid"

    def __call__(
        self,
        logits: Tensor,
        labels: Labels,
        device: torch.device,
        pred_boxes: Tensor,
        config: Any,
        outputs_class: Any = None,
        outputs_coord: Any = None,
        **others: Any,
    ) -> LossAndOutputs:
        """Called by the model; ``outputs_class`` and ``outputs_coord`` are (layers, B, Q, ...)."""
        layers = [_Layer("", logits, pred_boxes)]
        auxiliary = None
        if config.auxiliary_loss:
            auxiliary = _outputs(outputs_class[:-1], outputs_coord[:-1])
            layers += _numbered("", auxiliary)
        return (*self._losses(layers, labels, self._matcher(config)), auxiliary)

    def _matcher(self, config: Any) -> Any:
        sigmoid = self.criteria.score == "sigmoid"
        matcher = DeformableDetrHungarianMatcher if sigmoid else HungarianMatcher
        return matcher(config.class_cost, config.bbox_cost, config.giou_cost)

    def _losses(
        self, layers: list[_Layer], labels: Labels, matcher: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of all losses, and each by its name."""
        losses: dict[str, Tensor] = {}
        for suffix, logits, boxes, indices in layers:
            if self.leave_out_background:
                logits = logits[..., :-1]
            if indices is None:
                indices = assign(matcher, logits, boxes, labels)
            of_layer = self.criteria["detector"](match(logits, boxes, labels, indices))
            losses |= {name + suffix: loss for name, loss in of_layer.items()}
        return torch.stack(list(losses.values())).sum(), losses


class RTDetrLoss(DetrLoss):
    """Stands in for ``loss_function`` of RT-DETR, both versions.

    With ``config.auxiliary_loss`` the encoder's proposals have losses too, ``pap_encoder``, and so
    have the denoising queries of every decoder layer, ``pap_denoising_k``. These are matched as
    transformers does it, a query made from an object is for that object; all groups of all images
    are ranked together, and apart from the ordinary queries.
    """

    def __call__(
        self,
        logits: Tensor,
        labels: Labels,
        device: torch.device,
        pred_boxes: Tensor,
        config: Any,
        outputs_class: Any = None,
        outputs_coord: Any = None,
        enc_topk_logits: Any = None,
        enc_topk_bboxes: Any = None,
        denoising_meta_values: dict[str, Any] | None = None,
        **others: Any,
    ) -> LossAndOutputs:
        """Called by the model; ``outputs_class`` and ``outputs_coord`` are (B, layers, Q, ...)."""
        denoising = 0 if denoising_meta_values is None else denoising_meta_values["dn_num_split"][0]
        layers = [_Layer("", logits[:, denoising:], pred_boxes[:, denoising:])]
        auxiliary = None
        if config.auxiliary_loss:
            classes, boxes = outputs_class.transpose(0, 1), outputs_coord.transpose(0, 1)
            auxiliary = _outputs(classes[:-1, :, denoising:], boxes[:-1, :, denoising:])
            layers += _numbered("", auxiliary)
            layers.append(_Layer("_encoder", enc_topk_logits, enc_topk_bboxes))
            auxiliary += _outputs(enc_topk_logits[None], enc_topk_bboxes[None])
            if denoising_meta_values is not None:
                indices = loss_rt_detr.RTDetrLoss.get_cdn_matched_indices(
                    denoising_meta_values, labels
                )
                noisy = _outputs(classes[:, :, :denoising], boxes[:, :, :denoising])
                layers += _numbered("_denoising", noisy, indices)
        return (*self._losses(layers, labels, self._matcher(config)), auxiliary)

    def _matcher(self, config: Any) -> Any:
        return loss_rt_detr.RTDetrHungarianMatcher(config)


def _outputs(logits: Tensor, boxes: Tensor) -> list[Outputs]:
    """Of each layer, as transformers returns ``auxiliary_outputs``; both are (layers, B, Q, ...)."""
    return [{"logits": a, "pred_boxes": b} for a, b in zip(logits, boxes, strict=True)]


def _numbered(prefix: str, outputs: list[Outputs], indices: Indices | None = None) -> list[_Layer]:
    return [
        _Layer(f"{prefix}_{k}", output["logits"], output["pred_boxes"], indices)
        for k, output in enumerate(outputs)
    ]


def assign(matcher: Any, logits: Tensor, boxes: Tensor, labels: Labels) -> Indices:
    """Which query is for which object, by one of transformers' Hungarian matchers.

    Args:
        matcher: reads scores and boxes of all queries, and the labels.
        logits: (B, Q, C).
        boxes: (B, Q, 4) cx, cy, w, h.
        labels: of each image.
    """
    # Distances between boxes are not implemented in half precision.
    outputs = {"logits": at_least_float32(logits), "pred_boxes": at_least_float32(boxes)}
    indices: Indices = matcher(outputs, labels)
    return indices


def match(logits: Tensor, boxes: Tensor, labels: Labels, indices: Indices) -> MatchedPredictions:
    """All queries of a batch as one ranking; those without an object are background.

    Args:
        logits: (B, Q, C).
        boxes: (B, Q, 4) cx, cy, w, h as parts of the image.
        labels: of each image.
        indices: of each image.
    """
    queries = logits.shape[1]
    rows, order = torch.cat(
        [rows + image * queries for image, (rows, _) in enumerate(indices)]
    ).sort()
    chosen = [(label, targets) for label, (_, targets) in zip(labels, indices, strict=True)]
    classes = torch.cat([label["class_labels"][targets] for label, targets in chosen])[order]
    target_deltas = torch.cat([label["boxes"][targets] for label, targets in chosen])[order]
    rows = rows.to(logits.device)
    labels_of_rows = rows.new_full((len(logits) * queries,), -1)
    labels_of_rows[rows] = classes.to(labels_of_rows)
    deltas = at_least_float32(boxes.flatten(0, 1)[rows])
    target_deltas = target_deltas.to(deltas)
    return MatchedPredictions(
        logits=logits.flatten(0, 1),
        labels=labels_of_rows,
        predicted_boxes=box_convert(deltas, "cxcywh", "xyxy"),
        target_boxes=box_convert(target_deltas, "cxcywh", "xyxy"),
        box_deltas=deltas,
        target_deltas=target_deltas,
    )

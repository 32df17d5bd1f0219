"""torchvision's one-stage detectors on their way into the waist: RetinaNet, FCOS and SSD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paploss.criteria import Criteria, MatchedPredictions
from paploss.detectors.images import Targets
from paploss.detectors.overrides import Overrides
from paploss.detectors.sigmoid_scores import softmax_logits


def match(
    logits: Tensor,
    deltas: Tensor,
    anchors: list[Tensor],
    matched_indices: list[Tensor],
    targets: Targets,
    coder: Any,
) -> MatchedPredictions:
    """Anchors of all images and levels together, as torchvision matched them.

    Args:
        logits: (images, anchors, C).
        deltas: (images, anchors, 4).
        anchors: (anchors, 4) of each image.
        matched_indices: (anchors,) of each image: which box an anchor is for, -1 background,
            -2 neither.
        targets: boxes (n, 4) and labels (n,) of each image.
        coder: has ``encode(boxes, anchors)`` and ``decode(deltas, anchors)`` of (P, 4) each.
    """
    with torch.no_grad():
        labels, boxes = [], [anchors[0].new_zeros(0, 4)]
        for indices, target in zip(matched_indices, targets, strict=True):
            positive = indices >= 0
            labels.append(indices.clone())
            labels[-1][positive] = target["labels"][indices[positive]]
            boxes.append(target["boxes"][indices[positive]].to(boxes[0].dtype))
        all_labels, target_boxes = torch.cat(labels), torch.cat(boxes)
        rows = (all_labels >= 0).nonzero().squeeze(1)
        anchors_of_positives = torch.cat(anchors)[rows]
    deltas_of_positives = deltas.flatten(0, 1)[rows].float()
    return MatchedPredictions(
        logits=logits.flatten(0, 1),
        labels=all_labels,
        predicted_boxes=coder.decode(deltas_of_positives, anchors_of_positives),
        target_boxes=target_boxes,
        box_deltas=deltas_of_positives,
        target_deltas=coder.encode(target_boxes, anchors_of_positives),
    )


class _SizeCoder:
    """torchvision's `BoxCoder`: shifts and logarithms of sizes."""

    def __init__(self, coder: Any) -> None:
        self._coder = coder

    def encode(self, boxes: Tensor, anchors: Tensor) -> Any:
        return self._coder.encode_single(boxes, anchors)

    def decode(self, deltas: Tensor, anchors: Tensor) -> Any:
        return self._coder.decode_single(deltas, anchors)


class _SideCoder:
    """torchvision's `BoxLinearCoder`: distances of the sides from a point."""

    def __init__(self, coder: Any) -> None:
        self._coder = coder

    def encode(self, boxes: Tensor, anchors: Tensor) -> Any:
        return self._coder.encode(anchors, boxes)

    def decode(self, deltas: Tensor, anchors: Tensor) -> Any:
        return self._coder.decode(deltas, anchors)


class _OneStageLoss:
    """Stands in for ``compute_loss`` of RetinaNet's head."""

    def __init__(self, model: Any, criteria: Criteria, coder: _SizeCoder | _SideCoder) -> None:
        self.model, self.criteria, self.coder = model, criteria, coder

    def __call__(
        self,
        targets: Targets,
        head_outputs: dict[str, Tensor],
        anchors: list[Tensor],
        matched_idxs: list[Tensor],
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self.criteria["detector"](
            match(
                head_outputs["cls_logits"],
                head_outputs["bbox_regression"],
                anchors,
                matched_idxs,
                targets,
                self.coder,
            )
        )
        return losses


class _FCOSLoss(_OneStageLoss):
    """Stands in for ``compute_loss`` of FCOS's head; the centre-ness branch keeps its own loss."""

    def __call__(
        self,
        targets: Targets,
        head_outputs: dict[str, Tensor],
        anchors: list[Tensor],
        matched_idxs: list[Tensor],
    ) -> dict[str, Tensor]:
        head = self.model.head
        own = type(head).compute_loss(head, targets, head_outputs, anchors, matched_idxs)
        losses = super().__call__(targets, head_outputs, anchors, matched_idxs)
        return losses | {"bbox_ctrness": own["bbox_ctrness"]}


class _SSDLoss(_OneStageLoss):
    """Stands in for ``SSD.compute_loss``; the first column of its logits is background."""

    def __call__(
        self,
        targets: Targets,
        head_outputs: dict[str, Tensor],
        anchors: list[Tensor],
        matched_idxs: list[Tensor],
    ) -> dict[str, Tensor]:
        outputs = head_outputs | {"cls_logits": head_outputs["cls_logits"][..., 1:]}
        targets = [target | {"labels": target["labels"] - 1} for target in targets]
        return super().__call__(targets, outputs, anchors, matched_idxs)


class _SSDDetections:
    """Stands in for ``SSD.postprocess_detections``: scores by sigmoid."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(
        self,
        head_outputs: dict[str, Tensor],
        image_anchors: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> Targets:
        logits = head_outputs["cls_logits"][..., 1:]
        outputs = head_outputs | {"cls_logits": softmax_logits(logits.sigmoid())}
        detections = type(self.model).postprocess_detections(
            self.model, outputs, image_anchors, image_shapes
        )
        return [found | {"scores": found["scores"] * logits.shape[-1]} for found in detections]


def install_retinanet(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    """Let torchvision's RetinaNet train with a criterion."""
    _need_sigmoid(model, criteria)
    overrides.set(
        model.head, "compute_loss", _OneStageLoss(model, criteria, _SizeCoder(model.box_coder))
    )
    _lift_threshold(model, criteria, overrides)


def install_fcos(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    """Let torchvision's FCOS train with a criterion."""
    _need_sigmoid(model, criteria)
    overrides.set(
        model.head, "compute_loss", _FCOSLoss(model, criteria, _SideCoder(model.box_coder))
    )
    _lift_threshold(model, criteria, overrides)


def install_ssd(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    """Let torchvision's SSD train with a criterion."""
    _need_sigmoid(model, criteria)
    overrides.set(model, "compute_loss", _SSDLoss(model, criteria, _SizeCoder(model.box_coder)))
    overrides.set(model, "postprocess_detections", _SSDDetections(model))
    # Its scores are compared before they are multiplied with the number of classes.
    classes = model.head.classification_head.num_columns - 1
    overrides.set(model, "score_thresh", model.score_thresh / classes)
    _lift_threshold(model, criteria, overrides)


def _need_sigmoid(model: Any, criteria: Criteria) -> None:
    if criteria.score != "sigmoid":
        raise ValueError(
            f"loss: {type(model).__name__} takes losses of one sigmoid score a class; "
            "this one needs a softmax head"
        )


def _lift_threshold(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    if criteria.ranking:
        overrides.set(model, "score_thresh", 0.0)

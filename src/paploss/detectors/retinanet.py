"""torchvision's RetinaNet, trained with any criterion on sigmoid scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import box_iou

from paploss.criteria import Criterion, MatchedPredictions

Targets = list[dict[str, Tensor]]


class ResizeForEvaluation(GeneralizedRCNNTransform):
    """Normalises and batches images; resizes them in evaluation only: augmentation made them fit."""

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        if self.training:
            return image, target
        resized: tuple[Tensor, dict[str, Tensor] | None] = super().resize(image, target)
        return resized


class RetinaNet(TorchvisionRetinaNet):
    """RetinaNet whose training loss is a criterion over the whole mini-batch.

    In training, ``model(images, targets)`` gives the criterion's losses; in evaluation,
    ``model(images)`` gives boxes, scores and labels, as torchvision's models do. Class labels count
    from 0.
    """

    def __init__(
        self,
        backbone: nn.Module,
        classes: int,
        criterion: Criterion,
        *,
        levels: int,
        anchor_scale: float,
        scales_per_octave: int,
        short_side: int,
        long_side: int,
        nms_threshold: float,
        score_threshold: float,
    ) -> None:
        sizes = tuple(
            tuple(
                round(anchor_scale * 2 ** (3 + level + scale / scales_per_octave))
                for scale in range(scales_per_octave)
            )
            for level in range(levels)
        )
        super().__init__(
            backbone,
            classes,
            anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * levels),
            score_thresh=score_threshold,
            nms_thresh=nms_threshold,
            detections_per_img=100,
        )
        if criterion.score != "sigmoid":
            raise ValueError(
                "loss: retinanet trains one sigmoid score a class; this loss needs a softmax head"
            )
        # Mean and deviation of ImageNet, torchvision's own default.
        self.transform = ResizeForEvaluation(
            short_side, long_side, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        )
        self.criterion = criterion

    def compute_loss(
        self, targets: Targets, head_outputs: dict[str, Tensor], anchors: list[Tensor]
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = self.criterion(match(self, targets, head_outputs, anchors))
        return losses


@torch.no_grad()
def _assign(model: Any, targets: Targets, anchors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Label of every anchor of the batch, (N,), and target box of every positive one, (P, 4)."""
    labels, boxes = [], []
    for anchors_of_image, target in zip(anchors, targets, strict=True):
        if len(target["boxes"]) == 0:
            labels.append(torch.full_like(anchors_of_image[:, 0], -1, dtype=torch.int64))
            continue
        matched = model.proposal_matcher(box_iou(target["boxes"], anchors_of_image))
        positive = matched >= 0  # the others are -1 background and -2 between the thresholds
        labels.append(torch.where(positive, target["labels"][matched.clamp(min=0)], matched))
        boxes.append(target["boxes"][matched[positive]])
    empty = anchors[0].new_zeros(0, 4)
    return torch.cat(labels), torch.cat([empty, *boxes])


def match(
    model: Any, targets: Targets, head_outputs: dict[str, Tensor], anchors: list[Tensor]
) -> MatchedPredictions:
    """Anchors of all images and levels, matched by torchvision's own matcher.

    Args:
        model: a torchvision RetinaNet.
        targets: boxes (n, 4) and labels (n,) of each image.
        head_outputs: ``cls_logits`` (images, anchors, C), ``bbox_regression`` (images, anchors, 4).
        anchors: (anchors, 4) of each image.
    """
    labels, target_boxes = _assign(model, targets, anchors)
    rows = (labels >= 0).nonzero().squeeze(1)
    deltas = head_outputs["bbox_regression"].flatten(0, 1)[rows].float()
    anchors_of_positives = torch.cat(anchors)[rows]
    return MatchedPredictions(
        logits=head_outputs["cls_logits"].flatten(0, 1),
        labels=labels,
        predicted_boxes=model.box_coder.decode_single(deltas, anchors_of_positives),
        target_boxes=target_boxes,
        box_deltas=deltas,
        target_deltas=model.box_coder.encode_single(target_boxes, anchors_of_positives),
    )

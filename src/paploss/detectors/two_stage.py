"""torchvision's Faster R-CNN on its way into the waist, with a criterion for each of its two heads.

Both heads number labels as the waist does, only one higher: 1 for the first class (the proposals
have no other), 0 for background, -1 for ignored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from paploss.criteria import Criteria, Criterion, MatchedPredictions
from paploss.detectors.images import Targets
from paploss.detectors.overrides import Overrides
from paploss.detectors.sigmoid_scores import keep_best, softmax_logits
from paploss.loss.parameterized_ap import IGNORED

HEADS = ("rpn", "rcnn")
CANDIDATES = 1000  # scores of an image that go through non-maximum suppression


def match_proposals(
    objectness: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    labels: Tensor,
    target_boxes: Tensor,
    coder: Any,
) -> MatchedPredictions:
    """Anchors of all images and levels against one class, "object".

    Args:
        objectness: (N, 1).
        deltas: (N, 4).
        anchors: (N, 4).
        labels: (N,) 0 for an object, -1 background, -2 ignored.
        target_boxes: (N, 4), read at objects only.
        coder: torchvision's `BoxCoder`.
    """
    rows = (labels >= 0).nonzero().squeeze(1)
    own_deltas, own_anchors, own_targets = deltas[rows].float(), anchors[rows], target_boxes[rows]
    return MatchedPredictions(
        logits=objectness,
        labels=labels,
        predicted_boxes=coder.decode_single(own_deltas, own_anchors),
        target_boxes=own_targets,
        box_deltas=own_deltas,
        target_deltas=coder.encode_single(own_targets, own_anchors),
    )


def match_regions(
    logits: Tensor,
    deltas: Tensor,
    regions: Tensor,
    labels: Tensor,
    target_boxes: Tensor,
    coder: Any,
) -> MatchedPredictions:
    """Regions of all images against their classes; every class has boxes of its own.

    Args:
        logits: (N, C), or (N, C + 1) under a softmax.
        deltas: (N, 4 * (C + 1)), background first.
        regions: (N, 4).
        labels: (N,) classes from 0, -1 background.
        target_boxes: (P, 4) of the positives.
        coder: torchvision's `BoxCoder`.
    """
    rows = (labels >= 0).nonzero().squeeze(1)
    own_deltas = deltas.view(len(deltas), -1, 4)[rows, labels[rows] + 1].float()
    return MatchedPredictions(
        logits=logits,
        labels=labels,
        predicted_boxes=coder.decode_single(own_deltas, regions[rows]),
        target_boxes=target_boxes,
        box_deltas=own_deltas,
        target_deltas=coder.encode_single(target_boxes, regions[rows]),
    )


class _ProposalLoss:
    """Takes the place of the RPN's loss: methods that hide those of a `RegionProposalNetwork`."""

    def __init__(self, rpn: Any, criteria: Criteria) -> None:
        self.rpn, self.criteria = rpn, criteria
        self.anchors: list[Tensor] = []
        self.target_boxes: list[Tensor] = []
        self.losses: dict[str, Tensor] = {}

    def forward(
        self, images: Any, features: dict[str, Tensor], targets: Targets | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        boxes, own = type(self.rpn).forward(self.rpn, images, features, targets)
        losses, self.losses = self.losses, {}
        return boxes, losses if own else own

    def assign_targets_to_anchors(self, anchors: list[Tensor], targets: Targets) -> Any:
        """What torchvision does; anchors and boxes are kept, for `compute_loss` is not told them."""
        labels, boxes = type(self.rpn).assign_targets_to_anchors(self.rpn, anchors, targets)
        self.anchors, self.target_boxes = anchors, boxes
        return labels, boxes

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], _: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        criterion = self.criteria["rpn"]
        waist_labels = torch.cat(labels).long() - 1
        logits = objectness.reshape(-1, 1)
        if criterion.score == "softmax":
            logits = torch.cat([logits, torch.zeros_like(logits)], 1)
            sampled = [torch.cat(part).bool() for part in self.rpn.fg_bg_sampler(labels)]
            waist_labels = waist_labels.masked_fill(~(sampled[0] | sampled[1]), IGNORED)
        matched = match_proposals(
            logits,
            deltas,
            torch.cat(self.anchors),
            waist_labels,
            torch.cat(self.target_boxes),
            self.rpn.box_coder,
        )
        self.anchors, self.target_boxes = [], []
        self.losses = {f"rpn_{name}": loss for name, loss in criterion(matched).items()}
        nothing = objectness.new_zeros(())  # forward puts our losses in place of these two
        return nothing, nothing


class _Sampled(NamedTuple):
    regions: list[Tensor]
    labels: list[Tensor]
    target_boxes: list[Tensor]  # of the positives


class _RegionLoss:
    """Takes the place of the R-CNN head's loss: methods that hide those of `RoIHeads`."""

    def __init__(self, roi_heads: Any, criteria: Criteria) -> None:
        self.roi_heads, self.criteria = roi_heads, criteria
        self.sampled = _Sampled([], [], [])

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[Targets, dict[str, Tensor]]:
        predictions: list[tuple[Tensor, Tensor]] = []
        hook = self.roi_heads.box_predictor.register_forward_hook(
            lambda module, inputs, outputs: predictions.append(outputs)
        )
        try:
            result, losses = type(self.roi_heads).forward(
                self.roi_heads, features, proposals, image_shapes, targets
            )
        finally:
            hook.remove()
        if self.roi_heads.training:
            # Masks and key points have losses of their own, which stay.
            others = {
                k: v for k, v in losses.items() if k not in ("loss_classifier", "loss_box_reg")
            }
            losses = self._losses(*predictions[0]) | others
        return result, losses

    def _losses(self, logits: Tensor, deltas: Tensor) -> dict[str, Tensor]:
        criterion = self.criteria["rcnn"]
        regions, labels, target_boxes = self.sampled
        self.sampled = _Sampled([], [], [])
        matched = match_regions(
            _waist_logits(logits, criterion),
            deltas,
            torch.cat(regions),
            torch.cat(labels) - 1,
            torch.cat(target_boxes),
            self.roi_heads.box_coder,
        )
        return {f"rcnn_{name}": loss for name, loss in criterion(matched).items()}

    def select_training_samples(self, proposals: list[Tensor], targets: Targets) -> Any:
        """What torchvision does; the sample is kept, for `forward` does not give it away."""
        sample = type(self.roi_heads).select_training_samples(self.roi_heads, proposals, targets)
        regions, indices, labels, _ = sample
        boxes = [
            target["boxes"].to(region.dtype)[index[label > 0]]
            for target, region, index, label in zip(targets, regions, indices, labels, strict=True)
        ]
        self.sampled = _Sampled(regions, labels, boxes)
        return sample

    def use_all(self, labels: list[Tensor]) -> list[Tensor]:
        """Stands in for ``subsample``: every region that is not ignored."""
        return [torch.where(labels_of_image >= 0)[0] for labels_of_image in labels]

    def postprocess_detections(
        self,
        logits: Tensor,
        deltas: Tensor,
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What torchvision does, with sigmoid scores and the best of them only."""
        probabilities = logits[:, 1:].float().sigmoid()
        best = [
            keep_best(of_image, CANDIDATES)
            for of_image in torch.split(probabilities, [len(boxes) for boxes in proposals])
        ]
        boxes, scores, labels = type(self.roi_heads).postprocess_detections(
            self.roi_heads, softmax_logits(torch.cat(best)), deltas, proposals, image_shapes
        )
        return boxes, [score * probabilities.shape[1] for score in scores], labels


def _waist_logits(logits: Tensor, criterion: Criterion) -> Tensor:
    """Background, torchvision's first column, comes last under a softmax and is not there else."""
    classes = logits[:, 1:]
    return torch.cat([classes, logits[:, :1]], 1) if criterion.score == "softmax" else classes


def install(model: Any, criteria: Criteria, overrides: Overrides) -> None:
    """Let torchvision's Faster R-CNN train with a criterion for each head.

    Under a head's sigmoid loss all its anchors or regions take part that are not ignored; under a
    softmax loss those that torchvision samples.
    """
    rpn, roi_heads = model.rpn, model.roi_heads
    proposals = _ProposalLoss(rpn, criteria)
    for name in ("forward", "assign_targets_to_anchors", "compute_loss"):
        overrides.set(rpn, name, getattr(proposals, name))
    regions = _RegionLoss(roi_heads, criteria)
    for name in ("forward", "select_training_samples"):
        overrides.set(roi_heads, name, getattr(regions, name))
    if criteria.score == "sigmoid":
        overrides.set(roi_heads, "subsample", regions.use_all)
        overrides.set(roi_heads, "postprocess_detections", regions.postprocess_detections)
        # Scores are compared before they are multiplied with the number of classes.
        classes = roi_heads.box_predictor.cls_score.out_features - 1
        threshold = 0.0 if criteria.ranking else roi_heads.score_thresh / classes
        overrides.set(roi_heads, "score_thresh", threshold)

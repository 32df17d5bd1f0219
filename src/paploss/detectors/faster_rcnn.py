"""torchvision's Faster R-CNN of any size, trained with a criterion for each head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN as TorchvisionFasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import MultiScaleRoIAlign

from paploss.criteria import Criteria
from paploss.detectors.attachment import attach
from paploss.detectors.backbones import build_backbone
from paploss.detectors.config import FasterRCNNConfig
from paploss.detectors.images import ResizeForEvaluation, Targets
from paploss.detectors.retinanet import build_anchors


class FasterRCNN(TorchvisionFasterRCNN):
    """Class labels count from 0, as everywhere in paploss; torchvision's 0 is background."""

    def forward(self, images: list[Tensor], targets: Targets | None = None) -> Any:
        if targets is not None:
            targets = [target | {"labels": target["labels"] + 1} for target in targets]
        outputs = super().forward(images, targets)
        if self.training:
            return outputs
        return [found | {"labels": found["labels"] - 1} for found in outputs]


def build_faster_rcnn(config: FasterRCNNConfig, classes: int, criteria: Criteria) -> FasterRCNN:
    """A Faster R-CNN with fresh heads."""
    backbone = build_backbone(config)
    pool = MultiScaleRoIAlign(
        backbone.levels, config.region_size, sampling_ratio=config.region_samples
    )
    features = config.channels * config.region_size**2
    model = FasterRCNN(
        backbone,
        rpn_anchor_generator=build_anchors(config),
        rpn_pre_nms_top_n_train=2 * config.proposals,
        rpn_pre_nms_top_n_test=config.proposals,
        rpn_post_nms_top_n_train=config.proposals,
        rpn_post_nms_top_n_test=config.proposals,
        box_roi_pool=pool,
        box_head=TwoMLPHead(features, config.region_features),
        box_predictor=FastRCNNPredictor(config.region_features, classes + 1),
        box_score_thresh=config.score_threshold,
        box_nms_thresh=config.nms_threshold,
    )
    model.transform = ResizeForEvaluation(config.short_side, config.long_side)
    # Convolutions follow the layout of their weights; this one is faster on CPU.
    model.to(memory_format=torch.channels_last)
    return attach(model, criteria)

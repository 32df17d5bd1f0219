"""Detectors by name."""

from __future__ import annotations

from torch import nn

from paploss.criteria import Criteria, Criterion
from paploss.detectors.config import DetectorConfig, FasterRCNNConfig, RetinaNetConfig
from paploss.detectors.faster_rcnn import build_faster_rcnn
from paploss.detectors.retinanet import build_retinanet


def build_detector(
    config: DetectorConfig, classes: int, criterion: Criterion | Criteria
) -> nn.Module:
    """A detector with fresh heads whose training loss is the criterion.

    In training, ``model(images, targets)`` gives named losses; in evaluation, ``model(images)``
    gives boxes, scores and labels of each image, as torchvision's models do. Labels count from 0.
    """
    if isinstance(criterion, Criterion):
        criterion = Criteria(criterion, config.heads)
    model: nn.Module
    if isinstance(config, RetinaNetConfig):
        model = build_retinanet(config, classes, criterion)
    elif isinstance(config, FasterRCNNConfig):
        model = build_faster_rcnn(config, classes, criterion)
    else:
        from paploss.detectors.deformable_detr import build_deformable_detr  # needs transformers

        model = build_deformable_detr(config, classes, criterion)
    return model

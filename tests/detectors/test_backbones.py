"""The shipped backbone, which every tiny detector can start from."""

from __future__ import annotations

import pytest
import torch

from paploss.criteria import build_criteria
from paploss.detectors import build_detector, detector_config
from paploss.detectors.backbones import SHAPES_WEIGHTS


@pytest.mark.parametrize("name", ["retinanet", "faster-rcnn", "deformable-detr"])
def test_tiny_detectors_start_from_the_shipped_backbone(name: str) -> None:
    config = detector_config(name=name, weights="shapes")
    criteria = build_criteria(config.usual_loss, config.heads)
    shipped = torch.load(SHAPES_WEIGHTS, weights_only=True)
    own = build_detector(config, 5, criteria).state_dict()
    found = {
        key: next((value for name, value in own.items() if name.endswith(key)), None)
        for key in shipped
        if name != "deformable-detr" or not key.startswith("fpn.")
    }
    for key, value in found.items():
        assert value is not None, key
        assert torch.equal(value, shipped[key].to(value.dtype)), key
    assert SHAPES_WEIGHTS.stat().st_size < 2e6


def test_the_shipped_backbone_is_of_one_size() -> None:
    criteria = build_criteria("focal+l1", ("detector",))
    with pytest.raises(ValueError, match="those of shapes are for 64 channels"):
        build_detector(
            detector_config(name="retinanet", weights="shapes", channels=32), 5, criteria
        )
    with pytest.raises(ValueError, match="the file is not one of resnet18"):
        build_detector(
            detector_config(name="retinanet", weights="shapes", backbone="resnet18"), 5, criteria
        )

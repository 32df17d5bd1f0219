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


@pytest.mark.parametrize(
    ("backbone", "frozen", "learns"),
    [
        ("resnet18", "layer1.1.conv2", "layer2.0.conv1"),
        ("mobilenet_v2", "3.conv.2", "4.conv.0.0"),
        ("timm:test_resnet", "layer1.0.conv1", "layer2.0.conv1"),
    ],
)
def test_first_layers_can_be_frozen(backbone: str, frozen: str, learns: str) -> None:
    criteria = build_criteria("focal+l1", ("detector",))
    config = detector_config(name="retinanet", backbone=backbone, frozen_stride=4)
    model = build_detector(config, 5, criteria)
    body = model.backbone.body.model if backbone.startswith("timm:") else model.backbone.body
    assert not body.get_submodule(frozen).weight.requires_grad
    assert body.get_submodule(learns).weight.requires_grad
    assert body.training
    config = detector_config(name="retinanet", backbone=backbone)
    assert all(p.requires_grad for p in build_detector(config, 5, criteria).parameters())


def test_deformable_detr_freezes_the_same_layers() -> None:
    pytest.importorskip("transformers")
    config = detector_config(name="deformable-detr", frozen_stride=4)
    model = build_detector(config, 5, build_criteria("focal+l1+giou", ("detector",)))
    learns = {name: p.requires_grad for name, p in model.named_parameters() if "layer" in name}
    assert not any(value for name, value in learns.items() if ".layer1." in name)
    assert all(value for name, value in learns.items() if ".layer2." in name)

"""RetinaNet's way into the waist: every anchor, matched as torchvision matches, boxes decoded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import RetinaNet
from torchvision.ops import box_iou, sigmoid_focal_loss

from paploss.criteria import Criterion, MatchedPredictions, build_criterion
from paploss.detectors import build_detector, detach, detector_config
from paploss.presets import load_preset
from tests.detectors.cases import Recorder, batch, crowded


def tiny(loss: str | Criterion = "focal+giou", **settings: object) -> RetinaNet:
    torch.manual_seed(0)
    if isinstance(loss, str):
        options = {"parameters": load_preset("retinanet-r50-fpn-coco")} if loss == "pap" else {}
        loss = build_criterion(loss, **options)
    model = build_detector(detector_config(name="retinanet", **settings), 3, loss)
    assert isinstance(model, RetinaNet)
    return model


def matched_batch(model: RetinaNet) -> tuple[MatchedPredictions, list[Tensor]]:
    """What reaches the criterion, and the anchors."""
    images, targets = batch()
    model.train()(images, targets)
    batched, _ = model.transform(images)
    anchors = model.anchor_generator(batched, list(model.backbone(batched.tensors).values()))
    return model.criterion["detector"].seen, anchors


@torch.no_grad()
def test_match_agrees_with_torchvisions_own_loss() -> None:
    """The waist's L1 and the labels give the losses torchvision computes itself."""
    model = tiny(Recorder())
    matched, _ = matched_batch(model)
    theirs = detach(model)(*batch())

    per_image = matched.labels.view(3, -1)
    image_of_positive = (matched.labels >= 0).nonzero().squeeze(1) // per_image.shape[1]
    l1 = (matched.box_deltas - matched.target_deltas).abs().sum(1)
    ours = sum(
        l1[image_of_positive == k].sum() / max(1, int((image_of_positive == k).sum()))
        for k in range(3)
    )
    assert theirs["bbox_regression"].item() == pytest.approx(float(ours) / 3, rel=1e-5)
    total = 0.0
    logits = matched.logits.view(3, -1, 3)
    for k in range(3):
        kept = per_image[k] != -2
        one_hot = (per_image[k][kept, None] == torch.arange(3)).float()
        total += float(
            sigmoid_focal_loss(logits[k][kept], one_hot, reduction="sum")
            / max(1, int((per_image[k] >= 0).sum()))
        )
    assert theirs["classification"].item() == pytest.approx(total / 3, rel=1e-5)


def test_match_gives_every_object_an_anchor_and_decodes_boxes() -> None:
    model = tiny(Recorder())
    matched, anchors = matched_batch(model)
    _, targets = batch()
    assert matched.logits.shape == (len(matched.labels), 3)
    assert set(matched.labels.tolist()) >= {-1, 0, 1, 2}
    images = matched.labels.view(3, -1)
    assert (images[1] == -1).all(), "an image without objects is background"
    assert len(matched.target_boxes) == (matched.labels >= 0).sum()
    decoded = model.box_coder.decode_single(
        matched.target_deltas, torch.cat(anchors)[matched.labels >= 0]
    )
    torch.testing.assert_close(decoded, matched.target_boxes, atol=1e-3, rtol=0)
    overlap = box_iou(targets[0]["boxes"], anchors[0]).max(0).values
    assert (images[0][overlap >= 0.5] >= 0).all()


@pytest.mark.parametrize("loss", ["pap", "focal+l1", "focal+giou", "ap+l1", "alrp", "rs"])
def test_every_loss_trains_both_branches(loss: str) -> None:
    model = tiny(loss).train()
    images, targets = batch()
    sum(model(images, targets).values()).backward()
    for branch in (model.head.classification_head, model.head.regression_head):
        norms = [p.grad.abs().sum() for p in branch.parameters() if p.grad is not None]
        assert sum(norms) > 0
        assert all(norm.isfinite() for norm in norms)


@pytest.mark.parametrize("loss", ["pap", "focal+l1", "ap+l1", "alrp", "rs"])
def test_a_batch_without_objects_trains(loss: str) -> None:
    model = tiny(loss).train()
    images, targets = batch()
    total = sum(model([images[1]], [targets[1]]).values())
    total.backward()
    assert total.isfinite()


def test_300_objects_and_objects_with_many_anchors() -> None:
    model = tiny("pap").train()
    loss = model(*crowded(300))["pap"]
    loss.backward()
    assert 0 < loss < 1
    recorded = tiny(Recorder()).train()
    recorded(*batch())
    boxes = recorded.criterion["detector"].seen.target_boxes
    assert len(boxes.unique(dim=0)) == 3 < len(boxes), "an object is matched more than once"


def test_detections_are_in_the_images_own_pixels() -> None:
    model = tiny().eval()
    outputs = model([torch.rand(3, 100, 200), torch.rand(3, 300, 50)])
    for output, (height, width) in zip(outputs, ((100, 200), (300, 50)), strict=True):
        assert len(output["boxes"]) == 100, "nothing is cut by an absolute score"
        assert (output["boxes"][:, 0::2] <= width).all()
        assert (output["boxes"][:, 1::2] <= height).all()
        assert output["labels"].max() <= 2


def test_training_images_are_not_resized() -> None:
    model = tiny().train()
    batched, _ = model.transform([torch.rand(3, 64, 96)], None)
    assert batched.image_sizes == [(64, 96)]


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet_v2", "timm:mobilenetv3_small_050"])
def test_other_backbones(backbone: str) -> None:
    model = tiny(backbone=backbone, levels=5, freeze_batch_norm=True).train()
    images, targets = batch()
    sum(model(images, targets).values()).backward()
    with torch.no_grad():
        maps = model.backbone(torch.zeros(1, 3, 128, 128))
    assert [m.shape[-1] for m in maps.values()] == [16, 8, 4, 2, 1]


def test_bad_backbones_and_weights(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="torchvision has no model 'resnet19'"):
        tiny(backbone="resnet19")
    with pytest.raises(ValueError, match="timm has no model 'nothing'"):
        tiny(backbone="timm:nothing")
    with pytest.raises(ValueError, match="weights: expected none, imagenet, shapes or a file"):
        tiny(backbone="resnet18", weights="nowhere.pth")
    file = f"{tmp_path}/other.pth"
    torch.save({"conv1.weight": torch.zeros(3)}, file)
    with pytest.raises(ValueError, match="the file is not one of resnet18"):
        tiny(backbone="resnet18", weights=file)


def test_weights_from_a_file(tmp_path: object) -> None:
    from torchvision.models import resnet18

    file = f"{tmp_path}/resnet18.pth"
    source = resnet18()
    torch.save(source.state_dict(), file)
    model = tiny(backbone="resnet18", weights=file)
    assert torch.equal(model.backbone.body.layer4[0].conv1.weight, source.layer4[0].conv1.weight)


def test_softmax_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="RetinaNet takes losses of one sigmoid score"):
        tiny("ce+l1")


@torch.no_grad()
def test_narrow_heads_let_signals_through() -> None:
    """With the 0.01 of wide heads, four narrow layers leave a thousandth of their input."""
    features = torch.randn(1, 64, 16, 16)
    own = tiny().head.classification_head.conv(features)
    usual = tiny(head_std=0.01).head.classification_head.conv(features)
    assert usual.std() < 0.002 < 0.02 < own.std() < 1
    assert detector_config(name="retinanet", size="r50").head_std == 0.01, "the paper's recipe"

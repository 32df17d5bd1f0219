"""Faster R-CNN's two ways into the waist: proposals and regions, each with its own criterion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import box_iou

from paploss import LossParameters
from paploss.criteria import Criteria, Criterion, build_criteria
from paploss.detectors import build_detector, detach, detector_config
from paploss.detectors.faster_rcnn import FasterRCNN
from paploss.detectors.two_stage import HEADS
from paploss.presets import load_preset_heads
from tests.detectors.cases import Recorder, batch, crowded

LOSSES = ("pap", "ce+l1", "ce+giou", "cse-autoloss-a", "alrp", "rs", "ap+l1", "focal+giou")


def tiny(loss: str | Criterion | Criteria = "ce+l1", **settings: object) -> FasterRCNN:
    torch.manual_seed(0)
    if isinstance(loss, str):
        heads = load_preset_heads("faster-rcnn-r50-fpn-coco") if loss == "pap" else None
        loss = build_criteria(loss, ("rpn", "rcnn"), parameters=heads)
    model = build_detector(detector_config(name="faster-rcnn", **settings), 3, loss)
    assert isinstance(model, FasterRCNN)
    return model


def gradients(model: FasterRCNN, losses: Tensor, part: str) -> list[Tensor]:
    module = model.get_submodule(part)
    return list(torch.autograd.grad(losses, list(module.parameters()), retain_graph=True))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_both_branches_of_both_heads(loss: str) -> None:
    model = tiny(loss).train()
    losses = model(*batch())
    assert {name.split("_")[0] for name in losses} == {"rpn", "rcnn"}
    sum(losses.values()).backward()
    branches = ("rpn.head.cls_logits", "rpn.head.bbox_pred")
    branches += ("roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred")
    for branch in branches:
        gradient = model.get_submodule(branch).weight.grad
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0, branch


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_without_objects_trains(loss: str) -> None:
    model = tiny(loss).train()
    images, targets = batch()
    total = sum(model([images[1]], [targets[1]]).values())
    total.backward()
    assert total.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_300_objects() -> None:
    model = tiny("pap").train()
    losses = model(*crowded(300))
    sum(losses.values()).backward()
    assert all(0 < loss < 1 for loss in losses.values())


def test_all_proposals_take_part_in_a_ranking() -> None:
    model = tiny(Recorder()).train()
    images, targets = batch()
    model(images, targets)
    rpn, rcnn = model.criterion["rpn"].seen, model.criterion["rcnn"].seen

    batched, _ = model.transform(images)
    anchors = model.rpn.anchor_generator(batched, list(model.backbone(batched.tensors).values()))
    assert rpn.logits.shape == (3 * len(anchors[0]), 1)
    labels = rpn.labels.view(3, -1)
    assert (labels[1] == -1).all(), "an image without objects is background"
    overlap = box_iou(targets[0]["boxes"], anchors[0]).max(0).values
    assert (labels[0][overlap >= 0.7] == 0).all()
    assert (labels[0][(overlap >= 0.3) & (overlap < 0.7)] != -1).all(), "ignored, or the best"
    everywhere = torch.cat(anchors)[rpn.labels >= 0]
    decoded = model.rpn.box_coder.decode_single(rpn.target_deltas, everywhere)
    torch.testing.assert_close(decoded, rpn.target_boxes, atol=1e-3, rtol=0)

    # 100 proposals an image and the objects themselves.
    assert rcnn.logits.shape == (3 * 100 + 3, 3)
    assert set(rcnn.labels.tolist()) == {-1, 0, 1, 2}
    assert len(rcnn.target_boxes) == (rcnn.labels >= 0).sum()


def test_boxes_of_a_class_come_from_its_own_column() -> None:
    model = tiny(Recorder()).train()
    predictor = model.roi_heads.box_predictor
    torch.nn.init.zeros_(predictor.bbox_pred.weight)
    with torch.no_grad():  # each class moves its boxes by another distance, background by 99
        predictor.bbox_pred.bias.copy_(torch.tensor([99.0, 1.0, 2.0, 3.0]).repeat_interleave(4))
    model(*batch())
    seen = model.criterion["rcnn"].seen
    classes = seen.labels[seen.labels >= 0]
    assert torch.equal(seen.box_deltas, (classes + 1.0)[:, None].expand(-1, 4))


@torch.no_grad()
def test_softmax_losses_see_what_torchvision_sampled() -> None:
    """From the recorded rows, cross entropy gives the very numbers torchvision computes itself."""
    model = tiny(Recorder("softmax")).train()
    torch.manual_seed(7)
    model(*batch())
    rpn, rcnn = model.criterion["rpn"].seen, model.criterion["rcnn"].seen
    torch.manual_seed(7)  # the same sample
    theirs = detach(model)(*batch())

    targets = torch.where(rcnn.labels < 0, 3, rcnn.labels)  # background last
    ours = functional.cross_entropy(rcnn.logits, targets)
    assert ours.item() == pytest.approx(theirs["loss_classifier"].item(), rel=1e-5)
    l1 = functional.smooth_l1_loss(
        rcnn.box_deltas, rcnn.target_deltas, beta=1 / 9, reduction="sum"
    ) / len(rcnn.labels)
    assert l1.item() == pytest.approx(theirs["loss_box_reg"].item(), rel=1e-4)

    sampled = rpn.labels != -2
    assert sampled.sum() <= 3 * 256
    ours = functional.cross_entropy(rpn.logits[sampled], (rpn.labels[sampled] < 0).long())
    assert ours.item() == pytest.approx(theirs["loss_objectness"].item(), rel=1e-5)
    l1 = functional.smooth_l1_loss(rpn.box_deltas, rpn.target_deltas, beta=1 / 9, reduction="sum")
    assert (l1 / sampled.sum()).item() == pytest.approx(theirs["loss_rpn_box_reg"].item(), rel=1e-4)


@pytest.mark.parametrize("softmax", ["rpn", "rcnn"])
def test_one_head_may_rank_while_the_other_samples(softmax: str) -> None:
    recorders = {head: Recorder("softmax" if head == softmax else "sigmoid") for head in HEADS}
    model = tiny(Criteria(recorders, HEADS)).train()
    model(*batch())
    seen = {head: criterion.seen for head, criterion in model.criterion.items()}
    assert seen["rpn"].logits.shape[1] == (2 if softmax == "rpn" else 1)
    assert seen["rcnn"].logits.shape[1] == (4 if softmax == "rcnn" else 3)
    anchors_of_background = (seen["rpn"].labels == -1).sum()
    assert (anchors_of_background <= 3 * 256) == (softmax == "rpn")
    assert "boxes" in model.eval()(batch()[0])[0]


@pytest.mark.parametrize("head", ["rpn", "rcnn"])
def test_a_gradient_scale_acts_on_the_boxes_of_its_own_head(head: str) -> None:
    boxes = {"rpn": "rpn.head.bbox_pred", "rcnn": "roi_heads.box_predictor.bbox_pred"}
    others = ["rpn.head.cls_logits", "roi_heads.box_predictor.cls_score"]
    others += [branch for other, branch in boxes.items() if other != head]
    found = {}
    for scale in (1.0, 4.0):
        parameters = {h: LossParameters.linear() for h in boxes}
        parameters[head] = LossParameters.linear(gradient_scale=scale)
        model = tiny(build_criteria("pap", tuple(boxes), parameters=parameters)).train()
        losses = torch.stack(list(model(*batch()).values())).sum()
        found[scale] = {part: gradients(model, losses, part) for part in (boxes[head], *others)}
    for one, four in zip(found[1.0][boxes[head]], found[4.0][boxes[head]], strict=True):
        torch.testing.assert_close(4 * one, four)
        assert one.abs().sum() > 0
    for other in others:
        for one, four in zip(found[1.0][other], found[4.0][other], strict=True):
            torch.testing.assert_close(one, four)


def test_detections_by_sigmoid() -> None:
    """Against all boxes of all classes, without a top-k, through the definition."""
    model = tiny("pap").eval()
    images, _ = batch()
    rows: list[tuple[Tensor, Tensor]] = []
    model.roi_heads.box_predictor.register_forward_hook(lambda m, i, o: rows.append(o))
    with torch.no_grad():
        found = model(images[:1])[0]
    best = rows[0][0][:, 1:].sigmoid().max()
    assert found["scores"][0].item() == pytest.approx(best.item(), rel=1e-5)
    assert len(found["boxes"]) == 100, "nothing is cut by an absolute score"
    assert set(found["labels"].tolist()) <= {0, 1, 2}
    assert (found["scores"].diff() <= 0).all()
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"] <= 128).all()


def test_sizes_of_pyramid_and_anchors() -> None:
    model = tiny(backbone="resnet18", finest_stride=4, levels=5, scales_per_octave=1)
    with torch.no_grad():
        maps = model.backbone(torch.zeros(1, 3, 128, 128))
    assert [m.shape[-1] for m in maps.values()] == [32, 16, 8, 4, 2]
    assert model.rpn.anchor_generator.sizes == ((8,), (16,), (32,), (64,), (128,))
    with pytest.raises(ValueError, match="levels: from stride 4 on expected 4 to 6, found 3"):
        tiny(finest_stride=4, levels=3)

"""The loss in models that torchvision built: one line on, one line off."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import (
    fasterrcnn_mobilenet_v3_large_320_fpn,
    fcos_resnet50_fpn,
    maskrcnn_resnet50_fpn,
    retinanet_resnet50_fpn,
    ssdlite320_mobilenet_v3_large,
)

from paploss import LossParameters
from paploss.criteria import build_criterion
from paploss.detectors import attach, detach
from tests.detectors.cases import Recorder, batch

FRESH = {"weights": None, "weights_backbone": None, "num_classes": 4}


def retinanet() -> nn.Module:
    return retinanet_resnet50_fpn(**FRESH, min_size=128, max_size=128)


def faster_rcnn() -> nn.Module:
    return fasterrcnn_mobilenet_v3_large_320_fpn(**FRESH, min_size=128, max_size=128)


def fcos() -> nn.Module:
    return fcos_resnet50_fpn(**FRESH, min_size=128, max_size=128)


def ssd() -> nn.Module:
    return ssdlite320_mobilenet_v3_large(**FRESH)


MODELS = {"retinanet": retinanet, "faster-rcnn": faster_rcnn, "fcos": fcos, "ssd": ssd}
# torchvision's Faster R-CNN and SSD keep label 0 for background.
BRANCHES = {
    "retinanet": ("head.classification_head.cls_logits", "head.regression_head.bbox_reg"),
    "faster-rcnn": ("roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred"),
    "fcos": ("head.classification_head.cls_logits", "head.regression_head.bbox_reg"),
    "ssd": ("head.classification_head", "head.regression_head"),
}


@pytest.fixture(params=MODELS)
def built(request: pytest.FixtureRequest) -> tuple[str, Callable[[], nn.Module]]:
    return request.param, MODELS[request.param]


def run(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(3)
    losses: dict[str, Tensor] = model.train()(*batch(first_label=1))
    return losses


def pap() -> nn.Module:
    return build_criterion("pap", parameters=LossParameters.linear())


def test_its_own_forward_returns_the_loss(built: tuple[str, Callable[[], nn.Module]]) -> None:
    name, build = built
    torch.manual_seed(0)
    model = attach(build(), pap())
    losses = run(model)
    wanted = {"faster-rcnn": {"rpn_pap", "rcnn_pap"}, "fcos": {"pap", "bbox_ctrness"}}
    assert set(losses) == wanted.get(name, {"pap"})
    sum(losses.values()).backward()
    for branch in BRANCHES[name]:
        total = sum(p.grad.abs().sum() for p in model.get_submodule(branch).parameters())
        assert total > 0, branch


def test_detaching_restores(built: tuple[str, Callable[[], nn.Module]]) -> None:
    _, build = built
    torch.manual_seed(0)
    model = build()
    untouched = copy.deepcopy(model)
    names = set(model.state_dict())
    detach(attach(model, pap()))
    assert set(model.state_dict()) == names
    assert not hasattr(model, "criterion")
    for one, other in zip(run(model).values(), run(untouched).values(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(model.modules(), untouched.modules(), strict=True):
        assert vars(one).keys() == vars(other).keys()
    images, _ = batch()
    with torch.no_grad():
        one, other = (m.eval()(images)[0]["scores"] for m in (model, untouched))
    assert torch.equal(one, other)


def test_attached_models_are_copied_pickled_and_saved(
    built: tuple[str, Callable[[], nn.Module]],
) -> None:
    _, build = built
    torch.manual_seed(0)
    model = attach(build(), pap())
    expected = run(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # a copy that still looked at the original would notice
    again = pickle.loads(pickle.dumps(twin))
    for other in (twin, again):
        for name, loss in run(other).items():
            torch.testing.assert_close(loss, expected[name])
    assert not [key for key in model.state_dict() if key.startswith("criterion")]


def test_scores_of_a_ranking_loss_are_not_cut(built: tuple[str, Callable[[], nn.Module]]) -> None:
    name, build = built
    torch.manual_seed(0)
    model = build()
    if name == "faster-rcnn":
        nn.init.constant_(model.roi_heads.box_predictor.cls_score.bias[1:], -8.0)
    elif name == "ssd":
        for module in model.head.classification_head.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.constant_(module.bias, -8.0)
    else:
        nn.init.constant_(model.head.classification_head.cls_logits.bias, -8.0)
    images, _ = batch()
    with torch.no_grad():
        found = attach(model, pap()).eval()(images[:1])[0]
    assert len(found["scores"]) > 0
    assert found["scores"].max() < 0.03  # torchvision would cut all of them


def test_attaching_again_replaces_the_criterion() -> None:
    model = faster_rcnn()
    attach(model, pap())
    attach(model, build_criterion("ce+l1"))
    assert set(run(model)) == {
        *("rpn_cross_entropy", "rpn_box", "rcnn_cross_entropy", "rcnn_box"),
    }
    assert set(run(detach(model))) == {
        *("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"),
    }


def test_each_head_of_faster_rcnn_may_have_its_own() -> None:
    recorders = {"rpn": Recorder(), "rcnn": Recorder()}
    model = attach(faster_rcnn(), recorders)
    run(model)
    assert recorders["rpn"].seen.logits.shape[1] == 1
    assert recorders["rcnn"].seen.logits.shape[1] == 3
    with pytest.raises(ValueError, match=r"each head \(rpn, rcnn\), found detector"):
        attach(model, {"detector": Recorder()})


def test_ssd_leaves_the_background_column_out() -> None:
    recorder = Recorder()
    model = attach(ssd(), {"detector": recorder})
    run(model)
    assert recorder.seen.logits.shape[1] == 3
    assert set(recorder.seen.labels.tolist()) == {-1, 0, 1, 2}


def test_masks_keep_their_loss() -> None:
    model = maskrcnn_resnet50_fpn(**FRESH, min_size=64, max_size=64)
    attach(model, pap()).train()
    images, targets = batch(first_label=1)
    targets[0]["masks"] = torch.zeros(2, 128, 128, dtype=torch.uint8)
    targets[0]["masks"][:, 20:40, 20:40] = 1
    losses = model(images[:1], targets[:1])
    assert set(losses) == {"rpn_pap", "rcnn_pap", "loss_mask"}
    assert all(loss.isfinite() for loss in losses.values())


def test_what_cannot_be_served_is_named() -> None:
    with pytest.raises(ValueError, match=r"Linear cannot take.*RetinaNet, FCOS, SSD, FasterRCNN"):
        attach(nn.Linear(1, 1), pap())
    model = retinanet()
    with pytest.raises(ValueError, match="RetinaNet takes losses of one sigmoid score"):
        attach(model, build_criterion("ce+l1"))
    assert set(run(model)) == {"classification", "bbox_regression"}, "left as it was"

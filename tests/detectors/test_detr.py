"""transformers' DETR family with our losses: matched by its own matchers, each layer on its own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torchvision.ops import box_convert
from transformers.loss.loss_deformable_detr import DeformableDetrHungarianMatcher

from paploss.criteria import (
    Criteria,
    Criterion,
    FocalCriterion,
    MatchedPredictions,
    ParameterizedAPCriterion,
    build_criterion,
)
from paploss.detectors.attachment import attach, detach
from paploss.detectors.detr import MODELS, DetrLoss, match
from paploss.loss.localization import giou_quality
from paploss.loss.parameters import LossParameters
from paploss.loss.reference import parameterized_ap_loss_reference

CLASSES = 3
SMALL = {
    "num_labels": CLASSES,
    "num_queries": 12,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "auxiliary_loss": True,
}


def timm_backbone(*maps: int) -> dict[str, Any]:
    return {"model_type": "timm_backbone", "backbone": "test_resnet", "out_indices": list(maps)}


def detr(**settings: Any) -> nn.Module:
    return transformers.DetrForObjectDetection(
        transformers.DetrConfig(backbone_config=timm_backbone(4), **SMALL | settings)
    )


def conditional_detr(**settings: Any) -> nn.Module:
    return transformers.ConditionalDetrForObjectDetection(
        transformers.ConditionalDetrConfig(backbone_config=timm_backbone(4), **SMALL | settings)
    )


def dab_detr(**settings: Any) -> nn.Module:
    settings = SMALL | settings
    settings["hidden_size"] = settings.pop("d_model")
    return transformers.DabDetrForObjectDetection(
        transformers.DabDetrConfig(backbone_config=timm_backbone(4), **settings)
    )


def deformable_detr(**settings: Any) -> nn.Module:
    settings = {"num_feature_levels": 2, "disable_custom_kernels": True} | SMALL | settings
    return transformers.DeformableDetrForObjectDetection(
        transformers.DeformableDetrConfig(backbone_config=timm_backbone(3, 4), **settings)
    )


def rt_detr(version: str = "", **settings: Any) -> nn.Module:
    config = getattr(transformers, f"RTDetr{version}Config")(
        backbone_config=transformers.RTDetrResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_indices=[2, 3, 4],
        ),
        encoder_hidden_dim=32,
        encoder_in_channels=[16, 24, 32],
        decoder_in_channels=[32, 32, 32],
        num_denoising=6,
        **SMALL | settings,
    )
    model: nn.Module = getattr(transformers, f"RTDetr{version}ForObjectDetection")(config)
    return model


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "detr": detr,
    "conditional": conditional_detr,
    "dab": dab_detr,
    "deformable": deformable_detr,
    "rt": rt_detr,
    "rt-v2": lambda **settings: rt_detr("V2", **settings),
}
OLDER = ("detr", "conditional", "dab")
every_model = pytest.mark.parametrize("name", BUILDERS)
# Layers that have losses of their own, by what is added to the losses' names.
DECODER = ("", "_0", "_1")
RT_DETR = (*DECODER, "_encoder", "_denoising_0", "_denoising_1", "_denoising_2")


def layers_of(name: str) -> tuple[str, ...]:
    return RT_DETR if name.startswith("rt") else DECODER


def build(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = BUILDERS[name](**settings).train()
    with torch.no_grad():
        for parameter in branch(model, "class") + branch(model, "bbox"):
            parameter.normal_(std=0.1 if name in OLDER else 0.3)
    for head in ("class_labels_classifier", "class_embed", "bbox_predictor"):
        if name in OLDER and hasattr(model, head):
            getattr(model, head).register_forward_hook(Differences())
    return model


class Differences:
    """Added to what a head puts out: fresh queries of the older models are nearly the same."""

    def __call__(self, head: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return output + torch.randn(output.shape[-2:], generator=generator)


def branch(model: nn.Module, kind: str) -> list[nn.Parameter]:
    """Weights of the heads for classes (``class``) or for boxes (``bbox``)."""
    names = {"class": ("class_embed.", "class_labels_classifier.", "enc_score_head.")}
    heads = names.get(kind, ("bbox_embed.", "bbox_predictor.", "enc_bbox_head."))
    return [
        parameter
        for name, parameter in model.named_parameters()
        if any(head in name for head in heads) and "denoising" not in name
    ]


def pixels() -> Tensor:
    return torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def label(*objects: tuple[int, list[float]]) -> dict[str, Tensor]:
    return {
        "class_labels": torch.tensor([c for c, _ in objects], dtype=torch.int64),
        "boxes": torch.tensor([box for _, box in objects]).view(-1, 4),
    }


def labels() -> list[dict[str, Tensor]]:
    """Two objects, none, three."""
    return [
        label((0, [0.3, 0.3, 0.2, 0.3]), (2, [0.6, 0.7, 0.4, 0.2])),
        label(),
        label((1, [0.5, 0.5, 0.9, 0.9]), (1, [0.2, 0.2, 0.1, 0.1]), (0, [0.8, 0.3, 0.2, 0.2])),
    ]


def run(model: Any, targets: list[dict[str, Tensor]] | None = None) -> Any:
    torch.manual_seed(2)  # of RT-DETR's noise
    return model(pixels(), labels=labels() if targets is None else targets)


def linear(scale: float = 1.0) -> Criterion:
    return build_criterion("pap", parameters=LossParameters.linear(gradient_scale=scale))


def loss_of(criterion: Criterion) -> DetrLoss:
    return DetrLoss(Criteria(criterion, ("detector",)), background_column=False)


class Costs:
    """The part of a model's configuration that the loss reads."""

    class_cost, bbox_cost, giou_cost = 2, 5, 2
    auxiliary_loss = False


def call(loss: DetrLoss, logits: Tensor, boxes: Tensor, targets: list[dict[str, Tensor]]) -> Tensor:
    total, _, _ = loss(logits, targets, logits.device, boxes, Costs)
    return total


def random_labels(objects: int) -> list[dict[str, Tensor]]:
    centres = 0.25 + 0.5 * torch.rand(objects, 2)
    sizes = 0.05 + 0.4 * torch.rand(objects, 2)
    classes = torch.randint(0, CLASSES, (objects,))
    return [{"class_labels": classes, "boxes": torch.cat([centres, sizes], 1)}]


# -------------------------------------------------------------------- attaching


def test_every_model_is_tested() -> None:
    assert [type(build(name)) for name in BUILDERS] == list(MODELS)


@every_model
def test_queries_of_the_models_here_differ(name: str) -> None:
    """Otherwise rounding would decide which one is matched, and nothing were compared."""
    outputs = run(build(name))
    assert outputs.logits.std(1).min() > 0.1
    assert (outputs.pred_boxes.std(1).mean(0) > 0.02).all()


@every_model
def test_an_attached_model_trains_both_branches_in_every_layer(name: str) -> None:
    model = attach(build(name), linear())
    outputs = run(model)
    assert set(outputs.loss_dict) == {"pap" + layer for layer in layers_of(name)}
    assert all(0 < loss.item() < 2 for loss in outputs.loss_dict.values())
    torch.testing.assert_close(outputs.loss, torch.stack([*outputs.loss_dict.values()]).sum())
    for loss in outputs.loss_dict.values():
        for kind in ("class", "bbox"):
            gradients = torch.autograd.grad(
                loss, branch(model, kind), retain_graph=True, allow_unused=True
            )
            assert sum(float(g.abs().sum()) for g in gradients if g is not None) > 0


@every_model
@pytest.mark.parametrize("loss", ["focal+l1+giou", "ap+l1", "alrp", "rs"])
def test_other_losses_attach(name: str, loss: str) -> None:
    model = attach(build(name), build_criterion(loss))
    outputs = run(model)
    outputs.loss.backward()
    for kind in ("class", "bbox"):
        gradients = [p.grad for p in branch(model, kind) if p.grad is not None]
        assert all(g.isfinite().all() for g in gradients)
        assert sum(float(g.abs().sum()) for g in gradients) > 0


@every_model
def test_without_auxiliary_losses_only_the_last_layer_counts(name: str) -> None:
    outputs = run(attach(build(name, auxiliary_loss=False), linear()))
    assert set(outputs.loss_dict) == {"pap"}
    assert outputs.auxiliary_outputs is None
    every = run(attach(build(name), linear())).loss_dict
    torch.testing.assert_close(outputs.loss_dict["pap"], every["pap"])


def test_proposals_of_two_stages_are_trained_as_little_as_by_transformers() -> None:
    stages = {"two_stage": True, "with_box_refine": True, "two_stage_num_proposals": 12}
    theirs = run(build("deformable", **stages)).loss_dict
    ours = run(attach(build("deformable", **stages), linear())).loss_dict
    assert set(ours) == {"pap" + layer for layer in DECODER}
    assert {name.removeprefix("loss_bbox") for name in theirs if "bbox" in name} == set(DECODER)


@every_model
def test_detaching_gives_the_models_own_loss_back(name: str) -> None:
    own = run(build(name))
    model = attach(build(name), linear())
    assert run(model).loss_dict.keys() != own.loss_dict.keys()
    outputs = run(detach(model))
    assert torch.equal(outputs.loss, own.loss)
    assert outputs.loss_dict.keys() == own.loss_dict.keys()
    assert model.state_dict().keys() == build(name).state_dict().keys()


@every_model
def test_predictions_and_auxiliary_outputs_stay_those_of_transformers(name: str) -> None:
    own, ours = run(build(name)), run(attach(build(name), linear()))
    assert torch.equal(own.logits, ours.logits)
    assert torch.equal(own.pred_boxes, ours.pred_boxes)
    assert len(own.auxiliary_outputs) == len(ours.auxiliary_outputs) > 0
    for theirs, mine in zip(own.auxiliary_outputs, ours.auxiliary_outputs, strict=True):
        assert theirs.keys() == mine.keys()
        assert all(torch.equal(theirs[key], mine[key]) for key in theirs)


@every_model
@pytest.mark.parametrize(
    "clone",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_a_copy_has_a_criterion_of_its_own(name: str, clone: Callable[[Any], Any]) -> None:
    model = attach(build(name), linear())
    before = run(model).loss
    other = clone(model)
    assert torch.equal(run(other).loss, before)
    assert other.loss_function.criteria is other.criterion
    assert other.criterion is not model.criterion
    detach(other)
    assert "pap" not in run(other).loss_dict
    assert torch.equal(run(model).loss, before)


def test_the_criterion_moves_with_the_model() -> None:
    model = attach(build("deformable"), build_criterion("alrp")).to("meta")
    assert model.loss_function.criteria["detector"].balance.device.type == "meta"


@every_model
def test_state_goes_through_a_state_dict(name: str) -> None:
    """The criterion of aLRP has a state of its own."""
    model = attach(build(name), build_criterion("alrp"))
    with torch.no_grad():
        model.criterion["detector"].balance.fill_(7.0)
        for parameter in model.parameters():
            parameter.mul_(1.1)
    other = attach(build(name), build_criterion("alrp"))
    expected = run(model).loss
    assert not torch.equal(run(other).loss, expected)
    state = model.state_dict()
    other.load_state_dict(state)
    assert state["criterion.detector.balance"] == 7
    assert torch.equal(run(other).loss, expected)


# -------------------------------------------------------------------- which losses


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "detr"])
def test_a_softmax_loss_needs_a_column_for_background(name: str) -> None:
    model = build(name)
    with pytest.raises(ValueError, match=r"sigmoid score a class \(pap, .*rs\).*softmax head"):
        attach(model, build_criterion("ce+giou"))
    assert torch.equal(run(model).loss, run(build(name)).loss)


@every_model
def test_a_loss_in_pixels_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cse-autoloss-a measures boxes in pixels"):
        attach(build(name), build_criterion("cse-autoloss-a"))


def test_detr_trains_its_background_column_with_softmax_losses_only() -> None:
    for loss, trained in (("ce+l1", True), ("focal+l1", False), ("pap", False)):
        model = attach(build("detr"), build_criterion(loss))
        run(model).loss.backward()
        gradient = model.class_labels_classifier.weight.grad
        assert (gradient[:-1].abs().sum(1) > 0).all()
        assert bool(gradient[-1].any()) == trained


# -------------------------------------------------------------------- agreement


@pytest.mark.parametrize("name", ["conditional", "dab", "deformable"])
def test_focal_loss_agrees_with_transformers(name: str) -> None:
    """Both divide by the objects of the batch, which are the positives of every layer."""
    theirs = run(build(name))
    ours = run(attach(build(name), FocalCriterion("l1+giou", class_weight=1.0)))
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-5)
    for layer in DECODER:
        parts = theirs.loss_dict
        box = 5 * parts["loss_bbox" + layer] + 2 * parts["loss_giou" + layer]
        torch.testing.assert_close(ours.loss_dict["focal" + layer], parts["loss_ce" + layer])
        torch.testing.assert_close(ours.loss_dict["box" + layer], box)


def test_the_usual_loss_doubles_the_weight_of_classes() -> None:
    """As Deformable DETR's authors do, and transformers does not."""
    theirs = run(build("deformable")).loss_dict
    ours = run(attach(build("deformable"), build_criterion("focal+l1+giou"))).loss_dict
    torch.testing.assert_close(ours["focal"], 2 * theirs["loss_ce"])


@pytest.mark.parametrize("name", ["rt", "rt-v2"])
def test_box_losses_agree_with_rt_detr(name: str) -> None:
    """Every layer, the encoder's proposals and the denoising queries, matched as they do it."""
    theirs = run(build(name)).loss_dict
    ours = run(attach(build(name), build_criterion("focal+l1+giou"))).loss_dict
    names = dict(
        zip(RT_DETR, ("", "_aux_0", "_aux_1", "_aux_2", "_dn_0", "_dn_1", "_dn_2"), strict=True)
    )
    assert len(names) * 3 == len(theirs)
    for layer, name_of_theirs in names.items():
        box = theirs["loss_bbox" + name_of_theirs] + theirs["loss_giou" + name_of_theirs]
        torch.testing.assert_close(ours["box" + layer], box)


def test_cross_entropy_agrees_with_detr() -> None:
    theirs = run(build("detr", eos_coefficient=1.0)).loss_dict
    ours = run(attach(build("detr"), build_criterion("ce+l1"))).loss_dict
    queries, objects = 3 * SMALL["num_queries"], 5  # ours divides by all queries
    for layer in DECODER:
        torch.testing.assert_close(ours["cross_entropy" + layer], theirs["loss_ce" + layer])
        torch.testing.assert_close(
            ours["box" + layer] * queries / objects, theirs["loss_bbox" + layer]
        )


@pytest.mark.parametrize(
    ("loss", "best"), [("ce+l1", 0), ("focal+l1", 1)], ids=["softmax", "sigmoid"]
)
def test_detr_is_matched_by_the_score_that_is_trained(loss: str, best: int) -> None:
    """Of two queries with the same box, one is the more probable by softmax, one by sigmoid."""
    logits = torch.tensor([[[2.0, -4.0, -4.0, -4.0], [4.0, 4.0, 4.0, 4.0]]], requires_grad=True)
    boxes = torch.tensor([[[0.5, 0.5, 0.4, 0.4]] * 2], requires_grad=True)
    criteria = Criteria(build_criterion(loss), ("detector",))
    criterion = DetrLoss(criteria, background_column=True)
    target = [label((0, [0.5, 0.5, 0.3, 0.3]))]
    call(criterion, logits, boxes, target).backward()
    assert boxes.grad is not None
    assert boxes.grad[0].any(1).tolist() == [best == 0, best == 1]


@pytest.mark.parametrize("name", ["detr", "deformable"])
def test_pap_agrees_with_the_definition(name: str) -> None:
    """Match by hand, one object after the other, and rank by the dense formula."""
    parameters = LossParameters.from_vector(torch.rand(41).clamp(0.05, 0.95).numpy(), segments=5)
    model = attach(build(name), build_criterion("pap", parameters=parameters))
    outputs = run(model)
    config = model.config
    matcher = DeformableDetrHungarianMatcher(config.class_cost, config.bbox_cost, config.giou_cost)
    layers = {"": {"logits": outputs.logits, "pred_boxes": outputs.pred_boxes}}
    layers |= {f"_{k}": layer for k, layer in enumerate(outputs.auxiliary_outputs)}
    assert tuple(layers) == DECODER
    for layer, predictions in layers.items():
        logits = predictions["logits"][..., :CLASSES]
        found = matcher(predictions | {"logits": logits}, labels())
        classes = torch.full(logits.shape[:2], -1)
        quality = torch.zeros(logits.shape[:2])
        for image, (queries, objects) in enumerate(found):
            for query, index in zip(queries.tolist(), objects.tolist(), strict=True):
                target = labels()[image]
                classes[image, query] = target["class_labels"][index]
                pair = torch.stack(
                    [predictions["pred_boxes"][image, query], target["boxes"][index]]
                )
                one, other = box_convert(pair, "cxcywh", "xyxy")[:, None]
                quality[image, query] = giou_quality(one, other)
        expected = parameterized_ap_loss_reference(
            logits.flatten(0, 1), classes.flatten(), quality.flatten(), parameters
        )
        assert (classes >= 0).sum() == 5
        torch.testing.assert_close(
            outputs.loss_dict["pap" + layer], expected.float(), atol=1e-5, rtol=0
        )


# -------------------------------------------------------------------- matching


def test_match_puts_positives_in_the_order_of_their_rows() -> None:
    logits, boxes = torch.randn(3, 4, CLASSES), torch.rand(3, 4, 4) / 4 + 0.25
    targets = labels()
    indices = [([3, 1], [0, 1]), ([], []), ([2, 0, 3], [1, 2, 0])]
    matched = match(
        logits,
        boxes,
        targets,
        [
            (torch.tensor(q, dtype=torch.int64), torch.tensor(t, dtype=torch.int64))
            for q, t in indices
        ],
    )
    assert matched.labels.tolist() == [-1, 2, -1, 0, -1, -1, -1, -1, 0, -1, 1, 1]
    assert torch.equal(matched.logits, logits.view(12, CLASSES))
    rows = [1, 3, 8, 10, 11]
    objects = [(0, 1), (0, 0), (2, 2), (2, 1), (2, 0)]
    assert torch.equal(matched.box_deltas, boxes.view(12, 4)[rows])
    expected = torch.stack([targets[image]["boxes"][index] for image, index in objects])
    assert torch.equal(matched.target_deltas, expected)
    x, y, w, h = matched.box_deltas.unbind(1)
    torch.testing.assert_close(
        matched.predicted_boxes, torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
    )
    torch.testing.assert_close(
        matched.target_boxes[0], torch.tensor([0.4, 0.6, 0.8, 0.8]), msg="x1, y1, x2, y2"
    )


@pytest.mark.parametrize("loss", ["pap", "focal+l1+giou", "rs"])
def test_the_order_of_queries_does_not_matter(loss: str) -> None:
    criterion = loss_of(build_criterion(loss))
    logits, boxes = 3 * torch.randn(1, 40, CLASSES), torch.rand(1, 40, 4) / 2 + 0.25
    targets, order = random_labels(7), torch.randperm(40)
    before = call(criterion, logits, boxes, targets)
    after = call(criterion, logits[:, order], boxes[:, order], targets)
    torch.testing.assert_close(before, after)
    assert call(criterion, logits[:, order], boxes, targets) != before


def test_perfect_predictions_have_no_loss() -> None:
    targets = random_labels(6)
    boxes = torch.cat([targets[0]["boxes"], torch.rand(4, 4) / 4 + 0.3])[None]
    logits = torch.full((1, 10, CLASSES), -10.0)
    logits[0, torch.arange(6), targets[0]["class_labels"]] = 10.0
    criterion = loss_of(linear())
    assert call(criterion, logits, boxes, targets).item() < 1e-3
    assert call(criterion, logits, boxes * 0.8, targets).item() > 0.05, "boxes count"
    assert call(criterion, -logits, boxes, targets).item() > 0.5, "scores count"


def test_gradient_scale_acts_on_the_box_branch_only() -> None:
    gradients = []
    for scale in (1.0, 4.0):
        model = attach(build("deformable"), linear(scale))
        run(model).loss.backward()
        gradients.append([[p.grad for p in branch(model, kind)] for kind in ("class", "bbox")])
    for one, four in zip(*(kinds[0] for kinds in gradients), strict=True):
        assert torch.equal(one, four)
    for one, four in zip(*(kinds[1] for kinds in gradients), strict=True):
        assert one.any()
        torch.testing.assert_close(four, 4 * one)


@every_model
@pytest.mark.parametrize("loss", ["pap", "focal+l1+giou", "alrp", "rs"])
def test_a_batch_without_objects(name: str, loss: str) -> None:
    model = attach(build(name), build_criterion(loss))
    outputs = run(model, [label()] * 3)
    outputs.loss.backward()
    assert outputs.loss.isfinite()
    boxes = [p.grad for p in branch(model, "bbox") if p.grad is not None]
    assert not any(gradient.any() for gradient in boxes)
    if loss == "pap":
        assert outputs.loss == 0
        assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("queries", "positives"), [(320, 300), (300, 300), (40, 40)])
def test_three_hundred_objects_in_an_image(queries: int, positives: int) -> None:
    class Counting(ParameterizedAPCriterion):
        def forward(self, matched: MatchedPredictions) -> dict[str, Tensor]:
            assert int((matched.labels >= 0).sum()) == len(matched.target_boxes) == positives
            return super().forward(matched)

    loss = loss_of(Counting(LossParameters.linear()))
    logits = torch.randn(2, queries, CLASSES, requires_grad=True)
    boxes = (torch.rand(2, queries, 4) / 2 + 0.25).requires_grad_()
    total = call(loss, logits, boxes, [*random_labels(300), label()])
    total.backward()
    assert 0 < total.item() < 2
    assert boxes.grad is not None
    assert boxes.grad[0].any()
    assert not boxes.grad[1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_outputs_in_half_precision_are_matched_as_in_full(dtype: torch.dtype) -> None:
    criterion = loss_of(linear())
    logits = torch.randn(1, 20, CLASSES).to(dtype)
    boxes = (torch.rand(1, 20, 4) / 2 + 0.25).to(dtype)
    targets = random_labels(5)
    half = call(criterion, logits, boxes, targets)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, call(criterion, logits.float(), boxes.float(), targets))


@every_model
def test_half_precision(name: str) -> None:
    full = run(attach(build(name), linear()))
    model = attach(build(name), linear())
    with torch.autocast("cpu", torch.bfloat16):
        outputs = run(model)
    outputs.loss.backward()
    assert outputs.loss.dtype == torch.float32
    assert outputs.loss.item() == pytest.approx(full.loss.item(), rel=0.3)


# -------------------------------------------------------------------- transformers' own trainer


class Squares(torch.utils.data.Dataset[dict[str, Any]]):
    """A bright square on a dark image."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = 8 + 8 * (index % 4), 8 + 8 * (index // 4)
        image = torch.zeros(3, 64, 64)
        image[:, y : y + 24, x : x + 24] = 1
        box = [(x + 12) / 64, (y + 12) / 64, 24 / 64, 24 / 64]
        return {"pixel_values": image, "labels": label((index % 2, box))}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pixel_values": torch.stack([sample["pixel_values"] for sample in samples]),
        "labels": [sample["labels"] for sample in samples],
    }


def test_the_trainer_of_transformers_trains_an_attached_model(tmp_path: Path) -> None:
    model = attach(build("deformable"), linear())
    before = copy.deepcopy(model.state_dict())
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=20,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            remove_unused_columns=False,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Squares(),
        data_collator=collate,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 20
    assert sum(losses[-4:]) < sum(losses[:4]) - 0.4
    after = model.state_dict()
    for part in ("class_embed.0.weight", "bbox_embed.0.layers.0.weight", "model.level_embed"):
        assert not torch.equal(before[part], after[part])

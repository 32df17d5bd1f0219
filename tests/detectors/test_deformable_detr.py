"""Our Deformable DETR: torchvision's calling convention around transformers' model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from paploss.criteria import build_criteria
from paploss.detectors import build_detector
from paploss.detectors.config import detector_config
from paploss.detectors.deformable_detr import DeformableDetr

CLASSES = 3


def tiny(loss: str = "pap", **settings: Any) -> Any:
    torch.manual_seed(0)
    config = detector_config(name="deformable-detr", size="tiny", **settings)
    model = build_detector(config, CLASSES, build_criteria(loss, config.heads))
    assert isinstance(model, DeformableDetr)
    return model


def batch() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images of two sizes: two objects, none, one."""
    generator = torch.Generator().manual_seed(1)
    sizes = (128, 128), (96, 128), (128, 96)
    images = [torch.rand(3, *size, generator=generator) for size in sizes]
    targets = [
        {
            "boxes": torch.tensor([[10.0, 10.0, 40.0, 50.0], [60.0, 20.0, 120.0, 90.0]]),
            "labels": torch.tensor([0, 2]),
        },
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
        {"boxes": torch.tensor([[0.0, 0.0, 96.0, 128.0]]), "labels": torch.tensor([1])},
    ]
    return images, targets


def spread_heads(model: Any) -> None:
    """Heads that tell queries and classes apart, as fresh ones hardly do."""
    with torch.no_grad():
        for parameter in [
            *model.detr.class_embed.parameters(),
            *model.detr.bbox_embed.parameters(),
        ]:
            parameter.normal_(std=0.3)


# -------------------------------------------------------------------- training


@pytest.mark.parametrize("loss", ["pap", "focal+l1+giou", "focal+giou", "ap+l1", "alrp", "rs"])
@pytest.mark.parametrize("refinement", [False, True])
def test_training_gives_the_losses_of_every_decoder_layer(loss: str, refinement: bool) -> None:
    model = tiny(loss, box_refinement=refinement).train()
    losses = model(*batch())
    last = {name for name in losses if not name[-1].isdigit()}
    assert last
    assert set(losses) == {name + layer for name in last for layer in ("", "_0", "_1")}
    sum(losses.values()).backward()
    assert all(p.grad is not None for p in model.parameters()), "DDP needs every gradient"
    assert all(p.grad.isfinite().all() for p in model.parameters())
    for branch in (model.detr.class_embed, model.detr.bbox_embed, model.detr.model.backbone):
        assert sum(p.grad.abs().sum().item() for p in branch.parameters()) > 0


def test_boxes_become_parts_of_the_image_without_its_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny().train()
    given: dict[str, Any] = {}
    forward = model.detr.forward
    monkeypatch.setattr(model.detr, "forward", lambda **inputs: forward(**given | inputs))
    images, targets = batch()

    def keep(module: nn.Module, arguments: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        given.update(inputs)

    model.detr.register_forward_pre_hook(keep, with_kwargs=True)
    model(images, targets)
    assert given["pixel_values"].shape == (3, 3, 128, 128)
    torch.testing.assert_close(
        given["labels"][0]["boxes"],
        torch.tensor([[25, 30, 30, 40], [90, 55, 60, 70]]) / 128,
    )
    torch.testing.assert_close(given["labels"][2]["boxes"], torch.tensor([[0.5, 0.5, 1.0, 1.0]]))
    assert [label["class_labels"].tolist() for label in given["labels"]] == [[0, 2], [], [1]]
    mask = given["pixel_mask"]
    assert mask.sum((1, 2)).tolist() == [128 * 128, 96 * 128, 128 * 96]
    assert mask[1, :96].all()
    assert mask[2, :, :96].all()


def test_targets_are_needed_in_training_only() -> None:
    images, _ = batch()
    with pytest.raises(ValueError, match="targets: needed in training"):
        tiny().train()(images)
    assert len(tiny().eval()(images)) == 3


def test_a_batch_without_objects_trains() -> None:
    images, targets = batch()
    model = tiny("pap").train()
    total = sum(model(images, [targets[1]] * 3).values())
    total.backward()
    assert total == 0
    assert not any(p.grad.any() for p in model.parameters())


def test_it_learns_an_image() -> None:
    """A few steps on one image: the right class, at the right place, comes first."""
    for loss in ("pap", "focal+l1+giou"):
        model = tiny(loss, decoder_layers=2).train()
        image = torch.zeros(3, 128, 128)
        image[:, 20:70, 60:110] = 1
        target = {"boxes": torch.tensor([[60.0, 20.0, 110.0, 70.0]]), "labels": torch.tensor([1])}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(60):
            losses = model([image] * 2, [target] * 2)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
        found = model.eval()([image])[0]
        assert found["labels"][0] == 1
        torch.testing.assert_close(found["boxes"][0], target["boxes"][0], atol=6, rtol=0)


# -------------------------------------------------------------------- detections


def test_detections_are_in_the_images_own_pixels() -> None:
    model = tiny(box_refinement=False).eval()
    spread_heads(model)
    sizes = (100, 200), (300, 50), (128, 128)
    with torch.no_grad():
        outputs = model([torch.rand(3, *size) for size in sizes])
    for output, (height, width) in zip(outputs, sizes, strict=True):
        assert output.keys() == {"boxes", "scores", "labels"}
        boxes, scores = output["boxes"], output["scores"]
        assert boxes.shape == (100, 4)
        assert (boxes >= 0).all()
        assert (boxes[:, 0::2] <= width + 1e-3).all()
        assert (boxes[:, 1::2] <= height + 1e-3).all()
        assert (boxes[:, 2:] >= boxes[:, :2]).all()
        assert boxes[:, 2].max() > width / 2
        assert boxes[:, 3].max() > height / 2
        assert torch.equal(scores, scores.sort(descending=True).values)
        assert set(output["labels"].tolist()) == {0, 1, 2}


@torch.no_grad()
def test_detections_are_the_best_scores_of_all_queries_and_classes() -> None:
    model = tiny(short_side=64, long_side=64).eval()
    spread_heads(model)
    image = torch.rand(3, 128, 128)
    found = model([image])[0]
    small, _ = model.transform([image])
    outputs = model.detr(pixel_values=small.tensors)
    assert small.tensors.shape[-1] == 64
    expected = []
    for scores, (x, y, w, h) in zip(
        outputs.logits[0].sigmoid().tolist(), (outputs.pred_boxes[0] * 128).tolist(), strict=True
    ):
        corners = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        corners = [min(max(corner, 0), 128) for corner in corners]
        expected += [(score, label, corners) for label, score in enumerate(scores)]
    expected.sort(key=lambda detection: -detection[0])
    assert len(expected) == 50 * CLASSES
    for rank, (score, label, corners) in enumerate(expected[:100]):
        assert found["scores"][rank].item() == pytest.approx(score, abs=1e-6)
        assert found["labels"][rank] == label
        assert found["boxes"][rank].tolist() == pytest.approx(corners, abs=1e-2)


@torch.no_grad()
def test_few_queries_give_few_detections() -> None:
    assert len(tiny(queries=5).eval()([torch.rand(3, 128, 128)])[0]["scores"]) == 5 * CLASSES


class _Averages(nn.Module):
    """A backbone that sees no further than a cell of its maps."""

    def forward(self, images: Tensor) -> list[Tensor]:
        return [
            torch.nn.functional.avg_pool2d(images, stride)[:, :1].expand(-1, channels, -1, -1)
            for stride, channels in ((8, 48), (16, 192), (32, 96))
        ]


@torch.no_grad()
def test_padding_does_not_count() -> None:
    """An image is detected alike alone and beside one that makes the batch larger."""
    model = tiny(short_side=64, long_side=128).eval()
    spread_heads(model)
    model.detr.model.backbone.model = _Averages()  # others look over the image's border
    for projection in model.detr.model.input_proj:
        projection[1] = nn.Identity()  # group norms average over the padding, too
    image, wide, high = torch.rand(3, 64, 64), torch.rand(3, 64, 128), torch.rand(3, 128, 64)
    alone = model([image])[0]
    padded = model([wide, image, high])[1]
    for key in alone:
        torch.testing.assert_close(padded[key], alone[key], atol=1e-3, rtol=1e-4)


def test_equal_scores_after_rounding_keep_their_order() -> None:
    """Scores of a ranking loss may be so high that their sigmoids are all 1."""
    model = tiny().eval()
    spread_heads(model)
    with torch.no_grad():
        image = torch.rand(3, 128, 128)
        expected = model([image])[0]
        for head in model.detr.class_embed:
            head.bias += 60
        found = model([image])[0]
    assert (found["scores"] == 1).all()
    assert torch.equal(found["labels"][:30], expected["labels"][:30])
    assert torch.equal(found["boxes"][:30], expected["boxes"][:30])


# -------------------------------------------------------------------- building


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_levels(levels: int) -> None:
    model = tiny(levels=levels)
    shapes: list[tuple[int, int]] = []
    model.detr.model.encoder.register_forward_pre_hook(
        lambda module, arguments, inputs: shapes.extend(inputs["spatial_shapes_list"]),
        with_kwargs=True,
    )
    losses = model.train()(*batch())
    assert [128 // height for height, _ in shapes] == {
        1: [32],
        2: [16, 32],
        3: [8, 16, 32],
        4: [8, 16, 32, 64],
    }[levels]
    assert sum(losses.values()).isfinite()
    assert len(model.eval()(batch()[0])) == 3


@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norms_train_unless_they_are_frozen(frozen: bool) -> None:
    model = tiny(freeze_batch_norm=frozen).train()
    backbone = model.detr.model.backbone
    spread_heads(model)
    with torch.no_grad():  # timm begins with residual branches of weight 0
        for norm in backbone.modules():
            if "BatchNorm" in type(norm).__name__:
                norm.weight.fill_(1.0)
    before = copy.deepcopy(backbone.state_dict())
    assert len([key for key in before if key.endswith("running_var")]) == 15
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sum(model(*batch()).values()).backward()
    optimizer.step()
    after = backbone.state_dict()
    norms = {key.rpartition(".")[0] for key in before if key.endswith("running_var")}
    for norm in norms:
        for part in ("running_mean", "running_var", "weight", "bias"):
            same = torch.equal(before[f"{norm}.{part}"], after[f"{norm}.{part}"])
            assert same == frozen, f"{norm}.{part}"
    convolutions = [key for key, value in before.items() if value.dim() == 4]
    assert not any(torch.equal(before[key], after[key]) for key in convolutions)


def test_activations_inside_batch_norms_survive_freezing() -> None:
    """Some models of timm join both in a layer; what transformers puts in its place has no activation."""
    model = tiny(backbone="timm:test_efficientnet", freeze_batch_norm=True)
    names = {type(layer).__name__ for layer in model.detr.model.backbone.modules()}
    assert "FrozenBatchNormAct2d" in names
    assert not any("FrozenBatchNorm2d" in name for name in names)


def test_weights_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(7)
    state = timm.create_model("test_resnet").state_dict()
    torch.save(state, tmp_path / "weights.pt")
    model = tiny(weights=str(tmp_path / "weights.pt"))
    loaded = model.detr.model.backbone.model.state_dict()
    assert loaded
    assert all(torch.equal(value, state[key]) for key, value in loaded.items())

    state["layer1.0.conv1.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"not one of test_resnet: 1 of .*layer1\.0\.conv1"):
        tiny(weights=str(tmp_path / "other.pt"))
    with pytest.raises(ValueError, match="weights: expected none, imagenet, shapes or a file"):
        tiny(weights=str(tmp_path / "missing.pt"))


def test_imagenet_weights_of_torchvisions_resnets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names of parameters, and the same numbers after them, in timm's layers."""
    import torchvision

    import paploss.detectors.deformable_detr as module

    def without_download(name: str, weights: str) -> nn.Module:
        assert weights == "IMAGENET1K_V1"
        model: nn.Module = torchvision.models.get_model(name, weights=None).eval()
        return model

    monkeypatch.setattr(module, "get_model", without_download)
    torch.manual_seed(3)
    reference = without_download("resnet18", "IMAGENET1K_V1")
    torch.manual_seed(0)  # as `tiny` does
    reference = without_download("resnet18", "IMAGENET1K_V1")
    model = tiny(backbone="resnet18", weights="imagenet", levels=1).eval()
    x = torch.rand(1, 3, 64, 64)
    layers = nn.Sequential(*list(reference.children())[:-2])
    with torch.no_grad():
        torch.testing.assert_close(model.detr.model.backbone.model(x)[-1], layers(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "timm:nothing"}, "backbone: timm has no model 'nothing'"),
        ({"channels": 48}, "channels: expected a multiple of 32 .* found 48"),
        ({"attention_heads": 3}, "channels: expected a multiple of 32 and of the 3 attention"),
    ],
)
def test_settings_that_cannot_be_built(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**settings)


def test_a_softmax_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="one sigmoid score a class"):
        tiny("ce+l1")


def test_fresh_queries_look_everywhere_for_small_objects_of_low_score() -> None:
    """As the authors begin; transformers' own start has all queries in the middle."""
    for refinement in (False, True):
        model = tiny(box_refinement=refinement).eval()
        with torch.no_grad():
            outputs = model.detr(torch.rand(1, 3, 128, 128))
        boxes = outputs.pred_boxes[0]
        assert (boxes[:, :2].std(0) > 0.2).all()
        torch.testing.assert_close(
            boxes[:, 2:], torch.full_like(boxes[:, 2:], 0.1192), atol=1e-3, rtol=0
        )
        assert outputs.logits.sigmoid().mean() == pytest.approx(0.01, abs=0.01)


def test_refined_boxes_have_a_head_in_every_layer() -> None:
    refined, plain = tiny(box_refinement=True).detr, tiny(box_refinement=False).detr
    for heads in (refined.class_embed, refined.bbox_embed):
        assert len({id(p) for head in heads for p in head.parameters()}) == len(
            [p for head in heads for p in head.parameters()]
        )
    # The decoder refines its reference points with the very heads that are trained.
    for own, decoders in zip(refined.bbox_embed, refined.model.decoder.bbox_embed, strict=True):
        assert all(a is b for a, b in zip(own.parameters(), decoders.parameters(), strict=True))
    assert plain.class_embed[0].weight is plain.class_embed[2].weight


@pytest.mark.parametrize("refinement", [False, True])
def test_state_goes_through_a_state_dict(refinement: bool) -> None:
    model = tiny(box_refinement=refinement).eval()
    spread_heads(model)
    other = tiny(box_refinement=refinement).eval()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    image = torch.rand(3, 128, 128)
    with torch.no_grad():
        found, again = model([image])[0], other([image])[0]
    assert all(torch.equal(found[key], again[key]) for key in found)


def test_a_copy_trains_with_a_criterion_of_its_own() -> None:
    model = tiny("alrp").train()
    other = copy.deepcopy(model)
    assert other.detr.loss_function.criteria is other.criterion
    assert other.criterion is not model.criterion
    assert [k for k in model.state_dict() if k.startswith("criterion.")]
    assert not [k for k in model.state_dict() if k.startswith("detr.criterion.")]

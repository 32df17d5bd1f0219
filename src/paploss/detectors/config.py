"""What a detector is made of, as checked configuration. A size fills in what is not given."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, model_validator

# `tiny` trains in minutes on two CPU cores; `r50` is the paper's.
Size = Literal["tiny", "r50"]
_BACKBONES: dict[str, dict[str, Any]] = {
    "tiny": {
        "backbone": "timm:test_resnet",
        "weights": "none",
        "channels": 64,
        "freeze_batch_norm": False,
        "frozen_stride": 0,
        "short_side": 128,
        "long_side": 128,
    },
    "r50": {
        "backbone": "resnet50",
        "weights": "imagenet",
        "channels": 256,
        "freeze_batch_norm": True,
        "frozen_stride": 4,
        "short_side": 500,
        "long_side": 833,
    },
}


class _Detector(BaseModel):
    model_config = ConfigDict(extra="forbid")
    heads: ClassVar[tuple[str, ...]] = ("detector",)
    default_preset: ClassVar[str] = "retinanet-r50-fpn-coco-tied"  # of `pap`
    usual_loss: ClassVar[str]  # what people train it with today
    sizes: ClassVar[dict[str, dict[str, Any]]] = {}

    size: Size = "tiny"
    backbone: str
    weights: str  # none, imagenet, shapes, or a file
    channels: int = Field(ge=8)
    freeze_batch_norm: bool
    frozen_stride: Literal[0, 2, 4, 8]  # layers up to this stride do not learn
    short_side: int = Field(ge=32)
    long_side: int = Field(ge=32)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, values: Any) -> Any:
        if isinstance(values, dict):
            size = values.get("size", "tiny")
            return _BACKBONES.get(size, {}) | cls.sizes.get(size, {}) | values
        return values


class _AnchoredDetector(_Detector):
    finest_stride: Literal[4, 8]  # of the pyramid's first level
    levels: int = Field(ge=3, le=5)
    anchor_scale: float = Field(gt=0)  # of the smallest anchor, in units of its level's stride
    scales_per_octave: int = Field(ge=1)
    nms_threshold: float = Field(gt=0, le=1)
    # No absolute cut: a ranking loss fixes differences of scores only, whole classes may lie low.
    score_threshold: float = Field(default=0.0, ge=0, lt=1)


class RetinaNetConfig(_AnchoredDetector):
    usual_loss: ClassVar[str] = "focal+l1"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"levels": 4, "anchor_scale": 2.0, "candidates": 300, "head_std": 0.03},
        "r50": {"levels": 5, "anchor_scale": 4.0, "candidates": 1000, "head_std": 0.01},
    }

    name: Literal["retinanet"] = "retinanet"
    finest_stride: Literal[4, 8] = 8
    scales_per_octave: int = Field(default=2, ge=1)
    nms_threshold: float = Field(default=0.6, gt=0, le=1)
    candidates: int = Field(ge=1)  # of an image and level that non-maximum suppression sees
    # Of the fresh weights of the heads' hidden layers. The usual 0.01 is for 256 channels: through four
    # layers of 64 a thousandth of the signal is left, and one epoch gives a third of the AP.
    head_std: float = Field(gt=0)


class FasterRCNNConfig(_AnchoredDetector):
    heads: ClassVar[tuple[str, ...]] = ("rpn", "rcnn")
    default_preset: ClassVar[str] = "faster-rcnn-r50-fpn-coco-tied"
    usual_loss: ClassVar[str] = "ce+l1"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {
            "finest_stride": 8,
            "levels": 4,
            "anchor_scale": 2.0,
            "scales_per_octave": 2,
            "proposals": 100,
            "region_size": 5,
            "region_samples": 1,
            "region_features": 256,
        },
        "r50": {
            "finest_stride": 4,
            "levels": 5,
            "anchor_scale": 8.0,
            "scales_per_octave": 1,
            "proposals": 1000,
            "region_size": 7,
            "region_samples": 2,
            "region_features": 1024,
        },
    }

    name: Literal["faster-rcnn"] = "faster-rcnn"
    nms_threshold: float = Field(default=0.5, gt=0, le=1)
    proposals: int = Field(ge=1)  # of an image, that go on to the second stage
    region_size: int = Field(ge=1)  # side of the feature map of a region
    region_samples: int = Field(ge=1)  # along each side of one of its cells
    region_features: int = Field(ge=1)  # of the second stage's two hidden layers


class DeformableDetrConfig(_Detector):
    usual_loss: ClassVar[str] = "focal+l1+giou"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {
            "levels": 3,
            "queries": 50,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "feedforward": 128,
            "attention_heads": 4,
            "dropout": 0.0,
            "box_refinement": True,  # without it 15 epochs teach next to nothing
        },
        "r50": {
            "backbone": "timm:resnet50",
            "levels": 4,
            "queries": 300,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "feedforward": 1024,
            "attention_heads": 8,
            "dropout": 0.1,
            "box_refinement": False,
        },
    }

    name: Literal["deformable-detr"] = "deformable-detr"
    levels: int = Field(ge=1, le=4)
    queries: int = Field(ge=1)
    encoder_layers: int = Field(ge=1)
    decoder_layers: int = Field(ge=1)
    feedforward: int = Field(ge=1)
    attention_heads: int = Field(ge=1)
    dropout: float = Field(ge=0, lt=1)
    box_refinement: bool


def _name(value: Any) -> str:
    name = value.get("name", "retinanet") if isinstance(value, dict) else value.name
    return str(name)


DetectorConfig = Annotated[
    Annotated[RetinaNetConfig, Tag("retinanet")]
    | Annotated[FasterRCNNConfig, Tag("faster-rcnn")]
    | Annotated[DeformableDetrConfig, Tag("deformable-detr")],
    Discriminator(
        _name,
        custom_error_type="detector",
        custom_error_message="expected one of retinanet, faster-rcnn, deformable-detr",
    ),
]


def detector_config(**settings: Any) -> DetectorConfig:
    """A detector's configuration: ``name``, ``size`` and whatever differs from them."""
    config: DetectorConfig = TypeAdapter(DetectorConfig).validate_python(settings)
    return config

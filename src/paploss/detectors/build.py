"""Which detectors there are, in which sizes, and how one is built from a configuration."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from paploss.criteria import Criterion
from paploss.detectors.backbones import build_backbone
from paploss.detectors.retinanet import RetinaNet

# `tiny` trains in minutes on two CPU cores; `r50` is the paper's.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "backbone": "timm:test_resnet",
        "weights": "none",
        "channels": 64,
        "levels": 4,
        "anchor_scale": 2.0,
        "short_side": 128,
        "long_side": 128,
        "freeze_batch_norm": False,
    },
    "r50": {
        "backbone": "resnet50",
        "weights": "imagenet",
        "channels": 256,
        "levels": 5,
        "anchor_scale": 4.0,
        "short_side": 500,
        "long_side": 833,
        "freeze_batch_norm": True,
    },
}


class DetectorConfig(BaseModel):
    """A detector; ``size`` fills in what is not given."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["retinanet"] = "retinanet"
    size: Literal["tiny", "r50"] = "tiny"
    backbone: str
    weights: str
    channels: int = Field(ge=8)
    levels: int = Field(ge=3, le=5)
    freeze_batch_norm: bool
    anchor_scale: float = Field(gt=0)
    scales_per_octave: int = Field(default=2, ge=1)
    short_side: int = Field(ge=32)
    long_side: int = Field(ge=32)
    nms_threshold: float = Field(default=0.6, gt=0, le=1)
    # No absolute cut: a ranking loss fixes differences of scores only, whole classes may lie low.
    score_threshold: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_size(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return SIZES.get(values.get("size", "tiny"), {}) | values
        return values


def build_detector(config: DetectorConfig, classes: int, criterion: Criterion) -> torch.nn.Module:
    """A detector with fresh heads whose training loss is the criterion."""
    backbone = build_backbone(
        config.backbone,
        weights=config.weights,
        channels=config.channels,
        levels=config.levels,
        freeze_batch_norm=config.freeze_batch_norm,
    )
    return RetinaNet(
        backbone,
        classes,
        criterion,
        levels=config.levels,
        anchor_scale=config.anchor_scale,
        scales_per_octave=config.scales_per_octave,
        short_side=config.short_side,
        long_side=config.long_side,
        nms_threshold=config.nms_threshold,
        score_threshold=config.score_threshold,
    )

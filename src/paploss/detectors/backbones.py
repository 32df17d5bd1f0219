"""Feature pyramids on torchvision or timm backbones, of any size, with weights by name or from a file."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops.feature_pyramid_network import (
    ExtraFPNBlock,
    FeaturePyramidNetwork,
    LastLevelMaxPool,
    LastLevelP6P7,
)

STRIDES = (8, 16, 32)  # of the feature maps taken from a backbone


class BackboneWithPyramid(nn.Module):
    """A backbone's feature maps of stride 8, 16, 32 in a feature pyramid, and coarser levels on top.

    Args:
        body: gives the three maps, as a dict in order of stride.
        channels_in: channels of the three maps.
        channels: channels of every level of the pyramid.
        levels: 3, 4 (one max-pooled on top) or 5 (two convolutions on top, as in RetinaNet).
    """

    def __init__(self, body: nn.Module, channels_in: list[int], channels: int, levels: int) -> None:
        super().__init__()
        extra: ExtraFPNBlock | None = {
            3: None,
            4: LastLevelMaxPool(),
            5: LastLevelP6P7(channels_in[-1], channels),
        }[levels]
        self.body = body
        self.fpn = FeaturePyramidNetwork(channels_in, channels, extra_blocks=extra)
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pyramid: dict[str, Tensor] = self.fpn(self.body(images))
        return pyramid


class _TimmBody(nn.Module):
    def __init__(self, model: nn.Module, indices: list[int]) -> None:
        super().__init__()
        self.model = model
        self.indices = indices

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.model(images)
        return OrderedDict((str(level), maps[level]) for level in range(len(maps)))


def build_backbone(
    name: str, *, weights: str, channels: int, levels: int, freeze_batch_norm: bool
) -> BackboneWithPyramid:
    """A feature pyramid on a named backbone.

    Args:
        name: a torchvision model (``resnet50``, ``mobilenet_v2``, ...), or ``timm:NAME``.
        weights: ``none``, ``imagenet`` (downloaded by torchvision or timm), or a file of the
            library's own state dict.
        channels: channels of the pyramid.
        levels: of the pyramid, 3 to 5.
        freeze_batch_norm: keep the statistics and affine terms of batch norms as they are.
    """
    pretrained = weights == "imagenet"
    state = None if weights in ("none", "imagenet") else _load_state(Path(weights))
    if name.startswith("timm:"):
        body, channels_in = _timm_body(name.removeprefix("timm:"), pretrained, state)
    else:
        body, channels_in = _torchvision_body(name, pretrained, state)
    if freeze_batch_norm:
        from timm.layers import freeze_batch_norm_2d

        body = freeze_batch_norm_2d(body)
    return BackboneWithPyramid(body, channels_in, channels, levels)


def _timm_body(
    name: str, pretrained: bool, state: dict[str, Tensor] | None
) -> tuple[nn.Module, list[int]]:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"backbone: timm has no model {name!r}")
    model = timm.create_model(name, features_only=True, pretrained=pretrained)
    reductions = model.feature_info.reduction()
    missing = [stride for stride in STRIDES if stride not in reductions]
    if missing:
        raise ValueError(f"backbone: {name} has no feature maps of stride {missing}: {reductions}")
    indices = [reductions.index(stride) for stride in STRIDES]
    model = timm.create_model(name, features_only=True, pretrained=pretrained, out_indices=indices)
    if state is not None:
        _load_matching(model, state, name)
    return _TimmBody(model, indices), list(model.feature_info.channels())


def _torchvision_body(
    name: str, pretrained: bool, state: dict[str, Tensor] | None
) -> tuple[nn.Module, list[int]]:
    try:
        model = get_model(name, weights="IMAGENET1K_V1" if pretrained else None)
    except ValueError:
        raise ValueError(
            f"backbone: torchvision has no model {name!r}; timm's are written timm:NAME"
        ) from None
    if state is not None:
        _load_matching(model, state, name)
    if hasattr(model, "layer4"):  # the ResNet family
        layers = {"layer2": "0", "layer3": "1", "layer4": "2"}
        trunk: Any = model
    elif isinstance(getattr(model, "features", None), nn.Sequential):
        trunk = model.features
        layers = _last_layer_of_each_stride(trunk)
    else:
        raise ValueError(f"backbone: the layers of {name} are not known; try timm:{name}")
    body = IntermediateLayerGetter(trunk, return_layers=layers)
    with torch.no_grad():
        maps = body.eval()(torch.zeros(1, 3, 64, 64))
    body.train()
    return body, [feature.shape[1] for feature in maps.values()]


def _last_layer_of_each_stride(layers: nn.Sequential) -> dict[str, str]:
    last = {}
    x = torch.zeros(1, 3, 64, 64)
    layers.eval()
    with torch.no_grad():
        for name, layer in layers.named_children():
            x = layer(x)
            last[64 // x.shape[-1]] = name
    layers.train()
    missing = [stride for stride in STRIDES if stride not in last]
    if missing:
        raise ValueError(f"backbone: no feature maps of stride {missing}, found {sorted(last)}")
    return {last[stride]: str(level) for level, stride in enumerate(STRIDES)}


def _load_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"weights: expected none, imagenet or a file, found {str(path)!r}")
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _load_matching(model: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Load a state dict into a backbone; a classifier of another size may be left over."""
    own = model.state_dict()
    fitting = {
        key: value for key, value in state.items() if key in own and own[key].shape == value.shape
    }
    missing = [
        key for key in own if key not in fitting and not key.startswith(("classifier", "fc"))
    ]
    if missing:
        raise ValueError(
            f"weights: the file is not one of {name}: {len(missing)} of {len(own)} tensors missing, "
            f"the first {missing[0]!r}"
        )
    model.load_state_dict(fitting, strict=False)

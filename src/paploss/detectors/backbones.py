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

from paploss.detectors.config import FasterRCNNConfig, RetinaNetConfig

COARSEST_STRIDE = 32  # of the feature maps taken from a backbone
# Made by experiments/pretrain_backbone.py, so that the short trainings of a search start from something.
SHAPES_WEIGHTS = Path(__file__).parent / "weights" / "shapes-test_resnet.pt"


class BackboneWithPyramid(nn.Module):
    """A backbone's feature maps in a feature pyramid, and coarser levels on top.

    Args:
        body: gives the maps, as a dict in order of stride.
        channels_in: channels of the maps.
        channels: channels of every level of the pyramid.
        extra_levels: above them: none, one (max-pooled) or two (by convolutions, as in RetinaNet).
    """

    def __init__(
        self, body: nn.Module, channels_in: list[int], channels: int, extra_levels: int
    ) -> None:
        super().__init__()
        extra: ExtraFPNBlock | None = (
            None,
            LastLevelMaxPool(),
            LastLevelP6P7(channels_in[-1], channels),
        )[extra_levels]
        self.body = body
        self.fpn = FeaturePyramidNetwork(channels_in, channels, extra_blocks=extra)
        self.out_channels = channels
        self.levels = [str(level) for level in range(len(channels_in))]  # without the extra ones

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pyramid: dict[str, Tensor] = self.fpn(self.body(images))
        return pyramid


class _TimmBody(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.model(images)
        return OrderedDict((str(level), maps[level]) for level in range(len(maps)))


def build_backbone(config: RetinaNetConfig | FasterRCNNConfig) -> BackboneWithPyramid:
    """A feature pyramid on a backbone.

    The backbone is a torchvision model (``resnet50``, ``mobilenet_v2``, ...) or ``timm:NAME``; its
    weights are ``none``, ``imagenet`` (downloaded by the library), ``shapes`` (shipped, of
    ``timm:test_resnet``) or a file of the library's own state dict. Frozen batch norms keep their statistics and affine terms.
    """
    strides = [s for s in (4, 8, 16, COARSEST_STRIDE) if s >= config.finest_stride]
    extra_levels = config.levels - len(strides)
    if extra_levels not in (0, 1, 2):
        raise ValueError(
            f"levels: from stride {config.finest_stride} on expected {len(strides)} to "
            f"{len(strides) + 2}, found {config.levels}"
        )
    pretrained = config.weights == "imagenet"
    state = given_state(config.weights)
    if config.backbone.startswith("timm:"):
        name = config.backbone.removeprefix("timm:")
        body, channels_in = timm_body(name, strides, pretrained, state)
    else:
        body, channels_in = _torchvision_body(config.backbone, strides, pretrained, state)
    body = freeze(body, batch_norms=config.freeze_batch_norm, up_to_stride=config.frozen_stride)
    pyramid = BackboneWithPyramid(body, channels_in, config.channels, extra_levels)
    if config.weights == "shapes":  # these come with a pyramid
        assert state is not None
        own = pyramid.fpn.state_dict()
        trained = {name: state.get(f"fpn.{name}") for name in own}
        if any(value is None or value.shape != own[name].shape for name, value in trained.items()):
            raise ValueError(
                "weights: those of shapes are for 64 channels and strides 8 to 32, found "
                f"{config.channels} channels from stride {config.finest_stride}"
            )
        pyramid.fpn.load_state_dict(trained)
    return pyramid


def freeze(body: nn.Module, *, batch_norms: bool, up_to_stride: int) -> nn.Module:
    """Freeze the first layers of a backbone, and its batch norms, as is usual with ImageNet weights.

    Args:
        body: a backbone whose parts are called one after the other.
        batch_norms: keep statistics and affine terms of all of them.
        up_to_stride: layers whose output has at most this stride do not learn; 0: all learn.
    """
    if batch_norms:
        from timm.layers import freeze_batch_norm_2d

        body = freeze_batch_norm_2d(body)
    if up_to_stride:
        trunk = body.model if isinstance(body, _TimmBody) else body
        for part, stride in _strides(body, trunk).items():
            if stride <= up_to_stride:
                part.requires_grad_(False)
    return body


@torch.no_grad()
def _strides(body: nn.Module, trunk: nn.Module) -> dict[nn.Module, int]:
    """Stride of the output of each part of a backbone."""
    strides: dict[nn.Module, int] = {}

    def see(part: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            strides[part] = 64 // output.shape[-1]

    hooks = [part.register_forward_hook(see) for part in trunk.children()]
    training = body.training
    body.eval()(torch.zeros(1, 3, 64, 64))
    body.train(training)
    for hook in hooks:
        hook.remove()
    return strides


def timm_body(
    name: str, strides: list[int], pretrained: bool, state: dict[str, Tensor] | None
) -> tuple[nn.Module, list[int]]:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"backbone: timm has no model {name!r}")
    model = timm.create_model(name, features_only=True, pretrained=pretrained)
    reductions = model.feature_info.reduction()
    missing = [stride for stride in strides if stride not in reductions]
    if missing:
        raise ValueError(f"backbone: {name} has no feature maps of stride {missing}: {reductions}")
    indices = [reductions.index(stride) for stride in strides]
    model = timm.create_model(name, features_only=True, pretrained=pretrained, out_indices=indices)
    if state is not None:
        _load_matching(model, state, name)
    return _TimmBody(model), list(model.feature_info.channels())


def _torchvision_body(
    name: str, strides: list[int], pretrained: bool, state: dict[str, Tensor] | None
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
        layers = {
            f"layer{stride.bit_length() - 2}": str(level) for level, stride in enumerate(strides)
        }
        trunk: Any = model
    elif isinstance(getattr(model, "features", None), nn.Sequential):
        trunk = model.features
        layers = _last_layer_of_each_stride(trunk, strides)
    else:
        raise ValueError(f"backbone: the layers of {name} are not known; try timm:{name}")
    body = IntermediateLayerGetter(trunk, return_layers=layers)
    with torch.no_grad():
        maps = body.eval()(torch.zeros(1, 3, 64, 64))
    body.train()
    return body, [feature.shape[1] for feature in maps.values()]


def _last_layer_of_each_stride(layers: nn.Sequential, strides: list[int]) -> dict[str, str]:
    last = {}
    x = torch.zeros(1, 3, 64, 64)
    layers.eval()
    with torch.no_grad():
        for name, layer in layers.named_children():
            x = layer(x)
            last[64 // x.shape[-1]] = name
    layers.train()
    missing = [stride for stride in strides if stride not in last]
    if missing:
        raise ValueError(f"backbone: no feature maps of stride {missing}, found {sorted(last)}")
    return {last[stride]: str(level) for level, stride in enumerate(strides)}


def given_state(weights: str) -> dict[str, Tensor] | None:
    """The state dict of weights that the library does not bring itself."""
    if weights in ("none", "imagenet"):
        return None
    path = SHAPES_WEIGHTS if weights == "shapes" else Path(weights)
    if not path.is_file():
        raise ValueError(f"weights: expected none, imagenet, shapes or a file, found {weights!r}")
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

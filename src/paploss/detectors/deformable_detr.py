"""Deformable DETR (Zhu et al. 2021) by transformers, trained with any criterion on sigmoid scores."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.init import constant_, normal_, xavier_uniform_, zeros_
from torchvision.models import get_model
from torchvision.ops import box_convert, clip_boxes_to_image
from transformers import DeformableDetrConfig as TransformersConfig
from transformers import DeformableDetrForObjectDetection

from paploss.criteria import Criteria
from paploss.detectors.backbones import freeze, given_state, timm_body
from paploss.detectors.config import DeformableDetrConfig
from paploss.detectors.detr import install
from paploss.detectors.images import ResizeForEvaluation, Targets
from paploss.detectors.overrides import Overrides

DETECTIONS = 100  # of an image
_PRIOR = 0.01  # score of every class before training


class DeformableDetr(nn.Module):
    """Deformable DETR whose training loss is a criterion over the queries of the whole mini-batch.

    In training, ``model(images, targets)`` gives the criterion's losses of every decoder layer, see
    `paploss.detectors.detr.DetrLoss`; in evaluation, ``model(images)`` gives boxes, scores and labels,
    as torchvision's models do. A query may be detected as several classes; there is no suppression
    of boxes that overlap. Class labels count from 0.

    Args:
        detr: transformers' model; its loss is replaced.
        criteria: one for the head ``detector``.
        short_side, long_side: to which images are resized in evaluation.
    """

    def __init__(
        self,
        detr: DeformableDetrForObjectDetection,
        criteria: Criteria,
        *,
        short_side: int,
        long_side: int,
    ) -> None:
        super().__init__()
        self.detr: Any = detr
        self.criterion = criteria
        self.transform = ResizeForEvaluation(short_side, long_side)
        install(detr, criteria, Overrides())

    def forward(
        self, images: list[Tensor], targets: Targets | None = None
    ) -> dict[str, Tensor] | Targets:
        """Losses in training, detections in evaluation.

        Args:
            images: (3, H, W) each, values in 0..1.
            targets: in training, boxes (n, 4) as x1, y1, x2, y2 in pixels and labels (n,) of each.
        """
        if self.training and targets is None:
            raise ValueError("targets: needed in training")
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        batch, targets = self.transform(images, targets if self.training else None)
        outputs = self.detr(
            pixel_values=batch.tensors,
            pixel_mask=_mask(batch.tensors, batch.image_sizes),
            labels=targets and _labels(targets, batch.image_sizes),
        )
        if self.training:
            losses: dict[str, Tensor] = outputs.loss_dict
            return losses
        found = [
            _best(logits, boxes, size)
            for logits, boxes, size in zip(
                outputs.logits.float(), outputs.pred_boxes.float(), batch.image_sizes, strict=True
            )
        ]
        detections: Targets = self.transform.postprocess(found, batch.image_sizes, sizes)
        return detections


def _mask(images: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    """1 where there is an image, 0 where the batch is padded, (B, H, W)."""
    mask = images.new_zeros(len(images), *images.shape[-2:], dtype=torch.int64)
    for image, (height, width) in zip(mask, sizes, strict=True):
        image[:height, :width] = 1
    return mask


def _labels(targets: Targets, sizes: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
    """Targets as transformers takes them; boxes are parts of the image without its padding."""
    return [
        {
            "class_labels": target["labels"],
            "boxes": box_convert(target["boxes"], "xyxy", "cxcywh")
            / target["boxes"].new_tensor([width, height, width, height]),
        }
        for target, (height, width) in zip(targets, sizes, strict=True)
    ]


def _best(logits: Tensor, boxes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
    """The highest scores of all queries and classes; (Q, C), (Q, 4) cx, cy, w, h -> pixels."""
    height, width = size
    # By logits: high sigmoid scores may be equal, rounded.
    best, indices = logits.flatten().topk(min(DETECTIONS, logits.numel()))
    pixels = box_convert(boxes, "cxcywh", "xyxy") * boxes.new_tensor([width, height, width, height])
    return {
        "boxes": clip_boxes_to_image(pixels[indices // logits.shape[1]], size),
        "scores": best.sigmoid(),
        "labels": indices % logits.shape[1],
    }


def build_deformable_detr(
    config: DeformableDetrConfig, classes: int, criteria: Criteria
) -> DeformableDetr:
    """Deformable DETR of any size with fresh heads.

    The backbone is ``timm:NAME``, or a ResNet by torchvision's name; weights are ``none``,
    ``imagenet`` (downloaded by the library), ``shapes`` (shipped, of ``timm:test_resnet``) or a file
    of the library's own state dict.
    """
    if config.channels % 32 or config.channels % config.attention_heads:
        raise ValueError(
            f"channels: expected a multiple of 32 and of the {config.attention_heads} attention "
            f"heads, found {config.channels}"
        )
    backbone: Any = _build_backbone(config)
    detr: Any = DeformableDetrForObjectDetection(
        _transformers_config(config, classes, list(backbone.feature_info.out_indices))
    )
    # transformers freezes every batch norm, and would not load weights.
    # Convolutions follow the layout of their weights; this one is faster on CPU.
    detr.model.backbone.model = backbone.to(memory_format=torch.channels_last)
    initialise(detr)
    return DeformableDetr(detr, criteria, short_side=config.short_side, long_side=config.long_side)


def _transformers_config(
    config: DeformableDetrConfig, classes: int, feature_maps: list[int]
) -> TransformersConfig:
    settings: dict[str, Any] = {
        "backbone_config": {
            "model_type": "timm_backbone",
            "backbone": config.backbone.removeprefix("timm:"),
            "out_indices": feature_maps,
        },
        "num_labels": classes,
        "num_queries": config.queries,
        "num_feature_levels": config.levels,
        "d_model": config.channels,
        "dropout": config.dropout,
        "with_box_refine": config.box_refinement,
        "auxiliary_loss": True,
        "class_cost": 2,  # the authors' own; transformers' default is 1
        "disable_custom_kernels": True,
    }
    for part in ("encoder", "decoder"):
        settings[f"{part}_layers"] = getattr(config, f"{part}_layers")
        settings[f"{part}_ffn_dim"] = config.feedforward
        settings[f"{part}_attention_heads"] = config.attention_heads
    return TransformersConfig(**settings)


def _build_backbone(config: DeformableDetrConfig) -> nn.Module:
    """The model of timm that gives the last feature maps; transformers makes a fourth level itself."""
    name = config.backbone.removeprefix("timm:")
    strides = [8, 16, 32][-config.levels :]
    pretrained, state = config.weights == "imagenet", given_state(config.weights)
    if pretrained and not config.backbone.startswith("timm:"):
        # timm has torchvision's ResNets under the same names, of parameters, too.
        state, pretrained = get_model(name, weights="IMAGENET1K_V1").state_dict(), False
    body, _ = timm_body(name, strides, pretrained, state)
    body = freeze(body, batch_norms=config.freeze_batch_norm, up_to_stride=config.frozen_stride)
    return body.get_submodule("model")


@torch.no_grad()
def initialise(detr: Any) -> None:
    """Fresh values for all but the backbone, as Deformable DETR's authors choose them.

    transformers has others, made for weights that are loaded over them: there all queries begin at
    the image's centre, and the same class head serves every layer even where boxes are refined.
    """
    layers = [detr.model.reference_points]
    for part in (detr.model.encoder, detr.model.decoder):
        for name, layer in part.named_modules():
            deformable = ".sampling_offsets", ".attention_weights"
            if isinstance(layer, nn.Linear) and not name.endswith(deformable):
                layers.append(layer)
    layers += [projection[0] for projection in detr.model.input_proj]
    for layer in layers:
        xavier_uniform_(layer.weight)
        zeros_(layer.bias)
    normal_(detr.model.query_position_embeddings.weight)
    if detr.config.with_box_refine:
        detr.class_embed = nn.ModuleList(copy.deepcopy(head) for head in detr.class_embed)
    for head in detr.class_embed:
        head.reset_parameters()
        constant_(head.bias, -math.log((1 - _PRIOR) / _PRIOR))
    for head in detr.bbox_embed:
        for layer in head.layers:
            layer.reset_parameters()
        zeros_(head.layers[-1].weight)
        zeros_(head.layers[-1].bias)
    # A first guess of sizes: an eighth of the image.
    constant_(detr.bbox_embed[0].layers[-1].bias[2:], -2.0)

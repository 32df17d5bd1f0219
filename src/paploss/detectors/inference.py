"""Running a detector over images: detections in COCO's json format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def detect(
    model: nn.Module,
    batches: Iterable[tuple[list[Tensor], list[dict[str, Tensor]]]],
    device: torch.device,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Detections of every image: ``image_id``, ``category_id`` (from 0), ``bbox`` (xywh), ``score``."""
    was_training = model.training
    model.eval()
    found: list[dict[str, Any]] = []
    for images, targets in batches:
        outputs = model([image.to(device) for image in images])
        for output, target in zip(outputs, targets, strict=True):
            image_id = int(target["image_id"])
            boxes = output["boxes"].float().cpu()
            sizes = boxes[:, 2:] - boxes[:, :2]
            found += [
                {"image_id": image_id, "category_id": label, "bbox": box, "score": score}
                for box, label, score in zip(
                    torch.cat([boxes[:, :2], sizes], 1).tolist(),
                    output["labels"].tolist(),
                    output["scores"].tolist(),
                    strict=True,
                )
            ]
        on_batch()
    model.train(was_training)
    return found

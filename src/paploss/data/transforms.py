"""Augmentation for training, and batches: all of it torchvision v2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

TRAINING_TRANSFORMS = ("paper", "flip", "none")

# The mean colour of ImageNet, as usual around a zoomed-out image.
_FILL = {tv_tensors.Image: (124, 116, 104), "others": 0}


def training_transform(name: str, size: int | tuple[int, int]) -> Any:
    """A transform of ``(image, target)`` that ends in float images (3, height, width) in [0, 1].

    Args:
        name: ``paper`` (photometric distortion, zoom out up to 4 times, crop by IoU, resize, flip),
            ``flip`` (resize, flip) or ``none`` (resize).
        size: what images are resized to, whatever their shape: a square's side, or (height, width).
    """
    height, width = (size, size) if isinstance(size, int) else size
    _check_side("size", min(height, width))
    resize = v2.Resize((height, width))
    steps = {
        "paper": [
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(fill=_FILL, side_range=(1.0, 4.0)),
            _CropByIoU(),
            resize,
            v2.RandomHorizontalFlip(),
        ],
        "flip": [resize, v2.RandomHorizontalFlip()],
        "none": [resize],
    }
    if name not in steps:
        raise ValueError(f"name: expected one of {', '.join(steps)}, found {name!r}")
    # The crop empties boxes whose centre it leaves out; resizing may leave less than a pixel.
    sanitize = v2.SanitizeBoundingBoxes(min_size=1, min_area=1, labels_getter=_per_box)
    return v2.Compose([*steps[name], sanitize, v2.ToDtype(torch.float32, scale=True)])


def collate(
    batch: Sequence[tuple[Tensor, dict[str, Any]]],
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Lists of images and targets, of plain tensors: images may differ in size."""
    images = [image.as_subclass(Tensor) for image, _ in batch]
    targets = [
        {
            key: value.as_subclass(Tensor) if isinstance(value, Tensor) else value
            for key, value in target.items()
        }
        for _, target in batch
    ]
    return images, targets


class _CropByIoU(v2.RandomIoUCrop):
    """RandomIoUCrop that leaves images without boxes alone, instead of searching for a crop long."""

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        boxes = [item for item in flat_inputs if isinstance(item, tv_tensors.BoundingBoxes)]
        if not any(len(item) for item in boxes):
            return {}
        parameters: dict[str, Any] = super().make_params(flat_inputs)
        return parameters


def _per_box(sample: tuple[Any, dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """What must stay aligned with the boxes (a function of the module, so workers can unpickle it)."""
    return sample[1]["labels"], sample[1]["crowd"]


def _check_side(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: expected a positive number of pixels, found {value}")

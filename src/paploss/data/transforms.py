"""Augmentation for training, and batches: all of it torchvision v2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

# The mean colour of ImageNet, as usual around a zoomed-out image.
_FILL = {tv_tensors.Image: (124, 116, 104), "others": 0}


def training_transform(name: str, size: int | tuple[int, int]) -> Any:
    """A transform of ``(image, target)`` that ends in float images (3, height, width) in [0, 1].

    Args:
        name: ``paper`` (photometric distortion, zoom out up to 4 times, crop by IoU, resize, flip),
            ``detr`` (flip, short side between 0.6 and 1 of what is asked for, every other image
            cropped before; shapes are kept, so images differ in size), ``flip`` (resize, flip) or
            ``none`` (resize).
        size: what images are resized to, whatever their shape: a square's side, or (height, width);
            for ``detr`` the largest short side, or that and the largest long side.
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
        "detr": [v2.RandomHorizontalFlip(), _resize_as_detr(height, width)],
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


def _resize_as_detr(short_side: int, long_side: int) -> v2.Transform:
    """Deformable DETR's multi-scale resizing and cropping, in proportion to its 800 pixels."""

    def pixels(*of_800: int) -> list[int]:
        return [max(1, round(side * short_side / 800)) for side in of_800]

    longest = long_side if long_side > short_side else pixels(1333)[0]
    resize = v2.RandomShortestSize(pixels(*range(480, 801, 32)), longest)
    crop = _RandomWindow(*pixels(384, 600))
    return v2.RandomChoice(
        [resize, v2.Compose([v2.RandomShortestSize(pixels(400, 500, 600)), crop, resize])]
    )


class _RandomWindow(v2.Transform):
    """Cuts out a window whose sides are drawn between two numbers of pixels."""

    def __init__(self, smallest: int, largest: int) -> None:
        super().__init__()
        self.smallest, self.largest = smallest, largest

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.functional.get_size(
            next(item for item in flat_inputs if isinstance(item, tv_tensors.Image))
        )

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, max(low, high) + 1, ()))

        new_height = draw(min(height, self.smallest), min(height, self.largest))
        new_width = draw(min(width, self.smallest), min(width, self.largest))
        top, left = draw(0, height - new_height), draw(0, width - new_width)
        return {"top": top, "left": left, "height": new_height, "width": new_width}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._call_kernel(v2.functional.crop, inpt, **params)


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

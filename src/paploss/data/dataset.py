"""What every reader produces (`Annotations`) and what training consumes (`DetectionDataset`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from paploss.data.image_files import image_size, read_image

Target = dict[str, Any]
Transform = Callable[[Any, Target], tuple[Any, Target]]


@dataclass(frozen=True)
class Fault:
    """Something wrong in the data: where, and what. What cannot be used has been left out."""

    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.message}"


@dataclass(frozen=True, eq=False)
class Record:
    """One image and its objects.

    ``crowd`` marks what is neither trained on nor counted in evaluation: COCO's crowds, VOC's
    difficult objects.
    """

    image_id: int
    image: Path | None  # None: annotations without image files, good for evaluation only
    width: int
    height: int
    boxes: npt.NDArray[np.float32]  # (n, 4) xyxy in pixels
    labels: npt.NDArray[np.int64]  # (n,) 0 .. C-1
    crowd: npt.NDArray[np.bool_]  # (n,)
    areas: npt.NDArray[np.float32] | None = None  # (n,) of COCO's masks; None: those of the boxes

    @classmethod
    def of(
        cls,
        image_id: int,
        image: Path | None,
        size: tuple[int, int],
        boxes: Sequence[Sequence[float]],
        labels: Sequence[int],
        crowd: Sequence[bool] | None = None,
        areas: Sequence[float] | None = None,
    ) -> Record:
        """From plain lists; ``size`` is (width, height)."""
        with np.errstate(over="ignore"):  # a number too large for float32 becomes inf: a bad box
            corners = np.array(boxes, dtype=np.float64).reshape(-1, 4).astype(np.float32)
        return cls(
            image_id,
            image,
            *size,
            boxes=corners,
            labels=np.array(labels, dtype=np.int64),
            crowd=np.array(crowd if crowd is not None else [False] * len(labels), dtype=np.bool_),
            areas=None if areas is None else np.array(areas, dtype=np.float32),
        )


@dataclass
class Annotations:
    """A data set's split as read: records may still hold degenerate boxes, which faults name."""

    class_names: list[str]
    records: list[Record]
    faults: list[Fault] = field(default_factory=list)
    category_ids: list[int] = field(default_factory=list)  # the file's own; 0 .. C-1 if it has none

    def __post_init__(self) -> None:
        if not self.category_ids:
            self.category_ids = list(range(len(self.class_names)))


def box_fault(box: Sequence[float], width: int, height: int) -> str | None:
    """What makes an xyxy box useless, or None. Boxes partly outside the image are fine."""
    x1, y1, x2, y2 = box
    if not all(map(math.isfinite, box)):
        return f"box with coordinates {_numbers(box)}: expected finite numbers"
    if x2 <= x1 or y2 <= y1:
        return f"box {_numbers(box)} is {x2 - x1:g} x {y2 - y1:g} pixels: expected a positive size"
    if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
        return f"box {_numbers(box)} lies outside its {width} x {height} image"
    return None


def _numbers(values: Iterable[float]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


class DetectionDataset(torch.utils.data.Dataset[tuple[Any, Target]]):
    """Images with boxes, from files or from an array of pixels.

    An item is ``(image, target)``: a uint8 ``tv_tensors.Image`` (3, H, W) and

    * ``boxes``: ``tv_tensors.BoundingBoxes`` (n, 4) xyxy, float32, in pixels;
    * ``labels``: int64 (n,), 0 .. C-1;
    * ``crowd``: bool (n,), objects to leave out of training;
    * ``image_id``: int64 ();
    * ``size``: int64 (2,), height and width before any transform, to map detections back.

    Boxes are clipped to their image; degenerate ones (no positive size, not finite, entirely
    outside) are dropped and counted in `dropped_boxes`.

    Args:
        annotations: what a reader returned.
        transform: called with image and target, as the transforms of ``torchvision`` v2 are.
        pixels: uint8 (N, H, W, 3), one row a record, or the .npy file that holds them, which
            is mapped into memory by each process that reads it. None: read the image files.
    """

    def __init__(
        self,
        annotations: Annotations,
        *,
        transform: Transform | None = None,
        pixels: npt.NDArray[np.uint8] | Path | None = None,
    ) -> None:
        cleaned = [_clean(record) for record in annotations.records]
        self.records = cleaned
        self.class_names = annotations.class_names
        self.category_ids = annotations.category_ids
        self.faults = annotations.faults
        self.transform = transform
        self._dropped = [
            len(before.labels) - len(after.labels)
            for before, after in zip(annotations.records, cleaned, strict=True)
        ]
        self._rows = np.arange(len(cleaned))
        self._pixels = pixels
        self._opened: npt.NDArray[np.uint8] | None = None

    @property
    def dropped_boxes(self) -> int:
        """How many degenerate boxes the records came with."""
        return sum(self._dropped)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, Target]:
        record = self.records[index]
        target: Target = {
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(record.boxes.copy()),
                format="XYXY",
                canvas_size=(record.height, record.width),
            ),
            "labels": torch.from_numpy(record.labels.copy()),
            "crowd": torch.from_numpy(record.crowd.copy()),
            "image_id": torch.tensor(record.image_id),
            "size": torch.tensor([record.height, record.width]),
        }
        image = self._image(index)
        return (image, target) if self.transform is None else self.transform(image, target)

    def __getstate__(self) -> dict[str, Any]:
        # A worker maps the file itself; pickling the map would send every pixel.
        return {**self.__dict__, "_opened": None}

    def _image(self, index: int) -> Any:
        record = self.records[index]
        if self._pixels is not None:
            row = torch.from_numpy(np.array(self._rows_of_pixels()[self._rows[index]]))
            return tv_tensors.Image(row.permute(2, 0, 1).contiguous())
        if record.image is None:
            raise ValueError(f"image {record.image_id}: its annotations came without an image file")
        return tv_tensors.Image(
            functional.pil_to_tensor(read_image(record.image, record.width, record.height))
        )

    def _rows_of_pixels(self) -> npt.NDArray[np.uint8]:
        if self._opened is None:
            assert self._pixels is not None
            opened: npt.NDArray[np.uint8] = (
                np.load(self._pixels, mmap_mode="r")
                if isinstance(self._pixels, Path)
                else self._pixels
            )
            self._opened = opened
        return self._opened

    def ground_truth(self) -> dict[str, Any]:
        """The annotations as a COCO dict, for evaluation.

        ``category_id`` is the label 0 .. C-1; boxes are in pixels of the original images.
        """
        annotations: list[dict[str, Any]] = []
        for record in self.records:
            for index, (x1, y1, x2, y2) in enumerate(record.boxes.tolist()):
                # float32 is off by a few 1e-5 pixels, enough to turn a match at a threshold; COCO
                # files have two decimals
                bbox = [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]
                area = bbox[2] * bbox[3] if record.areas is None else float(record.areas[index])
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # evaluators take 0 for "no match"
                        "image_id": record.image_id,
                        "category_id": int(record.labels[index]),
                        "bbox": bbox,
                        "area": area,
                        "iscrowd": int(record.crowd[index]),
                    }
                )
        return {
            "images": [
                {"id": record.image_id, "width": record.width, "height": record.height}
                for record in self.records
            ],
            "annotations": annotations,
            "categories": [{"id": k, "name": name} for k, name in enumerate(self.class_names)],
        }

    def with_transform(self, transform: Transform | None) -> DetectionDataset:
        """The same images under another transform."""
        other = self.subset(range(len(self)))
        other.transform = transform
        return other

    def subset(self, indices: Iterable[int]) -> DetectionDataset:
        """The images at these positions, in this order."""
        chosen = [range(len(self))[index] for index in indices]
        other: DetectionDataset = DetectionDataset.__new__(DetectionDataset)
        other.__dict__.update(self.__getstate__())
        other.records = [self.records[index] for index in chosen]
        other._dropped = [self._dropped[index] for index in chosen]
        other._rows = self._rows[chosen]
        return other

    def split(self, fraction: float, seed: int) -> tuple[DetectionDataset, DetectionDataset]:
        """Cut at random into two disjoint sets, the first with ``fraction`` of the images.

        The same seed gives the same cut; a search trains on the first and is rewarded on the
        second.
        """
        first = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < first < len(self):
            raise ValueError(
                f"fraction: expected a number in (0, 1) that leaves images on both sides of "
                f"{len(self)}, found {fraction}"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(sorted(order[:first])), self.subset(sorted(order[first:]))


def _clean(record: Record) -> Record:
    """The record with its boxes clipped and the degenerate ones left out."""
    limit = np.array([record.width, record.height] * 2, dtype=np.float32)
    clipped = np.clip(record.boxes, 0, limit)
    finite = np.isfinite(record.boxes).all(axis=1)
    kept = finite & (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    return replace(
        record,
        boxes=clipped[kept],
        labels=record.labels[kept],
        crowd=record.crowd[kept],
        areas=None if record.areas is None else record.areas[kept],
    )


def image_faults(records: Iterable[Record]) -> Iterable[Fault]:
    """Check the header of each image file: those that are not images or differ in size."""
    for record in records:
        if record.image is None:
            continue
        try:
            size = image_size(record.image)
        except ValueError as error:
            yield Fault(str(record.image), None, str(error).removeprefix(f"{record.image}: "))
            continue
        if sorted(size) != sorted((record.width, record.height)):
            yield Fault(
                str(record.image),
                None,
                f"expected {record.width} x {record.height} pixels as annotated, "
                f"found {size[0]} x {size[1]}",
            )

"""Images with their objects and what detectors found in them, two losses side by side."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paploss.data import DetectionDataset
from paploss.report.groups import Group
from paploss.report.matches import Matches, score_map

IMAGES = 12
_LONG_SIDE = 480  # pixels of an image in the page
_BYTES = 1_200_000  # of all images together


@dataclass(frozen=True)
class Box:
    """In pixels of the original image."""

    kind: str  # truth, missed, right, wrong
    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class View:
    """One image as one loss sees it."""

    loss: str
    colour: str
    boxes: list[Box]
    summary: str


@dataclass(frozen=True)
class Picture:
    """An image, and the views of it."""

    name: str
    width: int
    height: int
    source: str  # data URI
    views: list[View]
    index: int


@dataclass(frozen=True)
class _Seen:
    """What a loss shows of an image: detections above its threshold, and how good that is."""

    shown: list[tuple[dict[str, Any], bool]]  # a detection, and whether it is right
    f1: float
    right: int
    wrong: int
    objects: int


def make_gallery(
    dataset: DetectionDataset, chosen: Sequence[tuple[Group, Matches]], images: int = IMAGES
) -> list[Picture]:
    """The images where two losses differ most; of a single loss those it does worst on.

    Args:
        dataset: the images.
        chosen: one or two losses and their matched detections.
        images: how many at most.
    """
    seen = [_by_image(dataset, matches) for _, matches in chosen]

    def interest(index: int) -> tuple[float, int]:
        image_id = dataset.records[index].image_id
        scores = [of_loss[image_id].f1 for of_loss in seen]
        difference = abs(scores[0] - scores[1]) if len(scores) > 1 else 1 - scores[0]
        return -difference, index

    with_objects = [k for k, record in enumerate(dataset.records) if len(record.labels)]
    pictures: list[Picture] = []
    used = 0
    for index in sorted(with_objects, key=interest)[:images]:
        record = dataset.records[index]
        source = _data_uri(dataset, index)
        used += len(source)
        if used > _BYTES:
            break
        views = [
            _view(dataset, index, group, matches, of_loss[record.image_id])
            for (group, matches), of_loss in zip(chosen, seen, strict=True)
        ]
        name = record.image.name if record.image is not None else f"image {record.image_id}"
        pictures.append(Picture(name, record.width, record.height, source, views, len(pictures)))
    return pictures


def _by_image(dataset: DetectionDataset, matches: Matches) -> dict[int, _Seen]:
    threshold = matches.best_threshold
    shown: dict[int, list[tuple[dict[str, Any], bool]]] = defaultdict(list)
    for found, right, ignored in zip(
        matches.detections, matches.correct.tolist(), matches.ignored.tolist(), strict=True
    ):
        if found["score"] >= threshold and not ignored:
            shown[found["image_id"]].append((found, right))
    seen = {}
    for record in dataset.records:
        here = shown[record.image_id]
        right = sum(correct for _, correct in here)
        objects = int((~record.crowd).sum())
        f1 = 2 * right / max(1, len(here) + objects)
        seen[record.image_id] = _Seen(here, f1, right, len(here) - right, objects)
    return seen


def _view(
    dataset: DetectionDataset, index: int, group: Group, matches: Matches, seen: _Seen
) -> View:
    record = dataset.records[index]
    names = dataset.class_names
    probability = score_map(group.runs[0].results)
    boxes = [
        Box("truth", x1, y1, x2 - x1, y2 - y1, f"{names[label]} (object)")
        for (x1, y1, x2, y2), label, crowd in zip(
            record.boxes.tolist(), record.labels.tolist(), record.crowd.tolist(), strict=True
        )
        if not crowd
    ]
    for found, right in seen.shown[::-1]:  # sure ones on top
        x, y, width, height = found["bbox"]
        label = f"{names[found['category_id']]} {probability(found['score']):.2f}"
        boxes.append(Box("right" if right else "wrong", x, y, width, height, label))
    noun = "object" if seen.objects == 1 else "objects"
    summary = f"{seen.right} of {seen.objects} {noun} found, {seen.wrong} wrong"
    return View(group.label, group.colour, boxes, summary)


def _data_uri(dataset: DetectionDataset, index: int) -> str:
    from PIL import Image

    pixels = dataset.with_transform(None)[index][0].permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels)
    image.thumbnail((_LONG_SIDE, _LONG_SIDE))
    content = io.BytesIO()
    image.save(content, "WEBP", quality=72, method=4)
    return "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode()

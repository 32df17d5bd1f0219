"""COCO-format records as checked arrays: what every evaluation here starts from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """Checked ground truth: I images, K classes, M annotations.

    Attributes:
        image_ids: the I image ids, rising.
        category_ids: the K category ids, rising.
        class_names: the K names, all different.
        image: (M,) index into ``image_ids``.
        category: (M,) index into ``category_ids``.
        boxes: (M, 4) x, y, width, height.
        area: (M,) the annotated area (of a mask, for COCO), else that of the box.
        crowd: (M,) objects that neither count nor harm (``iscrowd``).
    """

    image_ids: tuple[int, ...]
    category_ids: tuple[int, ...]
    class_names: tuple[str, ...]
    image: Indices
    category: Indices
    boxes: Floats
    area: Floats
    crowd: Bools


@dataclass(frozen=True)
class Detections:
    """Checked detections, in the caller's order.

    Attributes:
        image: (N,) index into `Truth.image_ids`.
        category: (N,) index into `Truth.category_ids`.
        boxes: (N, 4) x, y, width, height; a negative size is an empty box that hits nothing.
        scores: (N,) any numbers that can be ordered.
    """

    image: Indices
    category: Indices
    boxes: Floats
    scores: Floats


def parse_ground_truth(ground_truth: Any, *, where: str = "ground_truth") -> Truth:
    """Check ground truth in COCO's format; ``where`` names its origin in errors.

    ``area`` (the box's), ``iscrowd`` (0) and category names (the id) may be missing.
    """
    if not isinstance(ground_truth, dict):
        raise ValueError(
            f"{where}: expected an object with images, annotations and categories, "
            f"found {_brief(ground_truth)}"
        )
    for key in ("images", "annotations", "categories"):
        if not isinstance(ground_truth.get(key), list):
            raise ValueError(
                f"{where}: {key}: expected a list, "
                f"found {_brief(ground_truth[key]) if key in ground_truth else 'nothing'}"
            )
    image_ids = _sorted_ids(ground_truth["images"], f"{where}: images")
    category_ids = _sorted_ids(ground_truth["categories"], f"{where}: categories")
    annotations, place = ground_truth["annotations"], f"{where}: annotations"
    boxes = _boxes(annotations, place)
    negative = np.flatnonzero((boxes[:, 2:] < 0).any(1))
    if negative.size:
        first = int(negative[0])
        raise ValueError(
            f"{place}[{first}].bbox: expected x, y, width, height with no negative size, "
            f"found {_brief(annotations[first]['bbox'])}"
        )
    box_area = (boxes[:, 2] * boxes[:, 3]).tolist()
    area = [record.get("area", own) for record, own in zip(annotations, box_area, strict=True)]
    crowd = [record.get("iscrowd", 0) for record in annotations]
    for index, flag in enumerate(crowd):
        if flag not in (0, 1):
            raise ValueError(f"{place}[{index}].iscrowd: expected 0 or 1, found {_brief(flag)}")
    return Truth(
        image_ids=image_ids,
        category_ids=category_ids,
        class_names=_class_names(ground_truth["categories"], category_ids),
        image=_lookup(annotations, "image_id", image_ids, place),
        category=_lookup(annotations, "category_id", category_ids, place),
        boxes=boxes,
        area=_numbers(area, "area", place),
        crowd=np.array(crowd, dtype=bool),
    )


def parse_detections(detections: Any, truth: Truth, *, where: str = "detections") -> Detections:
    """Check detections in COCO's result format against the images and classes of ``truth``."""
    boxes, scores = parse_boxes_and_scores(detections, where=where)
    return Detections(
        image=_lookup(detections, "image_id", truth.image_ids, where),
        category=_lookup(detections, "category_id", truth.category_ids, where),
        boxes=boxes,
        scores=scores,
    )


def parse_boxes_and_scores(detections: Any, *, where: str) -> tuple[Floats, Floats]:
    """Check what can be checked of detections without ground truth: (N, 4) boxes, (N,) scores."""
    if not isinstance(detections, list):
        raise ValueError(
            f"{where}: expected a list of detections (image_id, category_id, bbox, score), "
            f"found {_brief(detections)}"
        )
    boxes = _boxes(detections, where)
    for key in ("image_id", "category_id"):
        _column(detections, key, where)
    scores = _numbers(_column(detections, "score", where), "score", where)
    return boxes, scores


def pairs_by_image_and_class(
    truth: Truth, detections: Detections
) -> Iterator[tuple[Indices, Indices]]:
    """Detections and annotations that meet: one pair of index arrays an image and class with both.

    Yields:
        Detections by falling score (equal scores in the given order), and annotations in order.
    """
    classes = len(truth.category_ids)
    truth_key = truth.image * classes + truth.category
    detection_key = detections.image * classes + detections.category
    truth_order = np.argsort(truth_key, kind="stable")
    detection_order = np.lexsort((-detections.scores, detection_key))
    keys = np.intersect1d(truth_key, detection_key)
    truth_ends = _slices(truth_key[truth_order], keys)
    detection_ends = _slices(detection_key[detection_order], keys)
    for (start, stop), (first, last) in zip(detection_ends, truth_ends, strict=True):
        yield detection_order[start:stop], truth_order[first:last]


def box_iou(boxes: Floats, others: Floats, crowd: Bools | None = None) -> Floats:
    """Intersection over union of (N, 4) and (M, 4) boxes x, y, width, height: (N, M).

    Where ``crowd`` (M,) is set, COCO's measure for crowds: intersection over the first box's area.
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum((boxes[:, :2] + boxes[:, 2:])[:, None], (others[:, :2] + others[:, 2:])[None])
    intersection = (high - low).clip(min=0).prod(2)  # (N, M)
    own = boxes[:, 2:].prod(1)[:, None]
    union = own + others[:, 2:].prod(1)[None] - intersection
    if crowd is not None:
        union = np.where(crowd, own, union)
    empty = intersection <= 0  # also 0 / 0, two boxes without any area
    return np.asarray(np.divide(intersection, union, out=np.zeros_like(union), where=~empty))


def _slices(ordered: Indices, keys: Indices) -> list[tuple[int, int]]:
    starts = np.searchsorted(ordered, keys, side="left").tolist()
    stops = np.searchsorted(ordered, keys, side="right").tolist()
    return list(zip(starts, stops, strict=True))


def _column(records: Sequence[Any], key: str, where: str) -> list[Any]:
    try:
        return [record[key] for record in records]
    except (KeyError, TypeError, IndexError):
        pass
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(f"{where}[{index}]: expected an object, found {_brief(record)}")
        if key not in record:
            raise ValueError(
                f"{where}[{index}]: {key} is missing, found {', '.join(map(str, record)) or 'nothing'}"
            )
    raise AssertionError("unreachable: some record lacked the key")


def _sorted_ids(records: list[Any], where: str) -> tuple[int, ...]:
    ids = _column(records, "id", where)
    seen: set[int] = set()
    for index, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ValueError(f"{where}[{index}].id: expected an integer, found {_brief(value)}")
        if value in seen:
            raise ValueError(f"{where}[{index}].id: expected each id once, found {value} again")
        seen.add(int(value))
    return tuple(sorted(seen))


def _lookup(records: list[Any], key: str, ids: tuple[int, ...], where: str) -> Indices:
    """(N,) positions of the records' ids among the known ones."""
    position = {value: index for index, value in enumerate(ids)}
    values = _column(records, key, where)
    try:
        found = [position.get(value, -1) for value in values]
    except TypeError:  # an id that cannot even be looked up, such as a list
        found = [position.get(value, -1) if isinstance(value, int) else -1 for value in values]
    if -1 in found:
        index = found.index(-1)
        kind = "images" if key == "image_id" else "categories"
        raise ValueError(
            f"{where}[{index}].{key}: expected the id of one of the {len(ids)} {kind} "
            f"of the ground truth, found {_brief(values[index])}"
        )
    return np.array(found, dtype=np.int64)


def _boxes(records: Sequence[Any], where: str) -> Floats:
    values = _column(records, "bbox", where)
    try:
        boxes = np.array(values, dtype=np.float64).reshape(len(values), 4 if not values else -1)
    except (TypeError, ValueError):  # ragged, or no numbers
        boxes = np.empty((0, 0))
    if boxes.shape == (len(values), 4) and np.isfinite(boxes).all():
        return boxes
    for index, value in enumerate(values):
        try:
            box = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            box = np.empty(0)
        if box.shape != (4,) or not np.isfinite(box).all():
            raise ValueError(
                f"{where}[{index}].bbox: expected four finite numbers x, y, width, height, "
                f"found {_brief(value)}"
            )
    raise AssertionError("unreachable: some box was malformed")


def _numbers(values: list[Any], key: str, where: str) -> Floats:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.shape == (len(values),) and not np.isnan(numbers).any():
        return numbers
    for index, value in enumerate(values):
        if not isinstance(value, int | float | np.number) or np.isnan(value):
            raise ValueError(f"{where}[{index}].{key}: expected a number, found {_brief(value)}")
    raise AssertionError("unreachable: some value was no number")


def _class_names(categories: list[dict[str, Any]], ids: tuple[int, ...]) -> tuple[str, ...]:
    names = {record["id"]: str(record.get("name", record["id"])) for record in categories}
    ordered = [names[value] for value in ids]
    # Results are kept by name: the id tells apart two classes of one name.
    return tuple(
        name if ordered.count(name) == 1 else f"{name} ({value})"
        for name, value in zip(ordered, ids, strict=True)
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

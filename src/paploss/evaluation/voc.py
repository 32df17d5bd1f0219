"""PASCAL VOC's AP at IoU 0.5, as its development kit defines it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from paploss.evaluation.records import (
    Bools,
    Detections,
    Floats,
    Indices,
    Truth,
    box_iou,
    pairs_by_image_and_class,
    parse_detections,
    parse_ground_truth,
)

IOU = 0.5


def voc_ap50(
    ground_truth: dict[str, Any],
    detections: list[dict[str, Any]],
    *,
    method: Literal["area", "11point"] = "area",
) -> tuple[float, dict[str, float]]:
    """Mean AP at IoU 0.5 and AP of each class by name, as fractions; -1 with no object to find.

    By falling score, each detection goes to the object of its class that it overlaps most, and is
    wrong if an earlier one has that object, even where a second object would do (COCO would take
    the second). Difficult objects neither count nor harm.

    The development kit measures boxes as inclusive pixels, width ``xmax - xmin + 1``. Boxes here
    are continuous, with ``x = xmin - 1`` and ``width = xmax - xmin + 1`` after conversion from
    VOC's 1-based pixels, so that the plain IoU below is the same number.

    Args:
        ground_truth: COCO's format; ``iscrowd`` marks VOC's difficult objects.
        detections: ``image_id``, ``category_id``, ``bbox`` (x, y, width, height), ``score`` each.
        method: ``area`` under the precision-recall curve (VOC 2010 and later) or mean precision at
            11 recalls (VOC 2007).
    """
    if method not in ("area", "11point"):
        raise ValueError(f"method: expected 'area' or '11point', found {method!r}")
    truth = parse_ground_truth(ground_truth)
    found = parse_detections(detections, truth)
    target = _best_objects(truth, found)
    objects = np.bincount(truth.category[~truth.crowd], minlength=len(truth.category_ids))
    average = _area if method == "area" else _eleven_points
    per_class = {}
    for index, name in enumerate(truth.class_names):
        chosen = np.flatnonzero(found.category == index)
        by_score = chosen[np.argsort(-found.scores[chosen], kind="stable")]
        count = int(objects[index])
        correct = _correct(target[by_score], truth.crowd)
        per_class[name] = average(np.cumsum(correct), count) if count else -1.0
    measured = [value for value in per_class.values() if value >= 0]
    return (float(np.mean(measured)) if measured else -1.0), per_class


def _best_objects(truth: Truth, detections: Detections) -> Indices:
    """(N,) the object each detection overlaps most, -1 if that is by less than `IOU`."""
    target = np.full(len(detections.scores), -1, dtype=np.int64)
    for chosen, objects in pairs_by_image_and_class(truth, detections):
        overlap = box_iou(detections.boxes[chosen], truth.boxes[objects])
        best = overlap.argmax(1)
        reached = overlap.max(1) >= IOU
        target[chosen[reached]] = objects[best[reached]]
    return target


def _correct(target: Indices, difficult: Bools) -> Bools:
    """Which detections are right, those at difficult objects left out; ``target`` by falling score."""
    hit = target >= 0
    counted = ~hit
    counted[hit] = ~difficult[target[hit]]
    target = target[counted]
    correct = np.zeros(len(target), dtype=bool)
    values, first = np.unique(target, return_index=True)
    correct[first[values >= 0]] = True  # the first at each object; later ones are duplicates
    return correct


def _area(true_positives: Indices, objects: int) -> float:
    if not len(true_positives):
        return 0.0
    recall = np.concatenate([[0.0], true_positives / objects])
    return float(np.sum(np.diff(recall) * _envelope(true_positives)))


def _eleven_points(true_positives: Indices, objects: int) -> float:
    if not len(true_positives):
        return 0.0
    envelope = np.append(_envelope(true_positives), 0.0)  # a recall never reached has precision 0
    # recall >= k / 10 in whole numbers: 3 of 10 objects do reach 0.3, which 3 * 0.1 exceeds.
    reached = np.searchsorted(10 * true_positives, np.arange(11) * objects, side="left")
    return float(envelope[reached].mean())


def _envelope(true_positives: Indices) -> Floats:
    """(N,) highest precision at this detection's recall or more."""
    precision = true_positives / np.arange(1, len(true_positives) + 1)
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])

"""COCO metrics of detections against ground truth, both in COCO's json format."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paploss.evaluation.records import (
    Detections,
    Floats,
    Truth,
    parse_boxes_and_scores,
    parse_detections,
    parse_ground_truth,
)

METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
IOU_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RECALLS = tuple(round(0.01 * step, 2) for step in range(101))

# Where these stand among the evaluator's area ranges and detections an image.
_ALL_AREAS, _MOST_DETECTIONS = 0, -1


@dataclass(frozen=True)
class CocoEvaluation:
    """What COCO's evaluation says about a set of detections; fractions, -1 where nothing was to find.

    Attributes:
        metrics: the twelve figures, by the names in `METRICS`.
        per_class: AP of each class, by name.
        ap_by_iou: AP at each of the ten `IOU_THRESHOLDS`.
        precision50: precision at the 101 `RECALLS` for IoU 0.5, mean over the classes with objects.
        precision75: the same for IoU 0.75.
    """

    metrics: dict[str, float]
    per_class: dict[str, float]
    ap_by_iou: tuple[float, ...]
    precision50: tuple[float, ...]
    precision75: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as json can hold it."""
        return {
            "metrics": dict(self.metrics),
            "per_class": dict(self.per_class),
            "ap_by_iou": {
                f"{threshold:.2f}": value
                for threshold, value in zip(IOU_THRESHOLDS, self.ap_by_iou, strict=True)
            },
            "precision_recall": {
                "recall": list(RECALLS),
                "precision50": list(self.precision50),
                "precision75": list(self.precision75),
            },
        }


def coco_metrics(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> dict[str, float]:
    """The twelve COCO figures for boxes, as fractions; -1 where there is no object to find.

    Args:
        ground_truth: ``images``, ``annotations``, ``categories`` as in a COCO json file.
        detections: ``image_id``, ``category_id``, ``bbox`` (x, y, width, height), ``score`` each;
            scores are only compared, so any numbers do: probabilities, logits, ranks.

    Raises:
        ValueError: naming the record and field that is missing, unknown or not a number.
    """
    return evaluate_coco(ground_truth, detections).metrics


def evaluate_coco(ground_truth: dict[str, Any], detections: list[dict[str, Any]]) -> CocoEvaluation:
    """COCO's evaluation of boxes in full: figures, classes, IoU thresholds, precision-recall.

    Args:
        ground_truth: as for `coco_metrics`.
        detections: as for `coco_metrics`.

    Example:
        >>> box = {"image_id": 1, "category_id": 7, "bbox": [10, 10, 40, 40]}
        >>> truth = {
        ...     "images": [{"id": 1}],
        ...     "categories": [{"id": 7, "name": "cat"}],
        ...     "annotations": [{"id": 1, **box}],
        ... }
        >>> evaluate_coco(truth, [{**box, "score": -3.2}]).per_class
        {'cat': 1.0}
    """
    truth = parse_ground_truth(ground_truth)
    return _evaluate(truth, parse_detections(detections, truth))


def load_ground_truth(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check a COCO annotation file."""
    content = _load_json(path)
    if isinstance(content, list):
        raise ValueError(
            f"{path}: expected an object with images, annotations and categories, "
            "found a list: are these detections?"
        )
    parse_ground_truth(content, where=str(path))
    assert isinstance(content, dict)  # the check above saw to it
    return content


def load_detections(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read and check a COCO result file: a list of image_id, category_id, bbox, score."""
    content = _load_json(path)
    if isinstance(content, dict) and "annotations" in content:
        raise ValueError(
            f"{path}: expected a list of detections (image_id, category_id, bbox, score), "
            "found an object with annotations: is this ground truth?"
        )
    parse_boxes_and_scores(content, where=str(path))
    assert isinstance(content, list)  # the check above saw to it
    return content


def _load_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a json file: {error}") from None


def _evaluate(truth: Truth, detections: Detections) -> CocoEvaluation:
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing: pip install 'paploss[train]'", name=error.name
        ) from None

    classes = len(truth.category_ids)
    if not (classes and truth.image_ids):
        # The evaluator takes "no images" for "all images".
        precision, stats = np.full((10, 101, classes), -1.0), np.full(12, -1.0)
    else:
        objects = COCO(_truth_records(truth), print_function=_say_nothing)
        found = objects.loadRes(_detection_records(detections))
        evaluator = COCOeval_faster(objects, found, "bbox", print_function=_say_nothing)
        evaluator.run()
        stats = np.asarray(evaluator.stats, dtype=np.float64)
        # (thresholds, recalls, classes, areas, detections an image) -> (10, 101, K)
        precision = np.asarray(evaluator.eval["precision"])[..., _ALL_AREAS, _MOST_DETECTIONS]
    return CocoEvaluation(
        metrics=dict(zip(METRICS, map(float, stats), strict=True)),
        per_class={
            name: _mean(precision[:, :, index]) for index, name in enumerate(truth.class_names)
        },
        ap_by_iou=tuple(_mean(at_threshold) for at_threshold in precision),
        precision50=tuple(_mean(at_recall) for at_recall in precision[IOU_THRESHOLDS.index(0.5)]),
        precision75=tuple(_mean(at_recall) for at_recall in precision[IOU_THRESHOLDS.index(0.75)]),
    )


def _truth_records(truth: Truth) -> dict[str, Any]:
    """Ground truth for the evaluator, which writes into what it is given: never the caller's.

    Ids are positions counted from 1: to the evaluator, an annotation of id 0 is never found and
    one of two annotations of the same id is lost.
    """
    columns = (truth.image, truth.category, truth.boxes, truth.area, truth.crowd)
    return {
        "images": [{"id": 1 + index} for index in range(len(truth.image_ids))],
        "categories": [{"id": 1 + index} for index in range(len(truth.category_ids))],
        "annotations": [
            {
                "id": index,
                "image_id": 1 + image,
                "category_id": 1 + category,
                "bbox": box,
                "area": area,
                "iscrowd": int(crowd),
            }
            for index, (image, category, box, area, crowd) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True), start=1
            )
        ],
    }


def _detection_records(detections: Detections) -> list[dict[str, Any]]:
    """Detections for the evaluator, scores replaced by their ranks 1, 2, ... (equal ones share one).

    AP depends on the order alone. Ranks keep it exactly, and no threshold on scores that some
    version of the evaluator has or gets (``min_score`` of its ``loadRes``) can drop a detection.
    """
    ranks = 1 + np.unique(detections.scores, return_inverse=True)[1].reshape(-1)
    columns = (detections.image, detections.category, detections.boxes, ranks)
    return [
        {"image_id": 1 + image, "category_id": 1 + category, "bbox": box, "score": float(rank)}
        for image, category, box, rank in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _mean(precision: Floats) -> float:
    """Mean over what was measured; the evaluator marks classes without objects by -1."""
    measured = precision[precision > -1]
    return float(measured.mean()) if measured.size else -1.0


def _say_nothing(*_: object) -> None:
    """The evaluator's print function."""

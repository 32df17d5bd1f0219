"""Detections against the objects of their images: how well scores tell good boxes from bad ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paploss.data import DetectionDataset, load_dataset
from paploss.evaluation import mark_correct
from paploss.evaluation.records import (
    box_iou,
    pairs_by_image_and_class,
    parse_detections,
    parse_ground_truth,
)
from paploss.report.files import setting

Floats = npt.NDArray[np.float64]


def load_shown_split(settings: dict[str, Any]) -> DetectionDataset:
    """The images that the detections of a training are of."""
    data = settings["data"]
    size = data.get("size")

    def load(split: str, images: int) -> DetectionDataset:
        return load_dataset(
            data["path"],
            split,
            images=images,
            size=size if isinstance(size, int) else None,
            seed=data.get("seed", 0),
        )

    shown = data.get("test_split") or data.get("evaluation_split")
    if shown is not None:
        return load(shown, data["evaluation_images"])
    train = load(data["train_split"], data["images"])
    return train.split(1 - data["evaluation_fraction"], data.get("seed", 0))[1]


@dataclass(frozen=True)
class Matches:
    """N detections, by falling score.

    Attributes:
        detections: in COCO's format.
        scores: (N,) falling.
        overlaps: (N,) IoU with the nearest object of the class; 0 where there is none.
        correct: (N,) whether each has found an object at IoU 0.5 that no better one has.
        ignored: (N,) those of crowds.
        objects: how many there are to find.
    """

    detections: list[dict[str, Any]]
    scores: Floats
    overlaps: Floats
    correct: npt.NDArray[np.bool_]
    ignored: npt.NDArray[np.bool_]
    objects: int

    @property
    def best_threshold(self) -> float:
        """The score above which precision and recall together are best (F1 at IoU 0.5)."""
        counted = ~self.ignored
        right = np.cumsum(self.correct & counted)
        shown = np.cumsum(counted)
        if not right.size or right[-1] == 0:
            return float("inf")
        return float(self.scores[int((2 * right / (shown + self.objects)).argmax())])


def match(truth: dict[str, Any], detections: list[dict[str, Any]]) -> Matches:
    """Compare detections with ground truth, both in COCO's format."""
    detections = sorted(detections, key=lambda found: -found["score"])
    known = parse_ground_truth(truth)
    found = parse_detections(detections, known)
    overlaps = np.zeros(len(detections))
    for chosen, objects in pairs_by_image_and_class(known, found):
        objects = objects[~known.crowd[objects]]
        if len(objects):
            crowd = np.zeros(len(objects), dtype=bool)
            overlap = box_iou(found.boxes[chosen], known.boxes[objects], crowd)
            overlaps[chosen] = overlap.max(1)
    marks = mark_correct(truth, detections)
    objects_to_find = int((~known.crowd).sum())
    return Matches(
        detections, found.scores, overlaps, marks.correct, marks.ignored, objects_to_find
    )


def match_run(run: Any, dataset: DetectionDataset) -> Matches | None:
    """Of a training run; None without detections, or with those of other images."""
    if not run.detections:
        return None
    truth = dataset.ground_truth()
    return run.notes.attempt(  # type: ignore[no-any-return]
        run.path / "detections.json", lambda path: match(truth, run.detections)
    )


def rank_correlation(a: Floats, b: Floats) -> float | None:
    """Spearman's: 1 if both order things alike, 0 if they have nothing to do with each other.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 40.0, 90.0]))
        1.0
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(round(np.corrcoef(ranks(a), ranks(b))[0, 1], 12))


def ranks(values: Floats) -> Floats:
    """Places from 0 to 1, equal values share one."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    middle = last - (count + 1) / 2
    return np.asarray(middle[place.reshape(-1)] / max(1, len(values) - 1))


def score_map(results: dict[str, Any]) -> Any:
    """From scores to probabilities, as fitted at the end of a training with a ranking loss."""
    scale = setting(results, "calibration.scale", 1.0)
    shift = setting(results, "calibration.shift", 0.0)

    def probability(score: float) -> float:
        score = min(max(score, 1e-15), 1 - 1e-15)
        odds = scale * np.log(score / (1 - score)) + shift
        return float(1 / (1 + np.exp(-np.clip(odds, -60, 60))))

    return probability

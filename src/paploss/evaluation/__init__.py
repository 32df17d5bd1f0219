"""Average Precision as the benchmarks define it; faster-coco-eval does the counting."""

from __future__ import annotations

from paploss.evaluation.calibration import (
    Calibration,
    Marks,
    expected_calibration_error,
    fit_calibration,
    mark_correct,
)
from paploss.evaluation.coco import (
    CocoEvaluation,
    coco_metrics,
    evaluate_coco,
    load_detections,
    load_ground_truth,
)
from paploss.evaluation.voc import voc_ap50

__all__ = [
    "Calibration",
    "CocoEvaluation",
    "Marks",
    "coco_metrics",
    "evaluate_coco",
    "expected_calibration_error",
    "fit_calibration",
    "load_detections",
    "load_ground_truth",
    "mark_correct",
    "voc_ap50",
]

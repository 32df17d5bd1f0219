"""COCO metrics of detections against ground truth, both in COCO's json format."""

from __future__ import annotations

from typing import Any

METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def coco_metrics(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> dict[str, float]:
    """The twelve COCO figures for boxes, as fractions; -1 where there is no object to find.

    Args:
        ground_truth: ``images``, ``annotations``, ``categories`` as in a COCO json file.
        detections: ``image_id``, ``category_id``, ``bbox`` (x, y, width, height), ``score`` each.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    truth = COCO(ground_truth)
    evaluator = COCOeval_faster(truth, truth.loadRes(detections), "bbox")
    evaluator.run()
    return dict(zip(METRICS, map(float, evaluator.stats), strict=False))

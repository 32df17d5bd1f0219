from __future__ import annotations

from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings

from paploss.evaluation import coco_metrics, voc_ap50
from tests.evaluation.cases import Case, cases, real_data

METHODS: tuple[Literal["area", "11point"], ...] = ("area", "11point")


def overlap(a: list[float], b: list[float]) -> float:
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (a[2] * a[3] + b[2] * b[3] - width * height)


def plain_ap(
    truth: dict[str, Any], detections: list[dict[str, Any]], category: int, method: str
) -> float:
    """The development kit's loop, one detection at a time."""
    objects = [a for a in truth["annotations"] if a["category_id"] == category]
    count = sum(not a["iscrowd"] for a in objects)
    if count == 0:
        return -1.0
    taken: set[int] = set()
    precisions, recalls, right, wrong = [], [], 0, 0
    mine = [d for d in detections if d["category_id"] == category]
    for detection in sorted(mine, key=lambda d: -d["score"]):
        best, target = 0.0, None
        for index, item in enumerate(objects):
            if item["image_id"] == detection["image_id"]:
                value = overlap(detection["bbox"], item["bbox"])
                if value > best:
                    best, target = value, index
        if target is not None and best >= 0.5:
            if objects[target]["iscrowd"]:
                continue
            right += target not in taken
            wrong += target in taken
            taken.add(target)
        else:
            wrong += 1
        precisions.append(right / (right + wrong))
        recalls.append(right / count)
    if method == "11point":
        levels = [
            max((p for p, r in zip(precisions, recalls, strict=True) if r >= k / 10), default=0)
            for k in range(11)
        ]
        return sum(levels) / 11
    total, before = 0.0, 0.0
    for index, recall in enumerate(recalls):
        total += (recall - before) * max(precisions[index:])
        before = recall
    return total


@settings(max_examples=100)
@given(case=cases())
def test_equal_to_the_plain_loop(case: Case) -> None:
    ground_truth, detections = case
    for method in METHODS:
        mean, per_class = voc_ap50(ground_truth, detections, method=method)
        expected = {
            record["name"]: plain_ap(ground_truth, detections, record["id"], method)
            for record in ground_truth["categories"]
        }
        assert per_class == pytest.approx(expected)
        measured = [value for value in expected.values() if value >= 0]
        assert mean == pytest.approx(np.mean(measured) if measured else -1)


def problem(
    boxes: list[list[float]],
    found: list[tuple[float, list[float]]],
    difficult: tuple[int, ...] = (),
) -> Case:
    ground_truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": int(i in difficult)}
            for i, box in enumerate(boxes)
        ],
    }
    detections = [
        {"image_id": 1, "category_id": 1, "bbox": box, "score": score} for score, box in found
    ]
    return ground_truth, detections


HERE, THERE, NOWHERE = [0.0, 0.0, 10.0, 10.0], [50.0, 0.0, 10.0, 10.0], [0.0, 80.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("case", "area", "eleven"),
    [
        (problem([HERE, THERE], [(2, HERE), (1, THERE)]), 1, 1),
        # right, wrong, right: precision 1 up to recall 1/2, then 2/3
        (
            problem([HERE, THERE], [(3, HERE), (2, NOWHERE), (1, THERE)]),
            5 / 6,
            (6 + 5 * 2 / 3) / 11,
        ),
        # a second detection of one object is wrong
        (problem([HERE, THERE], [(3, HERE), (2, HERE), (1, THERE)]), 5 / 6, (6 + 5 * 2 / 3) / 11),
        # found first, a wrong one costs every recall
        (problem([HERE], [(-1, NOWHERE), (-2, HERE)]), 1 / 2, 1 / 2),
        # difficult objects neither count nor harm, however often found
        (problem([HERE, THERE], [(3, THERE), (2, THERE), (1, HERE)], difficult=(1,)), 1, 1),
        (problem([HERE, THERE], [(1, HERE)]), 1 / 2, 6 / 11),
        # IoU of exactly a half is enough, less is not
        (problem([HERE], [(1, [0.0, 0.0, 10.0, 5.0])]), 1, 1),
        (problem([HERE], [(1, [0.0, 0.0, 10.0, 4.9])]), 0, 0),
        (problem([HERE], []), 0, 0),
        (problem([HERE], [(1, HERE)], difficult=(0,)), -1, -1),
        (problem([], [(1, HERE)]), -1, -1),
    ],
)
def test_by_hand(case: Case, area: float, eleven: float) -> None:
    for method, expected in zip(METHODS, (area, eleven), strict=True):
        mean, per_class = voc_ap50(*case, method=method)
        assert mean == pytest.approx(expected)
        assert per_class == {"cat": pytest.approx(expected)}


def test_the_best_object_taken_is_a_miss_where_coco_takes_the_second() -> None:
    near = [2.0, 0.0, 10.0, 10.0]
    case = problem([HERE, near], [(2, HERE), (1, [0.5, 0.0, 10.0, 10.0])])
    assert voc_ap50(*case)[0] == pytest.approx(0.5)
    assert coco_metrics(*case)["AP50"] == pytest.approx(1)


def test_recall_reached_in_whole_numbers() -> None:
    """Three of ten objects are a recall of 0.3, though 3 * 0.1 > 0.3 in floating point."""
    boxes = [[20.0 * i, 0.0, 10.0, 10.0] for i in range(10)]
    case = problem(boxes, [(float(-i), boxes[i]) for i in range(3)])
    assert voc_ap50(*case, method="11point")[0] == pytest.approx(4 / 11)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="method: expected 'area' or '11point', found 'coco'"):
        voc_ap50(*problem([HERE], []), method="coco")  # type: ignore[arg-type]


def real_problem() -> Case:
    """VOC's inclusive 1-based pixels as continuous boxes; the detections count from 0."""
    folder = real_data("voc100_metrics_db")
    names = (folder / "voc.names").read_text().split()
    annotations, detections, images = [], [], []
    for image, path in enumerate(sorted((folder / "gts" / "pascalvoc_format").glob("*.xml"))):
        images.append({"id": image})
        for item in ElementTree.parse(path).iter("object"):
            x1, y1, x2, y2 = (
                float(item.findtext(f"bndbox/{key}") or "")
                for key in ("xmin", "ymin", "xmax", "ymax")
            )
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": image,
                    "category_id": names.index(item.findtext("name") or ""),
                    "bbox": [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1],
                    "iscrowd": int(item.findtext("difficult") or 0),
                }
            )
        found = folder / "dets" / "abs_xywh" / f"{path.stem}.txt"
        for line in found.read_text().splitlines() if found.exists() else []:
            category, score, *box = map(float, line.split())
            detections.append(
                {"image_id": image, "category_id": int(category), "bbox": box, "score": score}
            )
    categories = [{"id": index, "name": name} for index, name in enumerate(names)]
    return {"images": images, "categories": categories, "annotations": annotations}, detections


def test_real_detections() -> None:
    ground_truth, detections = real_problem()
    assert len(ground_truth["annotations"]) == 273
    assert sum(a["iscrowd"] for a in ground_truth["annotations"]) == 38
    assert len(detections) == 452
    for method, figure in zip(METHODS, (0.608, 0.601), strict=True):
        mean, per_class = voc_ap50(ground_truth, detections, method=method)
        expected = {
            record["name"]: plain_ap(ground_truth, detections, record["id"], method)
            for record in ground_truth["categories"]
        }
        assert per_class == pytest.approx(expected)
        assert round(mean, 3) == figure

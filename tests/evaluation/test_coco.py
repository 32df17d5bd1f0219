from __future__ import annotations

import contextlib
import copy
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from paploss.evaluation import coco_metrics, evaluate_coco, load_detections, load_ground_truth
from paploss.evaluation.coco import METRICS
from tests.evaluation.cases import Case, cases, real_data


def pycocotools_evaluation(ground_truth: dict[str, Any], detections: list[dict[str, Any]]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {"info": {}, **copy.deepcopy(ground_truth)}
        truth.createIndex()
        if detections:
            found = truth.loadRes(copy.deepcopy(detections))
        else:  # which its loadRes cannot take
            found = COCO()
            found.dataset = {**truth.dataset, "annotations": []}
            found.createIndex()
        evaluator = COCOeval(truth, found, "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator


def mean(values: np.ndarray) -> float:
    return float(values[values > -1].mean()) if (values > -1).any() else -1.0


def assert_equal_to_pycocotools(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> None:
    expected = pycocotools_evaluation(ground_truth, detections)
    found = evaluate_coco(ground_truth, detections)
    np.testing.assert_allclose([found.metrics[name] for name in METRICS], expected.stats, atol=1e-9)
    precision = expected.eval["precision"][..., 0, -1]  # (10, 101, K)
    names = {record["id"]: record["name"] for record in ground_truth["categories"]}
    assert found.per_class == pytest.approx(
        {names[key]: mean(precision[..., k]) for k, key in enumerate(expected.params.catIds)}
    )
    assert found.ap_by_iou == pytest.approx([mean(part) for part in precision])
    assert found.precision50 == pytest.approx([mean(part) for part in precision[0]])
    assert found.precision75 == pytest.approx([mean(part) for part in precision[5]])


@settings(max_examples=150)
@given(case=cases())
def test_equal_to_pycocotools(case: Case) -> None:
    ground_truth, detections = case
    event(f"AP {'defined' if coco_metrics(*case)['AP'] >= 0 else 'undefined'}")
    before = copy.deepcopy(case)
    assert_equal_to_pycocotools(ground_truth, detections)
    assert case == before, "the caller's records were changed"


@settings(max_examples=25)
@given(case=cases())
def test_only_the_order_of_scores_matters(case: Case) -> None:
    ground_truth, detections = case
    expected = coco_metrics(ground_truth, detections)
    for change in (lambda s: 40 * s - 60, lambda s: 1e-12 * s, lambda s: s - 1):
        moved = [{**record, "score": change(record["score"])} for record in detections]
        assert coco_metrics(ground_truth, moved) == expected


def test_real_detections() -> None:
    folder = real_data("coco_eval_fixture")
    ground_truth = load_ground_truth(folder / "instances_val2014_100.json")
    detections = load_detections(folder / "instances_val2014_fakebbox100_results.json")
    figures = {name: round(v, 3) for name, v in coco_metrics(ground_truth, detections).items()}
    expected = {"AP": 0.505, "AP50": 0.697, "AP75": 0.573, "APs": 0.586, "APm": 0.519}
    expected |= {"APl": 0.501, "AR1": 0.387, "AR10": 0.594, "AR100": 0.595}
    assert {name: figures[name] for name in expected} == expected
    assert_equal_to_pycocotools(ground_truth, detections)


def one_object() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    box = {"image_id": 3, "category_id": 7, "bbox": [10.0, 10.0, 40.0, 40.0]}
    ground_truth = {
        "images": [{"id": 3}, {"id": 4}],
        "categories": [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}],
        "annotations": [{"id": 0, **box}],
    }
    return ground_truth, [{**box, "score": 0.0}, {**box, "image_id": 4, "score": -0.5}]


def test_annotation_id_zero_missing_area_and_scores_below_zero() -> None:
    """Each of these is lost on the way in pycocotools or in some version of faster-coco-eval."""
    ground_truth, detections = one_object()
    evaluation = evaluate_coco(ground_truth, detections)
    assert evaluation.metrics["AP"] == pytest.approx(1)
    assert evaluation.metrics["APm"] == pytest.approx(1)
    assert evaluation.metrics["APl"] == -1
    assert evaluation.per_class == {"cat": pytest.approx(1), "dog": -1}
    detections[1]["score"] = 0.5  # the stray one first: half the precision at every recall
    assert coco_metrics(ground_truth, detections)["AP"] == pytest.approx(0.5)


def test_annotations_that_share_an_id_all_count() -> None:
    ground_truth, detections = one_object()
    ground_truth["annotations"].append({**ground_truth["annotations"][0], "image_id": 4})
    assert coco_metrics(ground_truth, detections)["AP"] == pytest.approx(1)
    assert coco_metrics(ground_truth, detections[:1])["AR100"] == pytest.approx(0.5)


def test_nothing_found_and_nothing_to_find() -> None:
    ground_truth, detections = one_object()
    nothing_found = coco_metrics(ground_truth, [])
    assert nothing_found["AP"] == nothing_found["APm"] == nothing_found["AR100"] == 0
    assert nothing_found["APs"] == -1
    empty = {**ground_truth, "annotations": []}
    for found in (detections, []):
        assert set(coco_metrics(empty, found).values()) == {-1.0}
    nowhere = evaluate_coco({**empty, "images": []}, [])
    assert set(nowhere.metrics.values()) == {-1.0}
    assert nowhere.per_class == {"cat": -1, "dog": -1}
    assert evaluate_coco({"images": [], "categories": [], "annotations": []}, []).per_class == {}


def test_a_box_of_negative_size_hits_nothing() -> None:
    ground_truth, detections = one_object()
    detections[0]["bbox"] = [50.0, 50.0, -40.0, -40.0]
    assert coco_metrics(ground_truth, detections)["AP"] == 0


def test_two_classes_of_one_name_stay_two() -> None:
    ground_truth, detections = one_object()
    ground_truth["categories"] = [{"id": 7, "name": "cat"}, {"id": 8, "name": "cat"}, {"id": 9}]
    assert list(evaluate_coco(ground_truth, detections).per_class) == ["cat (7)", "cat (8)", "9"]


def test_to_dict_goes_through_json(capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = evaluate_coco(*one_object())
    content = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert content["metrics"] == evaluation.metrics
    assert list(content["ap_by_iou"])[:2] == ["0.50", "0.55"]
    assert {len(values) for values in content["precision_recall"].values()} == {101}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("detection", {"image_id": 99}, r"detections\[1\]\.image_id: .* 2 images .* found 99"),
        ("detection", {"image_id": "3"}, r"detections\[1\]\.image_id: .* found '3'"),
        ("detection", {"image_id": [3]}, r"detections\[1\]\.image_id: .* found \[3\]"),
        ("detection", {"category_id": 1}, r"detections\[1\]\.category_id: .* found 1"),
        ("detection", {"score": math.nan}, r"detections\[1\]\.score: expected a number, found nan"),
        ("detection", {"score": None}, r"detections\[1\]\.score: expected a number, found None"),
        ("detection", {"score": "high"}, r"detections\[1\]\.score: .* found 'high'"),
        ("detection", {"bbox": [1, 2, 3]}, r"detections\[1\]\.bbox: expected four .* \[1, 2, 3\]"),
        ("detection", {"bbox": [1, 2, 3, math.inf]}, r"detections\[1\]\.bbox: .* finite"),
        ("detection", {"bbox": 5}, r"detections\[1\]\.bbox: .* found 5"),
        ("detection", {"score": ...}, r"detections\[1\]: score is missing, found image_id,"),
        ("detection", {"bbox": ...}, r"detections\[1\]: bbox is missing"),
        ("annotation", {"image_id": 5}, r"ground_truth: annotations\[0\]\.image_id: .* found 5"),
        ("annotation", {"bbox": [0, 0, -1, 2]}, r"annotations\[0\]\.bbox: .* no negative size"),
        ("annotation", {"area": math.nan}, r"annotations\[0\]\.area: expected a number"),
        ("annotation", {"iscrowd": 2}, r"annotations\[0\]\.iscrowd: expected 0 or 1, found 2"),
        ("annotation", {"category_id": ...}, r"annotations\[0\]: category_id is missing"),
        ("image", {"id": 4}, r"ground_truth: images\[1\]\.id: .* found 4 again"),
        ("image", {"id": "a"}, r"ground_truth: images\[0\]\.id: expected an integer, found 'a'"),
        ("truth", {"images": ...}, r"ground_truth: images: expected a list, found nothing"),
        ("truth", {"annotations": {}}, r"ground_truth: annotations: expected a list, found {}"),
    ],
)
def test_errors_name_record_and_field(part: str, change: dict[str, Any], message: str) -> None:
    ground_truth, detections = one_object()
    record: dict[str, Any] = {
        "detection": detections[1],
        "annotation": ground_truth["annotations"][0],
        "image": ground_truth["images"][0],
        "truth": ground_truth,
    }[part]
    for key, value in change.items():
        if value is ...:
            del record[key]
        else:
            record[key] = value
    with pytest.raises(ValueError, match=message):
        coco_metrics(ground_truth, detections)


def test_errors_of_the_wrong_kind_of_thing() -> None:
    ground_truth, detections = one_object()
    with pytest.raises(ValueError, match=r"ground_truth: expected an object"):
        coco_metrics(detections, detections)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"detections: expected a list"):
        coco_metrics(ground_truth, ground_truth)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"detections\[0\]: expected an object, found 'box'"):
        coco_metrics(ground_truth, ["box"])  # type: ignore[list-item]


def test_files(tmp_path: Path) -> None:
    ground_truth, detections = one_object()
    truth_file, detections_file = tmp_path / "truth.json", tmp_path / "found.json"
    truth_file.write_text(json.dumps(ground_truth))
    detections_file.write_text(json.dumps(detections))
    assert load_ground_truth(truth_file) == ground_truth
    assert load_detections(str(detections_file)) == detections
    with pytest.raises(ValueError, match=r"found\.json: .* are these detections\?"):
        load_ground_truth(detections_file)
    with pytest.raises(ValueError, match=r"truth\.json: .* is this ground truth\?"):
        load_detections(truth_file)
    detections_file.write_text('[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}]')
    with pytest.raises(ValueError, match=r"found\.json\[0\]: score is missing"):
        load_detections(detections_file)
    truth_file.write_text('{"images": [], "annotations": []}')
    with pytest.raises(ValueError, match=r"truth\.json: categories: expected a list"):
        load_ground_truth(truth_file)
    for broken in (b"{oops", b"\xff\xfe{}", b""):
        truth_file.write_bytes(broken)
        with pytest.raises(ValueError, match=r"truth\.json: not a json file"):
            load_ground_truth(truth_file)
    with pytest.raises(FileNotFoundError):
        load_detections(tmp_path / "none.json")

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paploss.data.coco import read_coco
from paploss.data.dataset import DetectionDataset
from paploss.evaluation.coco import coco_metrics
from tests.data.writers import coco_image, coco_object, write_coco, write_image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        write_image(tmp_path / "train2017" / f"{number}.png")
    return tmp_path


def read(root: Path, images: list[Any], annotations: list[Any], **changes: Any) -> Any:
    path = root / "annotations" / "instances_train2017.json"
    return read_coco(write_coco(path, images, annotations, **changes))


def test_labels_crowd_gaps_and_empty_images(root: Path) -> None:
    found = read(
        root,
        [coco_image(2), coco_image(1)],
        [
            coco_object(10, 1, 7, area=55.5),
            coco_object(11, 1, 3, bbox=[0.5, 1.5, 4, 5], iscrowd=1),
        ],
    )
    assert found.faults == []
    assert (found.class_names, found.category_ids) == (["cat", "dog"], [3, 7])
    empty, full = found.records
    assert empty.image_id == 2
    assert empty.boxes.shape == (0, 4)
    assert empty.image == root / "train2017" / "2.png"
    np.testing.assert_array_equal(full.boxes, [[1, 2, 11, 22], [0.5, 1.5, 4.5, 6.5]])
    assert full.labels.tolist() == [1, 0]
    assert full.crowd.tolist() == [False, True]
    truth = DetectionDataset(found).ground_truth()
    assert [item["area"] for item in truth["annotations"]] == [55.5, 20]
    assert [item["id"] for item in truth["annotations"]] == [1, 2]
    assert [item["bbox"] for item in truth["annotations"]] == [[1, 2, 10, 20], [0.5, 1.5, 4, 5]]
    assert truth["categories"] == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": 99}, "image_id: expected the id of a usable image, found 99"),
        ({"image_id": "1"}, "image_id"),
        ({"category_id": 4}, "category_id: expected the id of a category, found 4"),
        ({"category_id": None}, "category_id"),
        ({"bbox": [1, 2, 3]}, "bbox: expected [x, y, width, height], found [1, 2, 3]"),
        ({"bbox": [1, 2, "3", 4]}, "bbox"),
        ({"bbox": [1, 2, True, 4]}, "bbox"),
        ({"bbox": [1, 2, 10**400, 4]}, "bbox"),
        ({"bbox": None}, "bbox"),
        ({"bbox": [1, 2, -3, 4]}, "is -3 x 4 pixels: expected a positive size"),
        ({"bbox": [1, 2, 0, 4]}, "is 0 x 4 pixels"),
        ({"bbox": [1, 2, math.nan, 4]}, "expected finite numbers"),
        ({"bbox": [1, 2, math.inf, 4]}, "expected finite numbers"),
        ({"bbox": [64, 2, 5, 4]}, "lies outside its 64 x 48 image"),
    ],
)
def test_faulty_annotations(root: Path, changes: dict[str, Any], message: str) -> None:
    found = read(root, [coco_image(1)], [coco_object(1, 1, 3), coco_object(42, 1, 3, **changes)])
    (fault,) = found.faults
    assert message in fault.message
    assert "annotations id 42" in fault.message
    text = Path(fault.file).read_text().splitlines()
    assert text[fault.line - 1].strip() == '"id": 42,'
    assert len(DetectionDataset(found).records[0].boxes) == 1


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (coco_image(1), "id: expected a new integer, found 1"),
        (coco_image(5, id="five"), "id: expected a new integer"),
        (coco_image(5), "file '5.png' not found"),
        (coco_image(5, file_name=None), "expected a file name, found None"),
        (coco_image(5, file_name="/etc/passwd"), "is absolute"),
        (coco_image(5, file_name="C:\\secret.png"), "is absolute"),
        (coco_image(5, file_name="../../outside.png"), "leads out of the data folder"),
        (coco_image(5, file_name="link.png"), "is a link out of the data folder"),
        (coco_image(5, file_name="folder/outside.png"), "leads out of the data folder"),
        ("not an image", "id: expected a new integer"),
    ],
)
def test_faulty_images(root: Path, image: Any, message: str) -> None:
    data = root / "data"
    data.mkdir()
    (root / "train2017").rename(data / "train2017")
    outside = write_image(root / "outside" / "outside.png")
    write_image(root / "outside.png")
    (data / "train2017" / "link.png").symlink_to(outside)
    (data / "train2017" / "folder").symlink_to(outside.parent)
    found = read(data, [coco_image(1), image], [])
    (fault,) = found.faults
    assert message in fault.message
    assert [record.image_id for record in found.records] == [1]


def test_missing_size_is_read_from_the_image(root: Path) -> None:
    found = read(root, [coco_image(1, width=None), coco_image(2, height=0)], [])
    assert [(r.width, r.height) for r in found.records] == [(64, 48)] * 2


def test_categories(root: Path) -> None:
    found = read(root, [], [], categories=[{"id": 1}, {"id": 1, "name": "b"}, {"name": "c"}, "d"])
    assert found.class_names == ["category 1"]
    assert len(found.faults) == 3
    with pytest.raises(ValueError, match="categories: expected at least one"):
        read(root, [], [], categories=[])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n oops", ":2: not a json file"),
        ("[]", "expected a json object .* found a list"),
        ('{"images": []}', "annotations: expected a list, found nothing"),
        ('{"images": {}}', "images: expected a list, found dict"),
        ("[" * 100_000, "not a readable json file"),
    ],
)
def test_unreadable_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_coco(path)
    assert str(path) in str(error.value)
    with pytest.raises(ValueError, match="not a readable json file"):
        read_coco(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("json_path", "image_path"),
    [
        ("annotations/instances_train2017.json", "train2017/1.png"),
        ("annotations/instances_train2017.json", "images/train2017/1.png"),
        ("annotations/train.json", "images/1.png"),
        ("annotations/cells.json", "images/1.png"),
        ("annotations/cells.json", "1.png"),
        ("train/_annotations.coco.json", "train/1.png"),
        ("cells.json", "images/1.png"),
    ],
)
def test_image_folders(tmp_path: Path, json_path: str, image_path: str) -> None:
    image = write_image(tmp_path / image_path)
    found = read_coco(write_coco(tmp_path / json_path, [coco_image(1)], []))
    assert [record.image for record in found.records] == [image]


def test_images_may_be_elsewhere_or_absent(tmp_path: Path) -> None:
    path = write_coco(tmp_path / "a" / "x.json", [coco_image(1)], [coco_object(1, 1, 3)])
    found = read_coco(path)
    assert "no image files found, tried" in found.faults[0].message
    assert found.records[0].image is None
    assert len(found.records[0].boxes) == 1
    with pytest.raises(ValueError, match="image 1: its annotations came without an image file"):
        DetectionDataset(found)[0]
    image = write_image(tmp_path / "b" / "1.png")
    assert read_coco(path, tmp_path / "b").records[0].image == image
    with pytest.raises(ValueError, match="image_root: expected a folder"):
        read_coco(path, tmp_path / "c")


# Boxes thinner than what ground_truth() rounds to would vanish on the way.
finite = st.floats(-100, 200, width=32).map(lambda value: round(value, 2))


@given(st.lists(st.tuples(finite, finite, finite, finite, st.booleans(), st.integers(0, 1))))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, objects: list[Any]) -> None:
    """What is written is read, clipped; what has no part in the image is dropped, never a crash."""
    folder = tmp_path_factory.mktemp("coco")
    written = [
        coco_object(k + 1, 1, (3, 7)[label], bbox=[x, y, w, h], iscrowd=int(crowd))
        for k, (x, y, w, h, crowd, label) in enumerate(objects)
    ]
    found = read_coco(write_coco(folder / "x.json", [coco_image(1)], written))
    dataset = DetectionDataset(found)
    record = dataset.records[0]
    assert len(record.boxes) + dataset.dropped_boxes == len(objects)
    assert (record.boxes >= 0).all()
    assert (record.boxes <= [64, 48, 64, 48]).all()
    assert (record.boxes[:, 2:] > record.boxes[:, :2]).all()
    again = dataset.ground_truth()
    again["images"][0]["file_name"] = "1.png"
    second = DetectionDataset(read_coco(write_coco(folder / "y.json", **again)))
    np.testing.assert_allclose(second.records[0].boxes, record.boxes, atol=2e-3)
    np.testing.assert_array_equal(second.records[0].labels, record.labels)
    np.testing.assert_array_equal(second.records[0].crowd, record.crowd)


def test_the_reference_evaluator_agrees() -> None:
    if "PAPLOSS_TEST_DATA" not in os.environ:
        pytest.skip("needs the real data in $PAPLOSS_TEST_DATA")
    folder = Path(os.environ["PAPLOSS_TEST_DATA"]) / "data" / "coco_eval_fixture"
    found = read_coco(folder / "instances_val2014_100.json")
    label_of = {category: label for label, category in enumerate(found.category_ids)}
    detections = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    for item in detections:
        item["category_id"] = label_of[item["category_id"]]
    metrics = coco_metrics(DetectionDataset(found).ground_truth(), detections)
    expected = {"AP": 0.505, "AP50": 0.697, "AP75": 0.573, "APs": 0.586, "APm": 0.519, "APl": 0.501}
    assert {name: round(metrics[name], 3) for name in expected} == expected
    assert sum(record.crowd.sum() for record in found.records) == 9

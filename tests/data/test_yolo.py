from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paploss.data.dataset import DetectionDataset
from paploss.data.yolo import read_yolo
from tests.data.writers import write_image, write_yolo


def test_boxes_polygons_and_empty_images(tmp_path: Path) -> None:
    rows = {"a": "1 0.5 0.5 0.25 0.5\n\n0 0.25 0.5 0.75 0.5 0.5 0.75\n", "b": "", "c": None}
    found = read_yolo(write_yolo(tmp_path, rows), "train")
    assert found.faults == []
    assert found.class_names == ["cat", "dog"]
    assert [record.image_id for record in found.records] == [1, 2, 3]
    first = found.records[0]
    np.testing.assert_allclose(first.boxes, [[24, 12, 40, 36], [16, 24, 48, 36]])
    assert first.labels.tolist() == [1, 0]
    assert [len(record.boxes) for record in found.records] == [2, 0, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0 0.5 0.5 0.1", "expected 'class cx cy w h' or a class and a polygon, found 4 numbers"),
        ("0 0.5 0.5 0.1 0.1 0.9", "found 6 numbers"),
        ("0 0.5 0.5 0.1 0.1 0.9 0.9 0.1", "found 8 numbers"),
        ("2 0.5 0.5 0.1 0.1", "expected a class from 0 to 1, found 2"),
        ("-1 0.5 0.5 0.1 0.1", "expected a class from 0 to 1, found -1"),
        ("0.5 0.5 0.5 0.1 0.1", "expected a class from 0 to 1, found 0.5"),
        ("nan 0.5 0.5 0.1 0.1", "expected a class"),
        ("inf 0.5 0.5 0.1 0.1", "expected a class"),
        ("cat 0.5 0.5 0.1 0.1", "expected numbers, found 'cat 0.5"),
        ("0 32 24 10 10", "expected fractions of the image in [0, 1], found 32 24 10 10"),
        ("0 0.5 nan 0.1 0.1", "expected fractions"),
        ("0 0.5 0.5 0 0.1", "is 0 x 4.8 pixels"),
        ("0 0.1 0.1 0.1 0.1 0.1 0.1", "is 0 x 0 pixels"),
    ],
)
def test_faulty_rows(tmp_path: Path, row: str, message: str) -> None:
    path = write_yolo(tmp_path, {"a": f"0 0.5 0.5 0.1 0.1\n{row}\n"})
    found = read_yolo(path, "train")
    (fault,) = found.faults
    assert message in fault.message
    assert (fault.file, fault.line) == (str(tmp_path / "labels" / "train" / "a.txt"), 2)
    assert len(DetectionDataset(found).records[0].boxes) == 1


@pytest.mark.parametrize(
    "yaml",
    [
        "train: images/train\nnames: [cat, dog]",
        "path: .\ntrain: images/train\nnames: {0: cat, 1: dog}",
        "path: images\ntrain: train\nnames: [cat, dog]",
        "train: [images/train]\nnames: [cat, dog]",
        "train: list.txt\nnames: [cat, dog]",
        "train: ../images/train\nnames: [cat, dog]",  # as Roboflow writes it
    ],
)
def test_ways_to_name_a_split(tmp_path: Path, yaml: str) -> None:
    root = tmp_path / "data"
    path = write_yolo(root, {"a": "0 0.5 0.5 0.1 0.1", "b": None}, yaml=yaml)
    (root / "list.txt").write_text("./images/train/a.png\n\nimages/train/b.png\n")
    found = read_yolo(path, "train")
    assert found.faults == []
    assert [record.image.name for record in found.records if record.image] == ["a.png", "b.png"]
    assert [len(record.boxes) for record in found.records] == [1, 0]


def test_labels_beside_images_and_gaps_in_names(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "a.png")
    (tmp_path / "train" / "a.txt").write_text("7 0.5 0.5 0.1 0.1\n3 0.5 0.5 0.1 0.1")
    path = tmp_path / "data.yaml"
    path.write_text("train: train\nnames: {7: dog, 3: cat}")
    found = read_yolo(path, "train")
    assert found.class_names == ["cat", "dog"]
    assert found.records[0].labels.tolist() == [1, 0]


def test_a_path_of_another_machine(tmp_path: Path) -> None:
    yaml = "path: /home/somebody/data\ntrain: images/train\nnames: [cat]"
    found = read_yolo(write_yolo(tmp_path, {"a": None}, yaml=yaml), "train")
    assert "path: expected a folder below" in found.faults[0].message
    assert len(found.records) == 1


def test_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "data"
    outside = write_image(tmp_path / "outside" / "x.png")
    (tmp_path / "outside" / "x.txt").write_text("0 0.5 0.5 0.1 0.1")
    path = write_yolo(root, {"a": None, "b": None})
    (root / "images" / "train" / "link.png").symlink_to(outside)
    (root / "images" / "train" / "folder").symlink_to(outside.parent)
    (root / "labels" / "train").mkdir(parents=True)
    (root / "labels" / "train" / "b.txt").symlink_to(outside.parent / "x.txt")
    found = read_yolo(path, "train")
    assert [record.image.name for record in found.records if record.image] == ["a.png", "b.png"]
    assert [len(record.boxes) for record in found.records] == [0, 0]
    messages = [fault.message for fault in found.faults]
    assert any("'link.png' is a link out of the data folder" in message for message in messages)
    assert "skipped: a link out of the data folder" in messages

    listing = root / "list.txt"
    listing.write_text(f"images/train/a.png\n../outside/x.png\n{outside}\nimages/train/link.png\n")
    path.write_text("train: list.txt\nnames: [cat]")
    found = read_yolo(path, "train")
    assert [(fault.file, fault.line) for fault in found.faults] == [
        (str(listing), line) for line in (2, 3, 4)
    ]
    assert len(found.records) == 1

    for entry in (outside.parent, "images/../../outside", "images/train/folder"):
        path.write_text(f"train: {entry}\nnames: [cat]")
        with pytest.raises(ValueError, match="leads out of the data folder"):
            read_yolo(path, "train")


def test_corrupt_images_are_faults(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, {"a": None, "b": None})
    broken = tmp_path / "images" / "train" / "a.png"
    broken.write_bytes(b"oops")
    found = read_yolo(path, "train")
    assert [fault.file for fault in found.faults] == [str(broken)]
    assert len(found.records) == 1


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("train: images/train", "names: expected a list of class names"),
        ("train: images/train\nnames: {a: b}", "names: expected a list"),
        ("train: images/train\nnames: []", "names: expected a list"),
        ("names: [a]", "split: expected one of train, val, test, found 'train'"),
        ("names: [a]\ntrain: 3", "train: expected a path or a list of paths, found 3"),
        ("names: [a]\ntrain: nowhere", "found no .*nowhere"),
        ("names: [a\ntrain: x", ":2: not a yaml file"),
        ("- a\n- b", "found a list instead"),
        ("names: !!python/object/apply:os.getcwd []", "not a yaml file"),
    ],
)
def test_unreadable_yaml(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_yolo(write_yolo(tmp_path, {}, yaml=yaml), "train")


fraction = st.floats(0.01, 0.99)


@given(st.lists(st.tuples(fraction, fraction, fraction, fraction, st.integers(0, 1))))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, objects: list[tuple[float, float, float, float, int]]
) -> None:
    folder = tmp_path_factory.mktemp("yolo")
    rows = "\n".join(f"{label} {cx} {cy} {w} {h}" for cx, cy, w, h, label in objects)
    found = read_yolo(write_yolo(folder, {"a": rows}), "train")
    assert found.faults == []
    record = DetectionDataset(found).records[0]
    expected = [
        (64 * (cx - w / 2), 48 * (cy - h / 2), 64 * (cx + w / 2), 48 * (cy + h / 2))
        for cx, cy, w, h, _ in objects
    ]
    clipped = np.clip(np.array(expected).reshape(-1, 4), 0, [64, 48, 64, 48])
    np.testing.assert_allclose(record.boxes, clipped, atol=1e-4)
    assert record.labels.tolist() == [label for *_, label in objects]

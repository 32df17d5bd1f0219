from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paploss.data import load_dataset, read_annotations
from paploss.data.dataset import DetectionDataset
from paploss.data.voc import CLASSES, read_voc, voc_splits
from tests.data.writers import voc_object, write_image, write_voc


def test_boxes_classes_and_splits(tmp_path: Path) -> None:
    objects = voc_object("zebra", (1, 1, 64, 48)) + voc_object("ant", (2.5, 3, 11, 22), 1)
    write_voc(tmp_path, "a", objects, split="train")
    write_voc(tmp_path, "b", "", split="train")
    write_voc(tmp_path, "c", voc_object("bee"), split="test")
    (tmp_path / "ImageSets" / "Main" / "cat_train.txt").write_text("a -1\n")
    assert voc_splits(tmp_path) == ["test", "train"]
    train, test = read_voc(tmp_path, "train"), read_voc(tmp_path, "test")
    assert train.class_names == test.class_names == ["ant", "bee", "zebra"]
    assert (train.faults, test.faults) == ([], [])
    first, second = train.records
    np.testing.assert_array_equal(first.boxes, [[0, 0, 64, 48], [1.5, 2, 11, 22]])
    assert first.labels.tolist() == [2, 0]
    assert first.crowd.tolist() == [False, True]
    assert (first.width, first.height) == (64, 48)
    assert len(second.boxes) == 0
    assert second.image == tmp_path / "JPEGImages" / "b.png"
    assert len(test.records) == 1
    with pytest.raises(ValueError, match="split: expected one of test, train"):
        read_voc(tmp_path, "val")


def test_voc_classes_keep_their_order(tmp_path: Path) -> None:
    write_voc(tmp_path, "a", voc_object("tvmonitor"))
    found = read_voc(tmp_path, "anything")
    assert found.class_names == list(CLASSES)
    assert found.records[0].labels.tolist() == [19]


@pytest.mark.parametrize(
    ("objects", "line", "message"),
    [
        (voc_object(box=(5, 6, 5, 9)), 7, "cat: box (4, 5, 4, 8) is 0 x 3 pixels"),
        (voc_object(box=(9, 6, 5, 9)), 7, "is -4 x 3 pixels"),
        (voc_object(box=("x", 6, 5, 9)), 7, "cat: expected numbers in bndbox, found ['x', '6'"),
        (voc_object(box=("nan", 6, 5, 9)), 7, "expected numbers in bndbox"),
        (voc_object(box=("", 6, 5, 9)), 7, "expected numbers in bndbox"),
        (voc_object(box=("inf", 6, "inf", 9)), 7, "expected finite numbers"),
        (voc_object(box=(70, 6, 80, 9)), 7, "lies outside its 64 x 48 image"),
        ("<object><name>cat</name></object>", 7, "expected bndbox with xmin, ymin, xmax, ymax"),
        (voc_object(name=" "), 7, "object without a name"),
    ],
)
def test_faulty_objects(tmp_path: Path, objects: str, line: int, message: str) -> None:
    path = write_voc(tmp_path, "a", voc_object() + "\n" + objects)
    found = read_voc(tmp_path, "all")
    (fault,) = found.faults
    assert message in fault.message
    assert (fault.file, fault.line) == (str(path), line)
    assert len(DetectionDataset(found).records[0].boxes) == 1


BOMB = '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><annotation>&d;</annotation>'
LEAK = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><annotation>&b;</annotation>'


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("<annotation>\n<size>\n</annotation>", 3, "malformed xml: mismatched tag"),
        ("", 1, "malformed xml"),
        (BOMB, None, "unreadable xml: EntitiesForbidden"),
        (LEAK, None, "unreadable xml: EntitiesForbidden"),
    ],
)
def test_faulty_xml(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    write_voc(tmp_path, "a", voc_object())
    path = write_voc(tmp_path, "b", "")
    path.write_text(text)
    found = read_voc(tmp_path, "all")
    (fault,) = found.faults
    assert message in fault.message
    assert (fault.file, fault.line) == (str(path), line)
    assert len(found.records) == 1


def test_missing_sizes_and_images(tmp_path: Path) -> None:
    write_voc(tmp_path, "a", voc_object(), size="")
    write_voc(tmp_path, "b", "", size="<size><width>0</width><height>0</height></size>")
    write_voc(tmp_path, "c", "", image=False)
    write_voc(tmp_path, "d", "", filename="renamed.jpg")  # found by the name of the xml file
    write_voc(tmp_path, "e", "", size="")
    (tmp_path / "JPEGImages" / "e.png").write_bytes(b"not an image")
    found = read_voc(tmp_path, "all")
    assert [(r.width, r.height) for r in found.records] == [(64, 48)] * 3
    messages = [fault.message for fault in found.faults]
    assert len(messages) == 4
    assert messages[0].endswith("found none; the image has 64 x 48")
    assert "no image file 'c.png'" in messages[2]
    assert "not a readable image" in messages[3]


@pytest.mark.parametrize(
    "filename", ["/etc/passwd", "../../outside.png", "../Annotations/../../outside.png", "link.png"]
)
def test_images_stay_in_the_folder(tmp_path: Path, filename: str) -> None:
    root = tmp_path / "voc"
    outside = write_image(tmp_path / "outside.png")
    write_voc(root, "a", "", filename=filename)
    (root / "JPEGImages" / "link.png").symlink_to(outside)
    found = read_voc(root, "all")
    assert found.records == []
    assert "image skipped" in found.faults[0].message


def test_lists_stay_in_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "voc"
    write_voc(root, "a", "", split="train")
    write_voc(tmp_path / "other", "b", "")
    (root / "Annotations" / "link.xml").symlink_to(tmp_path / "other" / "Annotations" / "b.xml")
    write_voc(root / "sub", "s", "")
    listing = root / "ImageSets" / "Main" / "train.txt"
    names = ["a", "", "../../other/Annotations/b", "/etc/passwd", "link", "nothing"]
    listing.write_text("\n".join([*names, "../sub/Annotations/s"]))
    found = read_voc(root, "train")
    assert len(found.records) == 1
    assert [fault.line for fault in found.faults] == [3, 4, 5, 6, 7]


def test_a_folder_without_xml(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected xml files in one of Annotations"):
        read_voc(tmp_path, "train")


corner = st.integers(1, 63)


@given(st.lists(st.tuples(corner, corner, corner, corner, st.booleans(), st.integers(0, 19))))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, objects: list[tuple[int, int, int, int, bool, int]]
) -> None:
    folder = tmp_path_factory.mktemp("voc")
    ordered = [
        (min(a, c), min(b, d), max(a, c) + 1, max(b, d) + 1, flag, label)
        for a, b, c, d, flag, label in objects
    ]
    written = [
        voc_object(CLASSES[label], (x1, y1, x2, y2), int(flag))
        for x1, y1, x2, y2, flag, label in ordered
    ]
    size = "<size><width>64</width><height>64</height></size>"
    write_voc(folder, "a", "".join(written), size=size)
    found = read_voc(folder, "all")
    record = DetectionDataset(found).records[0]
    expected = [(x1 - 1, y1 - 1, x2, y2) for x1, y1, x2, y2, *_ in ordered]
    np.testing.assert_array_equal(record.boxes, np.array(expected).reshape(-1, 4))
    assert record.crowd.tolist() == [flag for *_, flag, _ in ordered]
    if objects:
        assert record.labels.tolist() == [label for *_, label in ordered]


@pytest.fixture
def real_data() -> Path:
    if "PAPLOSS_TEST_DATA" not in os.environ:
        pytest.skip("needs the real data in $PAPLOSS_TEST_DATA")
    return Path(os.environ["PAPLOSS_TEST_DATA"]) / "data"


def test_bccd(real_data: Path) -> None:
    splits = {name: load_dataset(real_data / "bccd", name) for name in ("train", "val", "test")}
    assert [len(part) for part in splits.values()] == [205, 87, 72]
    assert [part.class_names for part in splits.values()] == [["Platelets", "RBC", "WBC"]] * 3
    kept = sum(len(record.boxes) for part in splits.values() for record in part.records)
    dropped = sum(part.dropped_boxes for part in splits.values())
    assert (kept + dropped, dropped) == (4888, 2)
    faults = [fault for part in splits.values() for fault in part.faults]
    assert sorted(Path(fault.file).stem for fault in faults) == [
        "BloodImage_00338",
        "BloodImage_00343",
    ]
    assert all("0 x 0 pixels" in fault.message and fault.line for fault in faults)
    image, target = splits["train"][0]
    assert image.shape == (3, 480, 640)
    assert target["size"].tolist() == [480, 640]


def test_voc100(real_data: Path) -> None:
    found = read_annotations(real_data / "voc100_metrics_db", "all")
    assert found.faults == []
    assert found.class_names == list(CLASSES)
    assert len(found.records) == 100
    assert sum(len(record.boxes) for record in found.records) == 273
    assert sum(int(record.crowd.sum()) for record in found.records) == 38
    image, _ = DetectionDataset(found)[0]
    assert image.shape[0] == 3

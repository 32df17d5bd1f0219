from __future__ import annotations

from pathlib import Path

import pytest

from paploss.data import available_splits, load_dataset, read_annotations
from paploss.data.split_names import canonical_split
from tests.data.writers import (
    coco_image,
    coco_object,
    voc_object,
    write_coco,
    write_image,
    write_voc,
    write_yolo,
)


def make_coco(root: Path) -> Path:
    for split, number in (("train2017", 1), ("val2017", 2)):
        write_image(root / split / f"{number}.png")
        path = root / "annotations" / f"instances_{split}.json"
        write_coco(path, [coco_image(number)], [coco_object(1, number, 3)])
    (root / "annotations" / "captions_train2017.json").write_text("{}")
    return root


def make_roboflow(root: Path) -> Path:
    for split in ("train", "valid"):
        write_image(root / split / "1.png")
        path = root / split / "_annotations.coco.json"
        write_coco(path, [coco_image(1)], [coco_object(1, 1, 3)])
    return root


def make_voc(root: Path) -> Path:
    for split in ("train", "val"):
        write_voc(root, split, voc_object(), split=split)
        with (root / "ImageSets" / "Main" / "trainval.txt").open("a") as file:
            file.write(f"{split}\n")
    return root


def make_yolo(root: Path) -> Path:
    write_yolo(root, {"a": "0 0.5 0.5 0.1 0.1"}, split="val")
    write_yolo(root, {"a": "0 0.5 0.5 0.1 0.1"}, split="train")
    return root


MAKERS = [make_coco, make_roboflow, make_voc, make_yolo]


@pytest.mark.parametrize("below", ["", "archive"])
@pytest.mark.parametrize("make", MAKERS)
def test_layouts_are_recognised(tmp_path: Path, make, below: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "data" / below)
    source = tmp_path / "data"
    assert available_splits(source) == ["train", "val"]
    for split in ("train", "val", "valid", "eval", "validation"):
        dataset = load_dataset(source, split)
        assert (len(dataset), len(dataset.records[0].boxes), dataset.faults) == (1, 1, [])
        image, _ = dataset[0]
        assert image.shape == (3, 48, 64)
    assert load_dataset(str(source))[0][1]["labels"].tolist() == dataset[0][1]["labels"].tolist()
    with pytest.raises(ValueError, match=r"split: expected one of train, val.* found 'test'"):
        load_dataset(source, "test")


def test_voc_trainval(tmp_path: Path) -> None:
    assert len(load_dataset(make_voc(tmp_path), "trainval")) == 2


def test_files(tmp_path: Path) -> None:
    root = make_coco(tmp_path / "coco")
    path = root / "annotations" / "instances_val2017.json"
    assert available_splits(path) == ["val"]
    assert len(load_dataset(path, "val")) == len(load_dataset(path, "all")) == 1
    with pytest.raises(ValueError, match="split: expected one of val"):
        load_dataset(path, "train")  # what is held out is not trained on by mistake
    roboflow = make_roboflow(tmp_path / "roboflow")
    assert available_splits(roboflow / "valid" / "_annotations.coco.json") == ["val"]
    yaml = make_yolo(tmp_path / "yolo") / "data.yaml"
    assert len(load_dataset(yaml, "val")) == 1
    (tmp_path / "data.csv").write_text("")
    with pytest.raises(ValueError, match="expected a COCO json or a YOLO yaml file"):
        load_dataset(tmp_path / "data.csv")


def test_data_in_one_piece(tmp_path: Path) -> None:
    write_voc(tmp_path, "a", voc_object())
    assert available_splits(tmp_path) == ["all"]
    assert len(load_dataset(tmp_path, "all")) == len(load_dataset(tmp_path, "train")) == 1
    with pytest.raises(ValueError, match="found 'val'; cut it with DetectionDataset"):
        load_dataset(tmp_path, "val")


def test_nothing_or_too_much(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found nothing there"):
        load_dataset(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"no data set found, looked for COCO .* VOC .* YOLO"):
        load_dataset(tmp_path)
    make_coco(tmp_path / "a")
    make_yolo(tmp_path / "b")
    with pytest.raises(ValueError, match=r"expected one data set, found COCO in .* YOLO in "):
        load_dataset(tmp_path)
    make_voc(tmp_path / "a")
    with pytest.raises(ValueError, match=r"expected one data set, found COCO in .* VOC in "):
        load_dataset(tmp_path / "a")
    both = make_coco(tmp_path / "c")
    write_coco(both / "annotations" / "instances_train2014.json", [], [])
    with pytest.raises(ValueError, match=r"expected one COCO file for split 'train', found .*2014"):
        load_dataset(both)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "data.yaml").write_text("names: [a]")
    with pytest.raises(ValueError, match="expected train, val or test, found none"):
        load_dataset(tmp_path / "d")


def test_no_usable_image(tmp_path: Path) -> None:
    path = write_coco(tmp_path / "train.json", [coco_image(1)], [])
    with pytest.raises(
        ValueError, match=r"no image that can be used; first fault: .*no image files"
    ):
        load_dataset(path)
    assert len(read_annotations(path).records) == 1


def test_a_number_of_images(tmp_path: Path) -> None:
    rows: dict[str, str | None] = {str(k): None for k in range(10)}
    write_yolo(tmp_path, rows)
    chosen = [
        [record.image_id for record in load_dataset(tmp_path, images=4, seed=seed).records]
        for seed in (0, 0, 1)
    ]
    assert len(chosen[0]) == 4
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(load_dataset(tmp_path, images=99)) == 10
    with pytest.raises(ValueError, match="images: expected at least 1, found 0"):
        load_dataset(tmp_path, images=0)


def test_shapes_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPLOSS_CACHE", str(tmp_path))
    assert available_splits("shapes") == ["train", "val", "test", "pretrain"]
    dataset = load_dataset("shapes", "eval", images=3, size=64, seed=5, transform=lambda *x: x)
    assert len(dataset) == 3
    assert dataset[0][0].shape == (3, 64, 64)
    assert len(load_dataset("shapes:2", "test")) == 2
    assert len(read_annotations("shapes", "val").records) == 500
    for source in ("shapes:many", "shapes:0"):
        with pytest.raises(ValueError, match="source: expected shapes or shapes:NUMBER"):
            load_dataset(source)
    with pytest.raises(ValueError, match="split: expected one of train"):
        load_dataset("shapes", "dessert")


def test_split_aliases() -> None:
    assert {canonical_split(name) for name in ("val", "VALID", "eval", "dev")} == {"val"}

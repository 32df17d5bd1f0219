from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from paploss.data.dataset import Annotations, DetectionDataset, Fault, Record, image_faults
from tests.data.writers import write_image

NAN, INF = float("nan"), float("inf")


def one(record: Record) -> DetectionDataset:
    return DetectionDataset(Annotations(["a", "b"], [record]))


def test_degenerate_boxes_are_dropped_and_others_clipped() -> None:
    boxes = [
        (10, 10, 10, 20),
        (-5, -5, 70, 60),
        (10, 10, 5, 20),
        (NAN, 0, 5, 5),
        (0, 0, INF, 5),
        (64, 0, 80, 5),
        (-9, 0, 0, 5),
        (1, 2, 3, 4),
        (1e300, 0, 1e301, 5),
    ]
    crowd = [False] * 7 + [True, False]
    dataset = one(Record.of(1, None, (64, 48), boxes, [0] * 7 + [1, 0], crowd))
    assert dataset.dropped_boxes == 7
    np.testing.assert_array_equal(dataset.records[0].boxes, [[0, 0, 64, 48], [1, 2, 3, 4]])
    assert dataset.records[0].labels.tolist() == [0, 1]
    assert dataset.records[0].crowd.tolist() == [False, True]


def test_an_item(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png")
    image, target = one(Record.of(5, path, (64, 48), [(1, 2, 3, 4)], [1]))[0]
    assert isinstance(image, tv_tensors.Image)
    assert (image.shape, image.dtype) == ((3, 48, 64), torch.uint8)
    assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
    assert target["boxes"].canvas_size == (48, 64)
    assert target["boxes"].dtype == torch.float32
    assert target["labels"].dtype == torch.int64
    assert target["crowd"].dtype == torch.bool
    assert (target["image_id"].shape, int(target["image_id"])) == ((), 5)
    assert target["size"].tolist() == [48, 64]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "LA", "RGBA", "I", "I;16"])
def test_every_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    if mode.startswith("I"):
        Image.fromarray(np.full((48, 64), 32896, dtype=np.uint16)).save(path)
    else:
        write_image(path, mode=mode)
    image, _ = one(Record.of(1, path, (64, 48), [], []))[0]
    assert image.shape == (3, 48, 64)
    if mode.startswith("I"):
        assert image.unique().tolist() == [128]


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.new("P", (64, 48))
    image.putpalette([200, 0, 0] * 256)
    image.save(path, transparency=bytes([0, 128, 255]))
    assert one(Record.of(1, path, (64, 48), [], []))[0][0].shape == (3, 48, 64)


@pytest.mark.parametrize("annotated", [(64, 48), (48, 64)])
def test_exif_orientation_follows_the_annotation(
    tmp_path: Path, annotated: tuple[int, int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = tmp_path / "a.jpg"
    Image.new("RGB", (64, 48)).save(path, exif=exif)
    record = Record.of(1, path, annotated, [], [])
    assert one(record)[0][0].shape == (3, annotated[1], annotated[0])
    assert list(image_faults([record])) == []


def test_bad_images_are_named(tmp_path: Path) -> None:
    absent, corrupt, cut = (tmp_path / f"{name}.png" for name in ("absent", "corrupt", "cut"))
    corrupt.write_bytes(b"oops")
    write_image(cut)
    cut.write_bytes(cut.read_bytes()[:500])
    other = write_image(tmp_path / "other.png", 32, 32)
    for path, message in [
        (absent, "not a readable image"),
        (corrupt, "not a readable image"),
        (cut, "not a readable image"),
        (other, "expected 64 x 48 pixels as annotated, found 32 x 32"),
    ]:
        record = Record.of(1, path, (64, 48), [], [])
        with pytest.raises(ValueError, match=message) as error:
            one(record)[0]
        assert str(path) in str(error.value)
        if path != cut:  # its header is whole
            (fault,) = image_faults([record])
            assert fault.file == str(path)
            assert message in fault.message
            assert str(path) not in fault.message
    assert list(image_faults([Record.of(1, None, (1, 1), [], [])])) == []


def test_faults_read_like_a_compiler() -> None:
    assert str(Fault("a.xml", 3, "oops")) == "a.xml:3: oops"
    assert str(Fault("a.xml", None, "oops")) == "a.xml: oops"


def numbered(count: int) -> DetectionDataset:
    """Images whose pixels are their number; every third has a bad box."""
    records = []
    for k in range(count):
        boxes = [(0, 0, 2, 2), (1, 1, 1, 1)] if k % 3 == 0 else [(0, 0, 2, 2)]
        records.append(Record.of(k, None, (4, 4), boxes, [0] * len(boxes)))
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 3), np.uint8)
    return DetectionDataset(Annotations(["a"], records), pixels=pixels)


def test_subsets_keep_pixels_with_records() -> None:
    dataset = numbered(9)
    assert dataset.dropped_boxes == 3
    part = dataset.subset([6, 2, 4]).subset([2, 0, -2])
    items = [part[k] for k in range(3)]
    numbers = [(int(image.max()), int(target["image_id"])) for image, target in items]
    assert numbers == [(4, 4), (6, 6), (2, 2)]
    assert part.dropped_boxes == 1
    assert len(dataset) == 9
    with pytest.raises(IndexError):
        dataset.subset([9])


def test_split_is_disjoint_and_repeatable() -> None:
    dataset = numbered(20)
    ids = [[r.image_id for r in part.records] for part in dataset.split(0.7, seed=1)]
    assert [len(part) for part in ids] == [14, 6]
    assert sorted(ids[0] + ids[1]) == list(range(20))
    assert ids == [[r.image_id for r in part.records] for part in dataset.split(0.7, seed=1)]
    assert ids != [[r.image_id for r in part.records] for part in dataset.split(0.7, seed=2)]
    for fraction in (0.0, 1.0, -1.0, 0.001, NAN):
        with pytest.raises(ValueError, match="fraction: expected a number in"):
            dataset.split(fraction, seed=0)


def test_transforms_and_pickling(tmp_path: Path) -> None:
    dataset = numbered(3)
    other = dataset.with_transform(lambda image, target: (image + 1, target))
    assert int(other[2][0].max()) == 3
    assert int(dataset[2][0].max()) == 2
    # From a file, what travels to a worker is the path and not the pixels.
    path = tmp_path / "pixels.npy"
    np.save(path, np.zeros((3, 64, 64, 3), np.uint8))
    records = [Record.of(k, None, (64, 64), [], []) for k in range(3)]
    stored = DetectionDataset(Annotations(["a"], records), pixels=path)
    assert stored[1][0].shape == (3, 64, 64)
    sent = pickle.dumps(stored)
    assert len(sent) < 5000
    assert pickle.loads(sent)[2][0].shape == (3, 64, 64)

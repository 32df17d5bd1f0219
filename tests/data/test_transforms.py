from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import tv_tensors

from paploss.data import collate, shapes, training_transform
from paploss.data.dataset import Annotations, DetectionDataset, Record

COLOURS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250]], dtype=np.uint8)


def coloured() -> DetectionDataset:
    """Three squares a image; a square's colour is its class, and the blue ones are crowds."""
    rng = np.random.default_rng(0)
    pixels = np.full((40, 90, 120, 3), 127, np.uint8)
    records = []
    for image in range(40):
        boxes = []
        for label in range(3):
            x, y = 40 * label + int(rng.integers(0, 15)), int(rng.integers(0, 60))
            pixels[image, y : y + 24, x : x + 24] = COLOURS[label]
            boxes.append((x, y, x + 24, y + 24))
        crowd = [False, False, True]
        records.append(Record.of(image + 1, None, (120, 90), boxes, [0, 1, 2], crowd))
    return DetectionDataset(Annotations(["r", "g", "b"], records), pixels=pixels)


@pytest.mark.parametrize("name", ["paper", "detr", "flip", "none"])
def test_boxes_stay_on_their_objects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "paper":  # keep the colours, by which objects are known
        from torchvision.transforms import v2

        monkeypatch.setattr(v2, "RandomPhotometricDistort", v2.Identity)
    dataset = coloured().with_transform(training_transform(name, 256))
    kept = 0
    for index in range(len(dataset)):
        image, target = dataset[index]
        assert image.dtype == torch.float32
        if name == "detr":  # 0.6 to 1 of the short side, the shape kept
            assert 153 <= min(image.shape[1:]) <= 256
        else:
            assert image.shape == (3, 256, 256)
        assert 0 <= image.min() <= image.max() <= 1
        assert target["size"].tolist() == [90, 120]
        assert target["boxes"].shape[0] == len(target["labels"]) == len(target["crowd"])
        kept += len(target["labels"])
        for box, label, crowd in zip(
            target["boxes"], target["labels"], target["crowd"], strict=True
        ):
            x, y = ((box[:2] + box[2:]) / 2).int().tolist()
            assert int(image[:, y, x].argmax()) == int(label)
            assert bool(crowd) == (int(label) == 2)
    assert kept == 120 or (name in ("paper", "detr") and 60 < kept < 120)


def test_detrs_images_keep_their_shape_within_limits() -> None:
    dataset = coloured().with_transform(training_transform("detr", (100, 110)))
    sizes = {tuple(dataset[index % 40][0].shape[1:]) for index in range(200)}
    assert len(sizes) > 20
    assert all(min(size) <= 100 and max(size) <= 110 for size in sizes)


def test_the_paper_recipe_varies_and_survives_empty_images() -> None:
    dataset = coloured().with_transform(training_transform("paper", 64))
    assert not torch.equal(dataset[0][0], dataset[0][0])
    empty = DetectionDataset(
        Annotations(["a"], [Record.of(1, None, (120, 90), [], [])]),
        pixels=np.zeros((1, 90, 120, 3), np.uint8),
        transform=training_transform("paper", 64),
    )
    for _ in range(20):
        image, target = empty[0]
        assert image.shape == (3, 64, 64)
        assert target["boxes"].shape == (0, 4)
        assert target["labels"].shape == (0,)


def test_training_sizes_need_not_be_square() -> None:
    image, target = coloured().with_transform(training_transform("none", (45, 240)))[0]
    assert image.shape == (3, 45, 240)
    x1, y1, x2, y2 = target["boxes"][0].tolist()
    assert (x2 - x1, y2 - y1) == (48, 12)


def test_bad_arguments() -> None:
    with pytest.raises(
        ValueError, match="name: expected one of paper, detr, flip, none, found 'fancy'"
    ):
        training_transform("fancy", 64)
    with pytest.raises(ValueError, match="size: expected a positive number of pixels, found 0"):
        training_transform("none", 0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_batches_from_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setenv("PAPLOSS_CACHE", str(tmp_path))
    dataset = shapes("train", images=8, transform=training_transform("paper", 96))
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context=start
    )
    seen = []
    for images, targets in loader:
        assert [tuple(image.shape) for image in images] == [(3, 96, 96)] * 4
        for target in targets:
            assert not isinstance(target["boxes"], tv_tensors.TVTensor)
            assert len(target["boxes"]) == len(target["labels"])
            seen.append(int(target["image_id"]))
    assert sorted(seen) == list(range(1, 9))

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paploss.data import shapes

module = importlib.import_module("paploss.data.shapes")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAPLOSS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pixels(dataset: Any) -> np.ndarray[Any, Any]:
    return np.stack([dataset[k][0].numpy() for k in range(len(dataset))])


def test_images_and_boxes() -> None:
    dataset = shapes("train", images=200)
    assert dataset.class_names == ["circle", "ring", "square", "triangle", "star"]
    assert dataset.dropped_boxes == 0
    counts = [len(record.labels) for record in dataset.records]
    assert (min(counts), max(counts)) == (1, 6)
    labels = np.bincount(np.concatenate([record.labels for record in dataset.records]))
    assert labels.min() > 0.1 * labels.sum()
    areas = np.array([item["area"] for item in dataset.ground_truth()["annotations"]])
    assert 0.4 < (areas < 32**2).mean() < 0.8
    assert (areas > 96**2).sum() >= 5
    image, target = dataset[0]
    assert image.shape == (3, 128, 128)
    assert target["image_id"] == 1


def test_boxes_fit_what_is_drawn() -> None:
    """Repaint a shape on black: its lit pixels span its box."""
    rng = np.random.default_rng(0)
    for index in range(60):
        (item, *_) = module._layout(np.random.default_rng(index), 128)
        image = module.Image.new("RGB", (128, 128))
        module._paint(image, item.outline, item.hole, rng)
        rows, columns = np.nonzero(np.asarray(image).max(axis=2) > 30)
        drawn = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        # A sharp tip fades out within a few pixels.
        np.testing.assert_allclose(
            drawn,
            np.clip(module._bounds(item.outline), 0, 128),
            atol=3.5 if item.label > 2 else 1.6,
        )


def test_seeds_splits_and_sizes() -> None:
    first = shapes("train", images=6, seed=1)
    np.testing.assert_array_equal(pixels(first), pixels(shapes("train", images=6, seed=1)))
    longer = shapes("train", images=8, seed=1)
    np.testing.assert_array_equal(pixels(first), pixels(longer)[:6])
    seen = {image.tobytes() for image in pixels(first)}
    for split in ("val", "test", "pretrain"):
        others = {image.tobytes() for image in pixels(shapes(split, images=6, seed=1))}
        assert len(others) == 6
        assert not seen & others
        seen |= others
    assert not seen & {image.tobytes() for image in pixels(shapes("train", images=6, seed=2))}
    np.testing.assert_array_equal(pixels(shapes("eval", images=2)), pixels(shapes("val", images=2)))
    assert shapes("train", images=1, size=64)[0][0].shape == (3, 64, 64)


def test_drawn_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pixels(shapes("train", images=3))
    (file,) = cache.iterdir()  # and nothing unfinished beside it
    assert file.name.startswith("shapes-v1-train-3x128-seed0-")

    def refuse(*_: object) -> None:
        raise AssertionError("drawn again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_draw", refuse)
        np.testing.assert_array_equal(pixels(shapes("train", images=3)), expected)
        with pytest.raises(AssertionError, match="drawn again"):
            shapes("train", images=4)
    assert list(cache.iterdir()) == [file]  # what was begun is cleaned away

    for damage in (b"", b"not numpy", file.read_bytes()[:1000]):
        file.write_bytes(damage)
        np.testing.assert_array_equal(pixels(shapes("train", images=3)), expected)
    np.save(file, np.zeros((1, 2), np.uint8))
    np.testing.assert_array_equal(pixels(shapes("train", images=3)), expected)


def test_without_a_place_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pixels(shapes("train", images=2))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PAPLOSS_CACHE", str(tmp_path / "file" / "cache"))
    np.testing.assert_array_equal(pixels(shapes("train", images=2)), expected)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAPLOSS_CACHE")
    assert module.cache_folder() == Path.home() / ".cache" / "paploss"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "dessert"}, "split: expected one of train, val, test, pretrain"),
        ({"images": 0}, "images: expected at least 1, found 0"),
        ({"size": 8}, "size: expected at least 32 pixels, found 8"),
        ({"seed": -1}, "seed: expected 0 or more, found -1"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shapes(**{"split": "train", "images": 1, **changes})

"""Random detection problems, and where the real ones are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

Case = tuple[dict[str, Any], list[dict[str, Any]]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Ground truth and detections: several classes, crowds, empty images, ties, misses, duplicates."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images, classes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    objects = draw(st.sampled_from([4, 12, 12, 40, 40, 1, 0]))
    duplicates = draw(st.sampled_from([1, 2, 4, 4, 0]))
    strays = draw(st.sampled_from([0, 3, 20]))
    crowds = draw(st.sampled_from([0.0, 0.2, 0.2, 0.2, 0.2, 1.0]))
    jitter = draw(st.sampled_from([0.0, 0.05, 0.3]))
    levels = draw(st.sampled_from([1, 3, 1000]))  # few levels: many equal scores
    image_ids = rng.permutation(50)[:images].tolist()
    category_ids = rng.permutation(20)[:classes].tolist()

    def box() -> np.ndarray:
        size = np.exp(rng.uniform(np.log(8), np.log(160), 2))
        return np.concatenate([rng.uniform(0, 200, 2), size])

    def record(image: int, category: int, bbox: np.ndarray) -> dict[str, Any]:
        return {"image_id": image, "category_id": category, "bbox": bbox.tolist()}

    def score() -> float:
        return float(rng.integers(levels) / levels)

    annotations: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    for index in range(objects):
        bbox = box()
        where = (int(rng.choice(image_ids)), int(rng.choice(category_ids)))
        annotations.append(
            {
                **record(*where, bbox),
                "id": index + 1,
                "area": float(bbox[2] * bbox[3] * rng.uniform(0.3, 1)),
                "iscrowd": int(rng.random() < crowds),
            }
        )
        for _ in range(rng.integers(duplicates + 1)):
            moved = bbox + jitter * rng.normal(size=4) * np.tile(bbox[2:], 2)
            moved[2:] = np.abs(moved[2:])
            detections.append({**record(*where, moved), "score": score()})
    detections += [
        {
            **record(int(rng.choice(image_ids)), int(rng.choice(category_ids)), box()),
            "score": score(),
        }
        for _ in range(strays)
    ]
    rng.shuffle(detections)  # type: ignore[arg-type]
    ground_truth = {
        "images": [{"id": value} for value in image_ids],
        "categories": [{"id": value, "name": f"class {value}"} for value in category_ids],
        "annotations": annotations,
    }
    return ground_truth, detections


def real_data(name: str) -> Path:
    """A folder of real data, or skip the test."""
    root = os.environ.get("PAPLOSS_TEST_DATA")
    if not root:
        pytest.skip("PAPLOSS_TEST_DATA is not set: the folder above data/")
    folder = Path(root) / "data" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    return folder

"""Tiny data sets on disk, in each layout, for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]


def write_image(path: Path, width: int = 64, height: int = 48, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def coco_image(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": number, "file_name": f"{number}.png", "width": 64, "height": 48, **changes}


def coco_object(number: int, image: int, category: int, **changes: Any) -> dict[str, Any]:
    base = {"id": number, "image_id": image, "category_id": category, "bbox": [1, 2, 10, 20]}
    return {**base, "iscrowd": 0, **changes}


CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]


def write_coco(
    path: Path,
    images: list[Any],
    annotations: list[Any],
    categories: list[Any] | None = None,
    **changes: Any,
) -> Path:
    content = {
        "images": images,
        "annotations": annotations,
        "categories": CATEGORIES if categories is None else categories,
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return path


def voc_object(name: str = "cat", box: tuple[Any, ...] = (2, 3, 11, 22), difficult: int = 0) -> str:
    corners = "".join(
        f"<{key}>{value}</{key}>"
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return (
        f"<object>\n<name>{name}</name><difficult>{difficult}</difficult>"
        f"<bndbox>{corners}</bndbox><part><name>head</name></part></object>\n"
    )


def write_voc(
    root: Path,
    name: str,
    objects: str,
    *,
    size: str = "<size><width>64</width><height>48</height></size>",
    filename: str | None = None,
    image: bool = True,
    split: str | None = None,
) -> Path:
    path = root / "Annotations" / f"{name}.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    stated = f"{name}.png" if filename is None else filename
    path.write_text(
        f"<annotation>\n<filename>{stated}</filename>\n{size}\n{objects}</annotation>\n"
    )
    (root / "JPEGImages").mkdir(exist_ok=True)
    if image:
        write_image(root / "JPEGImages" / f"{name}.png")
    if split is not None:
        listing = root / "ImageSets" / "Main" / f"{split}.txt"
        listing.parent.mkdir(parents=True, exist_ok=True)
        with listing.open("a") as file:
            file.write(f"{name}\n")
    return path


def write_yolo(
    root: Path, rows: dict[str, str | None], *, split: str = "train", yaml: str | None = None
) -> Path:
    """Rows of the label file by image name; None leaves the label file out."""
    for name, text in rows.items():
        write_image(root / "images" / split / f"{name}.png")
        if text is not None:
            label = root / "labels" / split / f"{name}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text(text)
    path = root / "data.yaml"
    root.mkdir(exist_ok=True, parents=True)
    path.write_text(
        yaml or "train: images/train\nval: images/val\ntest:\nnames: {0: cat, 1: dog}\n"
    )
    return path

"""YOLO's format: a ``data.yaml``, images, and a text file of normalised boxes an image."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from paploss.data.dataset import Annotations, Fault, Record, box_fault
from paploss.data.image_files import IMAGE_SUFFIXES, DataFolder, image_size
from paploss.data.split_names import canonical_split

# Rounding and polygons at the border reach a little beyond [0, 1]; such boxes are clipped.
_TOLERANCE = 0.01


def read_yolo(data_yaml: str | Path, split: str) -> Annotations:
    """Read a split of a YOLO data set.

    Each row of a label file is ``class cx cy w h``, or a class and a polygon, of which the bounding
    box is taken; all as fractions of the image. An image without a label file has no objects.

    Args:
        data_yaml: file with ``names``, the splits, and perhaps ``path``. All of it must lie
            in the folder of this file.
        split: ``train``, ``val`` or ``test``, or an alias. Its entry is a folder of images, a text
            file that lists them, or a list of such.
    """
    path = Path(data_yaml)
    content = _load(path)
    data = DataFolder(path.parent)
    names = _names(path, content)
    label_of = {identifier: label for label, identifier in enumerate(names)}
    faults: list[Fault] = []
    entries = _entries(path, content, split)
    root = _root(path, content, data, faults)
    records: list[Record] = []
    for image in _images(path, root, entries, data, faults):
        try:
            size = image_size(image)
        except ValueError as error:
            faults.append(Fault(str(image), None, str(error).removeprefix(f"{image}: ")))
            continue
        boxes, labels = _objects(image, size, label_of, data, faults)
        records.append(Record.of(len(records) + 1, image, size, boxes, labels))
    return Annotations(list(names.values()), records, faults)


def yolo_splits(data_yaml: Path) -> dict[str, str]:
    """The file's own key of each split, by its usual name."""
    content = _load(data_yaml)
    keys = [key for key in content if isinstance(key, str) and content[key]]
    return {
        canonical_split(key): key
        for key in keys
        if canonical_split(key) in ("train", "val", "test")
    }


def _load(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"{path}:{line}: not a yaml file ({error.problem})") from None
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: not a readable yaml file ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: expected names and splits, found a {type(content).__name__} instead"
        )
    return content


def _names(path: Path, content: dict[Any, Any]) -> dict[int, str]:
    """Class names by the number that label files use."""
    names = content.get("names")
    if isinstance(names, list) and names:
        return {number: str(name) for number, name in enumerate(names)}
    if isinstance(names, dict) and names and all(type(key) is int for key in names):
        return {number: str(names[number]) for number in sorted(names)}
    raise ValueError(
        f"{path}: names: expected a list of class names or a mapping from numbers, found {names!r}"
    )


def _entries(path: Path, content: dict[Any, Any], split: str) -> list[str]:
    splits = yolo_splits(path)
    key = splits.get(canonical_split(split))
    if key is None:
        raise ValueError(
            f"{path}: split: expected one of {', '.join(splits) or 'train, val, test'}, "
            f"found {split!r}"
        )
    value = content[key]
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{path}: {key}: expected a path or a list of paths, found {value!r}")
    return entries


def _root(path: Path, content: dict[Any, Any], data: DataFolder, faults: list[Fault]) -> Path:
    """The folder that the splits' entries are relative to."""
    named = content.get("path")
    if named is None:
        return data.root
    root = data.root / str(named)
    if root.is_dir() and data.contains(root):
        return root
    # Usual in files written for one machine: then the data stands beside the file.
    message = f"path: expected a folder below {data.root}, found {named!r}; took {data.root}"
    faults.append(Fault(str(path), None, message))
    return data.root


def _images(
    path: Path, root: Path, entries: list[str], data: DataFolder, faults: list[Fault]
) -> Iterator[Path]:
    for entry in entries:
        place = root / entry
        climbing = entry
        # Roboflow writes ../train/images into a file that stands beside train/.
        while climbing.startswith("../") and not (place.exists() and data.contains(place)):
            climbing = climbing[3:]
            place = root / climbing
        if not data.contains(place):
            raise ValueError(f"{path}: {entry!r} leads out of the data folder {data.root}")
        if place.is_dir():
            yield from _images_below(place, data, faults)
        elif place.is_file():
            yield from _images_listed(place, root, data, faults)
        else:
            raise ValueError(f"{path}: expected a folder or list of images, found no {place}")


def _images_below(folder: Path, data: DataFolder, faults: list[Fault]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):  # does not enter links
        folders.sort()
        for name in sorted(files):
            if name.lower().endswith(IMAGE_SUFFIXES):
                try:
                    yield data.file(Path(parent), name)
                except ValueError as error:
                    faults.append(Fault(str(Path(parent, name)), None, str(error)))


def _images_listed(
    listing: Path, root: Path, data: DataFolder, faults: list[Fault]
) -> Iterator[Path]:
    text = listing.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        name = line.strip()
        if not name:
            continue
        try:
            try:
                yield data.file(listing.parent, name)
            except ValueError:
                yield data.file(root, name)
        except ValueError as error:
            faults.append(Fault(str(listing), number, str(error)))


def _objects(
    image: Path,
    size: tuple[int, int],
    label_of: dict[int, int],
    data: DataFolder,
    faults: list[Fault],
) -> tuple[list[list[float]], list[int]]:
    """Boxes (xyxy in pixels) and labels of an image."""
    file = _label_file(image)
    boxes: list[list[float]] = []
    labels: list[int] = []
    if not file.exists():
        return boxes, labels
    if not data.contains(file):
        faults.append(Fault(str(file), None, "skipped: a link out of the data folder"))
        return boxes, labels
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            label, box = _row(line.split(), size, label_of)
        except ValueError as error:
            faults.append(Fault(str(file), number, str(error)))
            continue
        problem = box_fault(box, *size)
        if problem is not None:  # kept: the data set counts what it drops
            faults.append(Fault(str(file), number, problem))
        boxes.append(box)
        labels.append(label)
    return boxes, labels


def _label_file(image: Path) -> Path:
    """``.../images/a.jpg`` -> ``.../labels/a.txt``; without ``images`` beside the image."""
    parts = list(image.parts)
    if "images" in parts[:-1]:
        last = max(index for index, part in enumerate(parts[:-1]) if part == "images")
        parts[last] = "labels"
    return Path(*parts).with_suffix(".txt")


def _row(
    fields: list[str], size: tuple[int, int], label_of: dict[int, int]
) -> tuple[int, list[float]]:
    """Label and box (xyxy in pixels) of a row."""
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        raise ValueError(f"expected numbers, found {' '.join(fields)[:80]!r}") from None
    if len(numbers) != 5 and (len(numbers) < 7 or len(numbers) % 2 == 0):
        raise ValueError(
            f"expected 'class cx cy w h' or a class and a polygon, found {len(numbers)} numbers"
        )
    identifier, values = numbers[0], numbers[1:]
    if not math.isfinite(identifier) or int(identifier) != identifier or identifier not in label_of:
        raise ValueError(
            f"expected a class from {min(label_of)} to {max(label_of)}, found {fields[0]}"
        )
    if not all(-_TOLERANCE <= value <= 1 + _TOLERANCE for value in values):
        raise ValueError(
            f"expected fractions of the image in [0, 1], found {' '.join(fields[1:])[:80]}"
        )
    if len(values) == 4:
        cx, cy, w, h = values
        corners = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
    else:
        x, y = values[0::2], values[1::2]
        corners = [min(x), min(y), max(x), max(y)]
    width, height = size
    return label_of[int(identifier)], [
        corner * scale
        for corner, scale in zip(corners, (width, height, width, height), strict=True)
    ]

"""COCO's json format."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

from paploss.data.dataset import Annotations, Fault, Record, box_fault
from paploss.data.image_files import DataFolder, image_size

_SPLIT_WITH_YEAR = re.compile(r"(?:train|val|valid|test|eval)[a-z]*\d*", re.IGNORECASE)


def read_coco(json_path: str | Path, image_root: str | Path | None = None) -> Annotations:
    """Read a COCO detection file.

    Args:
        json_path: a json object with ``images``, ``annotations`` and ``categories``.
        image_root: the folder file names are relative to. Without it the usual places are
            tried: ``train2017/`` beside ``annotations/instances_train2017.json``, ``images/``, the
            json's own folder (as Roboflow exports it). If none holds the images, the records have
            none and serve for evaluation only.

    Returns:
        Labels number the categories by rising id. What could not be used is in ``faults``.
    """
    path = Path(json_path)
    return _Reader(path, None if image_root is None else Path(image_root)).read()


class _Reader:
    def __init__(self, path: Path, image_root: Path | None) -> None:
        self.path = path
        self.text, self.content = _load(path)
        self.faults: list[Fault] = []
        self.lines: dict[str, _Lines] = {}
        self.image_root = image_root
        base = path.parent.parent if path.parent.name.lower() == "annotations" else path.parent
        self.data = DataFolder(image_root if image_root is not None else base)

    def read(self) -> Annotations:
        categories = self._categories()
        sizes = self._images()
        label_of = {category: label for label, category in enumerate(categories)}
        objects: dict[int, list[tuple[list[float], int, bool, float]]] = {}
        for number, annotation in enumerate(self.content["annotations"]):
            try:
                image_id, entry = _object(annotation, label_of, sizes)
            except ValueError as error:
                self._fault("annotations", number, annotation, str(error))
                continue
            problem = box_fault(entry[0], *sizes[image_id][1])
            if problem is not None:  # kept: the data set counts what it drops
                self._fault("annotations", number, annotation, problem)
            objects.setdefault(image_id, []).append(entry)
        records = []
        for image_id, (image, size) in sizes.items():
            found = objects.get(image_id, [])
            boxes, labels, crowd, areas = zip(*found, strict=True) if found else ((), (), (), ())
            records.append(Record.of(image_id, image, size, boxes, labels, crowd, areas))
        return Annotations(list(categories.values()), records, self.faults, list(categories))

    def _categories(self) -> dict[int, str]:
        """Names by id, in the order of the ids, whatever gaps these have."""
        names: dict[int, str] = {}
        for number, category in enumerate(self.content["categories"]):
            identifier = _field(category, "id")
            if not _is_int(identifier) or identifier in names:
                found = f"found {identifier!r}"
                self._fault("categories", number, category, f"id: expected a new integer, {found}")
                continue
            names[identifier] = str(_field(category, "name") or f"category {identifier}")
        if not names:
            raise ValueError(f"{self.path}: categories: expected at least one, found none")
        return dict(sorted(names.items()))

    def _images(self) -> dict[int, tuple[Path | None, tuple[int, int]]]:
        """File and (width, height) of each usable image, by its id."""
        folder = self._image_folder()
        found: dict[int, tuple[Path | None, tuple[int, int]]] = {}
        for number, image in enumerate(self.content["images"]):
            try:
                identifier = _field(image, "id")
                if not _is_int(identifier) or identifier in found:
                    raise ValueError(f"id: expected a new integer, found {identifier!r}")
                file = self.data.file(folder, _field(image, "file_name")) if folder else None
                found[identifier] = (file, _size(image, file))
            except ValueError as error:
                self._fault("images", number, image, f"image skipped: {error}")
        return found

    def _image_folder(self) -> Path | None:
        if self.image_root is not None:
            if not self.image_root.is_dir():
                raise ValueError(f"image_root: expected a folder, found {self.image_root}")
            return self.image_root
        base, beside = self.data.root, self.path.parent
        token = _SPLIT_WITH_YEAR.search(self.path.stem)
        name = token.group().lower() if token else "."
        candidates = [base / name, base / "images" / name, beside, base / "images", base]
        # One image that is there tells the folder; a few are tried, as some may be missing.
        samples = [_field(image, "file_name") for image in self.content["images"][:50]]
        for folder in candidates:
            for sample in samples:
                try:
                    self.data.file(folder, sample)
                except ValueError:
                    continue
                return folder
        if samples:
            places = ", ".join(dict.fromkeys(str(folder) for folder in candidates))
            self.faults.append(
                Fault(
                    str(self.path),
                    None,
                    f"no image files found, tried {places} (links out of {base} are not followed)",
                )
            )
        return None

    def _fault(self, section: str, number: int, entry: object, message: str) -> None:
        if section not in self.lines:
            self.lines[section] = _Lines(self.text, section)
        identifier = _field(entry, "id")
        line = self.lines[section].of(identifier) if _is_int(identifier) else None
        named = f"id {identifier}" if _is_int(identifier) else f"number {number}"
        self.faults.append(Fault(str(self.path), line, f"{section} {named}: {message}"))


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a readable json file ({error})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not a json file ({error.msg})") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path}: expected a json object with images, annotations and categories, "
            f"found a {type(content).__name__}"
        )
    for section in ("images", "annotations", "categories"):
        if not isinstance(content.get(section), list):
            found = type(content[section]).__name__ if section in content else "nothing"
            raise ValueError(f"{path}: {section}: expected a list, found {found}")
    return text, content


def _object(
    annotation: object,
    label_of: dict[int, int],
    sizes: dict[int, tuple[Path | None, tuple[int, int]]],
) -> tuple[int, tuple[list[float], int, bool, float]]:
    """Image id and (box, label, crowd, area) of an annotation."""
    image_id, category = _field(annotation, "image_id"), _field(annotation, "category_id")
    if not _is_int(image_id) or image_id not in sizes:
        raise ValueError(f"image_id: expected the id of a usable image, found {image_id!r}")
    if not _is_int(category) or category not in label_of:
        raise ValueError(f"category_id: expected the id of a category, found {category!r}")
    bbox = _field(annotation, "bbox")
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        raise ValueError(f"bbox: expected [x, y, width, height], found {bbox!r}")
    x, y, width, height = map(float, bbox)
    area = _field(annotation, "area")
    usable = _is_number(area) and math.isfinite(area) and area > 0
    box = [x, y, x + width, y + height]
    entry = (
        box,
        label_of[category],
        bool(_field(annotation, "iscrowd")),
        float(area) if usable else width * height,
    )
    return image_id, entry


def _size(image: object, file: Path | None) -> tuple[int, int]:
    width, height = _field(image, "width"), _field(image, "height")
    if _is_int(width) and _is_int(height) and width > 0 and height > 0:
        return width, height
    if file is not None:
        return image_size(file)
    raise ValueError(f"width, height: expected positive integers, found {width!r}, {height!r}")


def _field(entry: object, name: str) -> Any:
    return entry.get(name) if isinstance(entry, dict) else None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    # An integer that no float holds would overflow later.
    return isinstance(value, float) or (_is_int(value))


class _Lines:
    """Lines on which ``"id": N`` stands in a section; the json parser keeps no positions."""

    def __init__(self, text: str, section: str) -> None:
        self.starts = [match.end() for match in re.finditer("\n", text)]
        self.position: dict[int, int] = {}
        begin = text.find(f'"{section}"')
        if self.starts and begin >= 0:  # a file of one line has nothing to tell
            for match in re.finditer(r'"id"\s*:\s*(-?\d+)', text[begin:]):
                self.position.setdefault(int(match.group(1)), begin + match.start())

    def of(self, identifier: int) -> int | None:
        position = self.position.get(identifier)
        return None if position is None else bisect_right(self.starts, position) + 1

"""PASCAL VOC's xml format."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from paploss.data.dataset import Annotations, Fault, Record, box_fault
from paploss.data.image_files import IMAGE_SUFFIXES, DataFolder, image_size

CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)

# The first of these that is there is used; the second names are those of other tools' exports.
_XML_FOLDERS = ("Annotations", "annotations", "gts/pascalvoc_format", "gts", ".")
_IMAGE_FOLDERS = ("JPEGImages", "images", "Images")


def read_voc(root: str | Path, split: str) -> Annotations:
    """Read a split of a VOC folder.

    Pixels count from 1 and the last one is inside in VOC: (xmin - 1, ymin - 1, xmax, ymax) are the
    corners here. Difficult objects become ``crowd``. The classes are those of all xml files,
    so that all splits agree: in VOC's order if VOC has them all, sorted otherwise.

    Args:
        root: folder with ``Annotations/`` and ``JPEGImages/``.
        split: name of a list in ``ImageSets/Main/``. A folder without lists is read whole.
    """
    data = DataFolder(root)
    found = find_xml_folder(data.root)
    if found is None or not data.contains(found):
        raise ValueError(f"{root}: expected xml files in one of {', '.join(_XML_FOLDERS)}")
    xml_folder = Path(os.path.realpath(found))
    image_folder = next(
        (data.root / name for name in _IMAGE_FOLDERS if (data.root / name).is_dir()), xml_folder
    )
    faults: list[Fault] = []
    trees: dict[Path, Any] = {}
    broken: dict[Path, Fault] = {}
    for path in sorted(xml_folder.glob("*.xml")):
        if not data.contains(path):
            broken[path] = Fault(str(path), None, "skipped: a link out of the data folder")
            continue
        try:
            trees[path] = _parse(path)
        except _XmlError as error:
            broken[path] = error.fault
    class_names = _class_names(trees)
    label_of = {name: label for label, name in enumerate(class_names)}
    records: list[Record] = []
    for path in _chosen(data, xml_folder, split, faults):
        if path in broken:
            faults.append(broken[path])
            continue
        try:
            image, size = _image(trees[path], path, data, image_folder, faults)
        except ValueError as error:
            faults.append(Fault(str(path), None, f"image skipped: {error}"))
            continue
        objects = _objects(trees[path], path, size, label_of, faults)
        boxes, labels, crowd = zip(*objects, strict=True) if objects else ((), (), ())
        records.append(Record.of(len(records) + 1, image, size, boxes, labels, crowd))
    return Annotations(class_names, records, faults)


def find_xml_folder(root: Path) -> Path | None:
    """Where a VOC data set keeps its xml files, or None if it is not one."""
    for name in _XML_FOLDERS:
        if next((root / name).glob("*.xml"), None) is not None:
            return root / name
    return None


def voc_splits(root: Path) -> list[str]:
    """Names of the lists in ``ImageSets/Main``, without those of single classes."""
    names = sorted(path.stem for path in (root / "ImageSets" / "Main").glob("*.txt"))
    return [name for name in names if name.rpartition("_")[0] not in CLASSES]


class _XmlError(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _parse(path: Path) -> Any:
    try:
        return fromstring(path.read_bytes())
    except ParseError as error:
        line = error.position[0]
        raise _XmlError(Fault(str(path), line, f"malformed xml: {error}")) from None
    except (OSError, ValueError, LookupError, RecursionError, DefusedXmlException) as error:
        # LookupError: an encoding nobody knows; DefusedXmlException: entities that could explode
        raise _XmlError(Fault(str(path), None, f"unreadable xml: {error}")) from None


def _class_names(trees: dict[Path, Any]) -> list[str]:
    found = {
        name for tree in trees.values() for item in tree.iter("object") if (name := _name(item))
    }
    return list(CLASSES) if found and found <= set(CLASSES) else sorted(found)


def _name(item: Any) -> str:
    return (item.findtext("name") or "").strip()


def _chosen(data: DataFolder, xml_folder: Path, split: str, faults: list[Fault]) -> list[Path]:
    """The xml files of a split."""
    if not voc_splits(data.root):
        return sorted(xml_folder.glob("*.xml"))
    folder = data.root / "ImageSets" / "Main"
    if split not in voc_splits(data.root):
        found = ", ".join(voc_splits(data.root))
        raise ValueError(f"split: expected one of {found} in {folder}, found {split!r}")
    listing = data.file(folder, f"{split}.txt")
    chosen = []
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            xml = data.file(xml_folder, f"{line.split()[0]}.xml")
            if xml.parent != xml_folder:
                raise ValueError(
                    f"expected the name of an xml file in {xml_folder}, found {line!r}"
                )
            chosen.append(xml)
        except ValueError as error:
            faults.append(Fault(str(listing), number, str(error)))
    return chosen


def _image(
    tree: Any, path: Path, data: DataFolder, folder: Path, faults: list[Fault]
) -> tuple[Path, tuple[int, int]]:
    """Image file and (width, height)."""
    name = (tree.findtext("filename") or "").strip()
    names = [name] if name else []
    # Tools often write the name without its suffix, or of the file before it was renamed.
    names += [f"{path.stem}{suffix}" for suffix in IMAGE_SUFFIXES]
    names += [f"{path.stem}{suffix.upper()}" for suffix in IMAGE_SUFFIXES]
    image = None
    for candidate in names:
        try:
            image = data.file(folder, candidate)
        except ValueError as error:
            if "not found" not in str(error):
                raise
            continue
        break
    if image is None:
        raise ValueError(f"no image file {names[0]!r} in {folder}")
    width, height = (_number(tree.findtext(f"size/{side}")) for side in ("width", "height"))
    if width >= 1 and height >= 1 and math.isfinite(width + height):
        return image, (int(width), int(height))
    size = image_size(image)
    message = f"size: expected width and height, found none; the image has {size[0]} x {size[1]}"
    faults.append(Fault(str(path), None, message))
    return image, size


def _objects(
    tree: Any, path: Path, size: tuple[int, int], label_of: dict[str, int], faults: list[Fault]
) -> list[tuple[list[float], int, bool]]:
    """(box, label, difficult) of each object that can be read."""
    objects = []
    for number, item in enumerate(tree.iter("object")):
        texts = [item.findtext(f"bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax")]
        name = _name(item)
        problem = None
        if not name:
            problem = "object without a name"
        elif None in texts:
            problem = f"{name}: expected bndbox with xmin, ymin, xmax, ymax, found {texts}"
        elif any(math.isnan(_number(text)) for text in texts):
            problem = f"{name}: expected numbers in bndbox, found {texts}"
        if problem is None:
            x1, y1, x2, y2 = map(_number, texts)
            # Equal corners would be one pixel in VOC's counting, but are slips of the mouse.
            inclusive = 1 if x2 > x1 and y2 > y1 else 0
            box = [x1 - 1, y1 - 1, x2 - 1 + inclusive, y2 - 1 + inclusive]
            objects.append((box, label_of[name], _number(item.findtext("difficult")) == 1))
            problem = box_fault(box, *size)
            problem = problem and f"{name}: {problem}"
        if problem is not None:
            faults.append(Fault(str(path), _line_of_object(path, number), problem))
    return objects


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _line_of_object(path: Path, number: int) -> int | None:
    """Line of the n-th object; the parser keeps no positions, so look for its tag."""
    text = path.read_bytes()
    tags = list(re.finditer(rb"<object[\s>]", text))
    return text.count(b"\n", 0, tags[number].start()) + 1 if number < len(tags) else None

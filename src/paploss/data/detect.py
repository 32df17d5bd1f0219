"""Find out what a data set is from its name or folder, and load it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from paploss.data.coco import read_coco
from paploss.data.dataset import Annotations, DetectionDataset, Transform
from paploss.data.shapes import SPLITS as SHAPES_SPLITS
from paploss.data.shapes import shapes, shapes_annotations
from paploss.data.split_names import canonical_split, in_order, split_in
from paploss.data.voc import find_xml_folder, read_voc, voc_splits
from paploss.data.yolo import read_yolo, yolo_splits

Readers = dict[str, Callable[[], Annotations]]  # by split

SHAPES_IMAGES = {"train": 2000, "val": 500, "test": 500, "pretrain": 2000}

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml")
# Files of COCO that stand beside the detection ones and hold other things.
_NOT_DETECTION = ("captions_", "person_keypoints_", "panoptic_", "stuff_", "image_info_")
_LOOKED_FOR = (
    "COCO (annotations/*.json, <split>/_annotations.coco.json), "
    "PASCAL VOC (Annotations/*.xml with JPEGImages/), YOLO (data.yaml)"
)


def load_dataset(
    source: str | Path,
    split: str = "train",
    *,
    images: int | None = None,
    size: int | None = None,
    seed: int = 0,
    transform: Transform | None = None,
) -> DetectionDataset:
    """Load a split of ``shapes``, or of a data set on disk whose layout is found out.

    Args:
        source: ``shapes`` (``shapes:800`` for 800 images), a COCO json file, a YOLO yaml file, or a
            folder in the layout of COCO, PASCAL VOC or YOLO.
        split: ``train``, ``val`` (``valid``, ``validation``, ``eval``) or ``test``, or another name
            the data set has. Data that come in one piece are ``all``, to be had as ``train`` too.
        images: at most this many, chosen by the seed; for ``shapes`` how many to draw.
        size: side of the images of ``shapes``; images on disk keep theirs, transforms resize them.
        seed: of ``shapes`` and of the choice of images.
        transform: called with image and target.

    Raises:
        ValueError: nothing that can be read is there, or more than one data set is.
    """
    if images is not None and images < 1:
        raise ValueError(f"images: expected at least 1, found {images}")
    if _is_shapes(source):
        count = images or _shapes_count(source, split)
        return shapes(split, images=count, size=size or 128, seed=seed, transform=transform)
    annotations = read_annotations(source, split)
    if not any(record.image is not None for record in annotations.records):
        first = f"; first fault: {annotations.faults[0]}" if annotations.faults else ""
        raise ValueError(f"{source}: split {split!r} has no image that can be used{first}")
    dataset = DetectionDataset(annotations, transform=transform)
    if images is not None and images < len(dataset):
        chosen = np.random.default_rng(seed).permutation(len(dataset))[:images]
        return dataset.subset(sorted(chosen.tolist()))
    return dataset


def read_annotations(source: str | Path, split: str = "train") -> Annotations:
    """The annotations of a split with all their faults; no image is opened that need not be."""
    if _is_shapes(source):
        return shapes_annotations(split, images=_shapes_count(source, split))
    path = Path(source)
    readers = _recognise(path)
    wanted = canonical_split(split)
    if wanted == "all" and len(readers) == 1:
        wanted = next(iter(readers))
    if wanted == "train" and list(readers) == ["all"]:
        wanted = "all"
    if wanted not in readers:
        hint = "; cut it with DetectionDataset.split" if list(readers) == ["all"] else ""
        raise ValueError(
            f"split: expected one of {', '.join(in_order(list(readers)))} in {path}, "
            f"found {split!r}{hint}"
        )
    return readers[wanted]()


def available_splits(source: str | Path) -> list[str]:
    """The splits of a data set, ``["all"]`` if it comes in one piece."""
    if _is_shapes(source):
        return list(SHAPES_SPLITS)
    splits = set(_recognise(Path(source)))
    # VOC's union of two splits that are listed themselves would count everything twice.
    return in_order(list(splits - {"trainval"} if {"train", "val"} <= splits else splits))


def _is_shapes(source: str | Path) -> bool:
    return isinstance(source, str) and source.partition(":")[0] == "shapes"


def _shapes_count(source: str | Path, split: str) -> int:
    count = str(source).partition(":")[2]
    if not count:
        return SHAPES_IMAGES.get(canonical_split(split), 1)
    if not count.isdecimal() or int(count) < 1:
        raise ValueError(f"source: expected shapes or shapes:NUMBER, found {str(source)!r}")
    return int(count)


# -------------------------------------------------------------------- layouts


def _recognise(path: Path) -> Readers:
    """How to read each split of what is at a path."""
    if path.is_file():
        return _recognise_file(path)
    if not path.is_dir():
        raise ValueError(f"{path}: expected shapes, a file or a folder, found nothing there")
    found = _layouts(path)
    if not found:  # archives often unpack into a folder of their own
        below = sorted(item for item in path.iterdir() if item.is_dir() and not item.is_symlink())
        found = [layout for item in below for layout in _layouts(item)]
    if not found:
        raise ValueError(f"{path}: no data set found, looked for {_LOOKED_FOR}")
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise ValueError(f"{path}: expected one data set, found {names}; give the path of one")
    return found[0][1]


def _recognise_file(path: Path) -> Readers:
    suffix = path.suffix.lower()
    if suffix == ".json":
        if path.name == "_annotations.coco.json":  # the folder tells the split
            return {split_in(path.parent.name): partial(read_coco, path)}
        return {split_in(path.stem): partial(read_coco, path)}
    if suffix in (".yaml", ".yml"):
        return _yolo(path)
    raise ValueError(
        f"{path}: expected a COCO json or a YOLO yaml file, found {suffix or 'none'!r}"
    )


def _layouts(folder: Path) -> list[tuple[str, Readers]]:
    """Every data set that stands in a folder, with a name for messages."""
    found: list[tuple[str, Readers]] = []
    coco = _coco(folder)
    if coco:
        found.append((f"COCO in {folder}", coco))
    yaml_file = next((folder / name for name in _YAML_NAMES if (folder / name).is_file()), None)
    if yaml_file is not None:
        found.append((f"YOLO in {yaml_file}", _yolo(yaml_file)))
    xml_folder = find_xml_folder(folder)
    if xml_folder is not None:
        names = {canonical_split(name): name for name in voc_splits(folder)} or {"all": "all"}
        readers: Readers = {key: partial(read_voc, folder, name) for key, name in names.items()}
        found.append((f"PASCAL VOC in {folder}", readers))
    return found


def _yolo(path: Path) -> Readers:
    splits = yolo_splits(path)
    if not splits:
        raise ValueError(f"{path}: expected train, val or test, found none of them")
    return {name: partial(read_yolo, path, key) for name, key in splits.items()}


def _coco(folder: Path) -> Readers:
    files = [
        path
        for path in sorted((folder / "annotations").glob("*.json"))
        if not path.name.startswith(_NOT_DETECTION)
    ]
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(split_in(path.stem), []).append(path)
    for path in sorted(folder.glob("*/_annotations.coco.json")):
        by_split.setdefault(canonical_split(path.parent.name), []).append(path)
    if (folder / "_annotations.coco.json").is_file():
        by_split.setdefault("all", []).append(folder / "_annotations.coco.json")
    for split, paths in by_split.items():
        if len(paths) > 1:
            names = ", ".join(str(path) for path in paths)
            raise ValueError(
                f"{folder}: expected one COCO file for split {split!r}, found {names}; give one"
            )
    return {split: partial(read_coco, paths[0]) for split, paths in by_split.items()}

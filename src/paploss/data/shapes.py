"""``shapes``: a data set that is drawn, not downloaded; the same for everybody with the same seed."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageDraw, ImageFilter

from paploss.data.dataset import Annotations, DetectionDataset, Record, Transform
from paploss.data.split_names import canonical_split

CLASSES = ("circle", "ring", "square", "triangle", "star")
# Splits draw from disjoint streams of random numbers, so no image is in two of them.
SPLITS = {"train": 1, "val": 2, "test": 3, "pretrain": 4}

_VERSION = 1  # of the drawings: raise it when an image changes, so that old caches are not used
_OVERSAMPLING = 3

Rng = np.random.Generator
Points = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]


class _Shape(NamedTuple):
    label: int
    box: Box
    outline: Points  # (k, 2) xy in pixels
    hole: Points | None  # (k, 2)


def shapes(
    split: str,
    *,
    images: int,
    size: int = 128,
    seed: int = 0,
    transform: Transform | None = None,
) -> DetectionDataset:
    """Images of 1 to 6 turned, overlapping shapes among clutter, on uneven noisy backgrounds.

    Two thirds of the objects are small, a few fill the image; with the default size they spread
    over all of COCO's area ranges. Drawn once into a file in ``$PAPLOSS_CACHE`` (default
    ``~/.cache/paploss``) that later runs and worker processes map into memory.

    Args:
        split: ``train``, ``val`` (or ``eval``), ``test`` or ``pretrain``; never the same images.
        images: how many; the first n images are the same for every number above n.
        size: side of the square images in pixels.
        seed: another seed, other images.
        transform: as for `DetectionDataset`.
    """
    layouts = _layouts(split, images, size, seed)
    annotations = _annotations(layouts, size)
    layout = hashlib.sha256()
    for record in annotations.records:
        layout.update(record.boxes.tobytes() + record.labels.tobytes())
    # Drawing libraries may change what they draw; the layout may change with numpy's streams.
    layout.update(f"{np.__version__} {PIL.__version__}".encode())
    name = f"shapes-v{_VERSION}-{canonical_split(split)}-{images}x{size}-seed{seed}"
    path = cache_folder() / f"{name}-{layout.hexdigest()[:12]}.npy"
    shape = (images, size, size, 3)
    if not _is_drawn(path, shape) and not _draw_to_file(path, shape, layouts, split, seed):
        pixels = np.empty(shape, dtype=np.uint8)
        _draw_all(pixels, layouts, split, seed)
        return DetectionDataset(annotations, transform=transform, pixels=pixels)
    return DetectionDataset(annotations, transform=transform, pixels=path)


def shapes_annotations(split: str, *, images: int, size: int = 128, seed: int = 0) -> Annotations:
    """What is in the images of `shapes`, without drawing them."""
    return _annotations(_layouts(split, images, size, seed), size)


def cache_folder() -> Path:
    """``$PAPLOSS_CACHE``, or ``~/.cache/paploss``."""
    named = os.environ.get("PAPLOSS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "paploss"


# -------------------------------------------------------------------- caching


def _is_drawn(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        stored = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # absent, or not what was written
        return False
    return bool(stored.shape == shape and stored.dtype == np.uint8)


def _draw_to_file(
    path: Path, shape: tuple[int, ...], layouts: list[list[_Shape]], split: str, seed: int
) -> bool:
    """Draw into a file that appears only when it is complete; False if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        os.close(handle)
    except OSError:
        return False
    try:
        pixels = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=shape)
        _draw_all(pixels, layouts, split, seed)
        pixels.flush()
        os.replace(unfinished, path)
    except OSError:
        return False
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return True


def _draw_all(
    pixels: npt.NDArray[np.uint8], layouts: list[list[_Shape]], split: str, seed: int
) -> None:
    for index, layout in enumerate(layouts):
        pixels[index] = _draw(layout, _stream(split, seed, index, "paint"), pixels.shape[1])


def _stream(split: str, seed: int, index: int, purpose: str) -> Rng:
    key = [seed, SPLITS[canonical_split(split)], index, 0 if purpose == "layout" else 1]
    return np.random.default_rng(np.random.SeedSequence(key))


# -------------------------------------------------------------------- what is where


def _layouts(split: str, images: int, size: int, seed: int) -> list[list[_Shape]]:
    if canonical_split(split) not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, found {split!r}")
    if images < 1:
        raise ValueError(f"images: expected at least 1, found {images}")
    if size < 32:
        raise ValueError(f"size: expected at least 32 pixels, found {size}")
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more, found {seed}")
    return [_layout(_stream(split, seed, index, "layout"), size) for index in range(images)]


def _annotations(layouts: list[list[_Shape]], size: int) -> Annotations:
    records = []
    for number, layout in enumerate(layouts, start=1):
        boxes = [item.box for item in layout]
        labels = [item.label for item in layout]
        records.append(Record.of(number, None, (size, size), boxes, labels))
    return Annotations(list(CLASSES), records)


def _layout(rng: Rng, size: int) -> list[_Shape]:
    """The shapes of an image, largest first: the order in which they are drawn."""
    wanted = int(rng.integers(1, 7))
    placed: list[_Shape] = []
    for _ in range(12 * wanted):
        item = _shape(rng, size)
        if _fits(item, placed, size):
            placed.append(item)
            if len(placed) == wanted:
                break
    if not placed:  # very unlikely, but an image has at least one
        middle = _turned(_polygon(4), 0.3, 1.0, size / 3) + size / 2
        placed = [_Shape(CLASSES.index("square"), _bounds(middle), middle, None)]
    return sorted(placed, key=lambda item: -_area(item.box))


def _shape(rng: Rng, size: int) -> _Shape:
    label = int(rng.integers(len(CLASSES)))
    kind = CLASSES[label]
    # Most are small, some fill the image: 10-31, 31-90 and 97-125 of 128 pixels.
    share = rng.random()
    low, high = (0.075, 0.24) if share < 0.56 else (0.24, 0.70) if share < 0.92 else (0.76, 0.98)
    side = size * math.exp(rng.uniform(math.log(low), math.log(high)))
    angle, aspect = rng.uniform(0, 2 * math.pi), rng.uniform(0.86, 1.16)
    corners = {"square": 4, "triangle": 3}.get(kind, 40)
    unit = _star(rng.uniform(0.36, 0.52)) if kind == "star" else _polygon(corners)
    outline = _turned(unit, angle, aspect, side)
    _, _, half_width, half_height = _bounds(outline)  # the outline lies around (0, 0)
    # Most lie inside, some are cut by the border.
    margin = 1.0 if rng.random() < 0.8 else 0.3
    x = _between(rng, margin * half_width, size - margin * half_width)
    y = _between(rng, margin * half_height, size - margin * half_height)
    box = (x - half_width, y - half_height, x + half_width, y + half_height)
    centre = np.array([x, y])
    hole = outline * rng.uniform(0.45, 0.7) + centre if kind == "ring" else None
    return _Shape(label, box, outline + centre, hole)


def _between(rng: Rng, low: float, high: float) -> float:
    return float(rng.uniform(min(low, high), max(low, high)))


def _fits(item: _Shape, placed: list[_Shape], size: int) -> bool:
    """Mostly inside the image, and neither hiding nor doubling another shape."""
    box = item.box
    if _area(_intersection(box, (0, 0, size, size))) < 0.55 * _area(box):
        return False
    for other in placed:
        small, large = sorted((_area(box), _area(other.box)))
        shared = _area(_intersection(box, other.box))
        # A small shape on a large one is seen, as the small one is drawn later.
        if shared > (0.35 if small > 0.2 * large else 1.0) * small:
            return False
    return True


@cache
def _polygon(corners: int) -> Points:
    angles = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _star(inner: float) -> Points:
    radii = np.where(np.arange(10) % 2 == 0, 1.0, inner)
    return _polygon(10) * radii[:, None]


def _turned(unit: Points, angle: float, aspect: float, side: float) -> Points:
    """The outline stretched, turned, and scaled so that its box has ``side`` as its longer side."""
    stretched = unit * (1.0, aspect)
    cos, sin = math.cos(angle), math.sin(angle)
    turned = stretched @ np.array([[cos, sin], [-sin, cos]])
    turned -= (turned.max(axis=0) + turned.min(axis=0)) / 2
    return np.asarray(turned * (side / np.ptp(turned, axis=0).max()))


def _bounds(outline: Points) -> Box:
    (x1, y1), (x2, y2) = outline.min(axis=0).tolist(), outline.max(axis=0).tolist()
    return x1, y1, x2, y2


def _intersection(a: Box, b: Box) -> Box:
    return max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


# -------------------------------------------------------------------- drawing


def _draw(layout: list[_Shape], rng: Rng, size: int) -> npt.NDArray[np.uint8]:
    """The image, (size, size, 3)."""
    image = _background(rng, size)
    for _ in range(rng.integers(3, 9)):
        _draw_clutter(image, rng, size)
    for item in layout:
        _paint(image, item.outline, item.hole, rng)
    if rng.random() < 0.3:  # now and then something thin passes in front
        _draw_line(image, rng, size)
    blurred = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.0) * size / 128))
    noise = rng.standard_normal((size, size, 3), dtype=np.float32) * rng.uniform(3, 18)
    return np.asarray((np.asarray(blurred) + noise).clip(0, 255).astype(np.uint8))


def _background(rng: Rng, size: int) -> Image.Image:
    """A few random colours, blended smoothly."""
    cells = int(rng.integers(2, 6))
    base = rng.uniform(30, 225, 3)
    colours = base + rng.normal(0, rng.uniform(8, 38), (cells, cells, 3))
    coarse = Image.fromarray(colours.clip(0, 255).astype(np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def _draw_clutter(image: Image.Image, rng: Rng, size: int) -> None:
    """Something that is no object: a line, an arc, a long bar or ellipse, an uneven patch."""
    kind = rng.integers(5)
    if kind == 0:
        _draw_line(image, rng, size)
        return
    centre = rng.uniform(0, size, 2)
    side = size * rng.uniform(0.06, 0.35)
    angle = rng.uniform(0, 2 * math.pi)
    if kind == 1:
        start = rng.uniform(0, 360)
        bounds = (*(centre - side / 2), *(centre + side / 2))
        width = max(1, round(side * rng.uniform(0.05, 0.2)))
        ImageDraw.Draw(image).arc(
            bounds, start, start + rng.uniform(60, 230), fill=_colour(rng), width=width
        )
    elif kind == 4:
        corners = _polygon(int(rng.integers(4, 8)))
        uneven = corners * rng.uniform(0.3, 1.0, (len(corners), 1))
        _paint(image, _turned(uneven, angle, rng.uniform(0.4, 0.7), side) + centre, None, rng)
    else:
        long = _polygon(30) if kind == 2 else _polygon(4) @ np.array([[1, 1], [-1, 1]])
        _paint(image, _turned(long, angle, rng.uniform(0.2, 0.5), side) + centre, None, rng)


def _draw_line(image: Image.Image, rng: Rng, size: int) -> None:
    ends = rng.uniform(-0.1 * size, 1.1 * size, 4).tolist()
    width = max(1, round(rng.uniform(0.5, 2.6) * size / 128))
    ImageDraw.Draw(image).line(ends, fill=_colour(rng), width=width)


def _paint(image: Image.Image, outline: Points, hole: Points | None, rng: Rng) -> None:
    """Fill an outline with smooth edges, in one colour or in two that blend."""
    x1, y1, x2, y2 = _bounds(outline)
    left, top = math.floor(x1) - 1, math.floor(y1) - 1
    width, height = math.ceil(x2) + 1 - left, math.ceil(y2) + 1 - top
    mask = Image.new("L", (width * _OVERSAMPLING, height * _OVERSAMPLING), 0)
    pen = ImageDraw.Draw(mask)
    # A pixel's centre is half a pixel from its corner, where boxes are measured.
    pen.polygon(_flat(outline, left, top), fill=int(rng.uniform(190, 256)))
    if hole is not None:
        pen.polygon(_flat(hole, left, top), fill=0)
    mask = mask.reduce(_OVERSAMPLING)
    middle = (outline.min(axis=0) + outline.max(axis=0)) / 2
    x, y = (int(v) for v in middle.clip(0, image.width - 1))
    first = _colour(rng, unlike=np.array(image.getpixel((x, y)), dtype=np.float64))
    if rng.random() < 0.5:
        image.paste(first, (left, top), mask)
        return
    second = np.array(first) + rng.normal(0, 30, 3)
    ends = np.stack([first, second]).clip(0, 255).astype(np.uint8)
    ramp = Image.fromarray(ends[:, None] if rng.random() < 0.5 else ends[None])
    image.paste(ramp.resize((width, height), Image.Resampling.BILINEAR), (left, top), mask)


def _flat(points: Points, left: int, top: int) -> list[float]:
    flat: list[float] = ((points - (left, top)) * _OVERSAMPLING - 0.5).reshape(-1).tolist()
    return flat


def _colour(rng: Rng, *, unlike: Points | None = None) -> tuple[int, int, int]:
    """A random colour, if possible one that stands out from another."""
    colour = rng.integers(0, 256, 3)
    for _ in range(6):
        if unlike is None or np.abs(colour - unlike).mean() > 36:
            break
        colour = rng.integers(0, 256, 3)
    red, green, blue = colour.tolist()
    return red, green, blue

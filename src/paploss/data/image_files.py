"""Image files: found without leaving the data folder, measured and read as RGB."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")

_ORIENTATION = 0x0112  # EXIF tag
# What Pillow raises for files that are not images, are cut short, or would fill the memory.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class DataFolder:
    """The folder of a data set, out of which no name found in an annotation leads.

    Annotations come from strangers: a file name in them may be absolute, climb with ``..`` or point
    at a link. Directories are listed once, so that checking every image of a large set stays cheap.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.realpath(root))
        # by folder as written: its real path, and for each file in it whether it is a link
        self._listings: dict[str, tuple[str, dict[str, bool]]] = {}

    def contains(self, path: str | Path) -> bool:
        """Whether the path, with all links followed, lies in the data folder."""
        return Path(os.path.realpath(path)).is_relative_to(self.root)

    def file(self, folder: Path, name: object) -> Path:
        """The existing file called ``name`` in ``folder``.

        Raises:
            ValueError: the name is not one, leads out of the data folder, or there is no such file.
        """
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise ValueError(f"expected a file name, found {name!r}")
        if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
            raise ValueError(f"file name {name!r} is absolute: expected one below the data folder")
        parent, leaf = os.path.split(os.path.join(folder, name))
        real_parent, files = self._listing(parent)
        if not Path(real_parent).is_relative_to(self.root):
            raise ValueError(f"file name {name!r} leads out of the data folder {self.root}")
        if leaf not in files:
            raise ValueError(f"file {name!r} not found in {folder}")
        found = Path(real_parent, leaf)
        if files[leaf] and not self.contains(found):
            raise ValueError(f"file name {name!r} is a link out of the data folder {self.root}")
        return found

    def _listing(self, folder: str) -> tuple[str, dict[str, bool]]:
        if folder not in self._listings:
            real = os.path.realpath(folder)
            files: dict[str, bool] = {}
            # Nothing outside is even listed.
            if Path(real).is_relative_to(self.root) and os.path.isdir(real):
                with os.scandir(real) as entries:
                    files = {entry.name: entry.is_symlink() for entry in entries if entry.is_file()}
            self._listings[folder] = (real, files)
        return self._listings[folder]


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from the file's header, as seen with its EXIF orientation applied."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except _UNREADABLE as error:
        raise ValueError(f"{path}: not a readable image ({_reason(error)})") from None
    return (height, width) if turned else (width, height)


def read_image(path: Path, width: int, height: int) -> Image.Image:
    """The image as RGB, turned by its EXIF orientation if it then has the annotated size.

    Raises:
        ValueError: the file is missing or corrupt, or has another size than its annotation says.
    """
    try:
        with Image.open(path) as opened:
            opened.load()
            turned = ImageOps.exif_transpose(opened)
            image = turned if turned.size == (width, height) else opened
            rgb = _to_rgb(image)
    except _UNREADABLE as error:
        raise ValueError(f"{path}: not a readable image ({_reason(error)})") from None
    if rgb.size != (width, height):
        raise ValueError(
            f"{path}: expected {width} x {height} pixels as annotated, "
            f"found {rgb.width} x {rgb.height}"
        )
    return rgb


def _reason(error: Exception) -> str:
    """Why, without Pillow's repetition of the path."""
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"
    return getattr(error, "strerror", None) or str(error)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which convert() would clip instead of scale
        grey = np.asarray(image).astype(np.int64).clip(0, 65535) // 257
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")

"""Reading what a run left behind; what is missing or broken becomes a note, never an error."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

Content = TypeVar("Content")


class Notes:
    """What a reader of the page should know about the files behind it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: Path, what: str) -> None:
        line = f"{path}: {what}"
        if line not in self.lines:
            self.lines.append(line)

    def guard(self, what: str, make: Callable[[], list[Content]]) -> list[Content]:
        """What ``make`` gives; nothing and a note if the files it needs are stranger than expected."""
        try:
            return make()
        except Exception as error:
            self.lines.append(f"{what}: left out ({type(error).__name__}: {error})")
            return []

    def attempt(
        self, path: Path, read: Callable[[Path], Content], *, missing: str | None = None
    ) -> Content | None:
        """What ``read`` makes of a file, or None and a note.

        Args:
            path: of the file.
            read: may raise any error: files of strangers are broken in every way.
            missing: what to say if the file is not there; None says nothing.
        """
        if not path.exists():
            if missing is not None:
                self.add(path, missing)
            return None
        try:
            return read(path)
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            self.add(path, f"cannot be read, left out ({message or type(error).__name__})")
            return None


def read_settings(path: Path) -> dict[str, Any]:
    """A configuration as it was written: sections of plain values."""
    return mapping(yaml.safe_load(path.read_text(encoding="utf-8")))


def read_json(path: Path) -> dict[str, Any]:
    return mapping(json.loads(path.read_text(encoding="utf-8")))


def mapping(content: Any) -> dict[str, Any]:
    """The content itself, if it has sections."""
    if not isinstance(content, dict):
        raise ValueError(f"expected named sections, found {type(content).__name__}")
    return content


def setting(settings: dict[str, Any], name: str, default: Any = None) -> Any:
    """A value by its dotted name, wherever sections are missing.

    Example:
        >>> setting({"data": {"path": "shapes"}}, "data.path"), setting({"data": None}, "data.path")
        ('shapes', None)
    """
    value: Any = settings
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def flat(settings: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{where}.{key}" if where else str(key)
        found |= flat(value, name) if isinstance(value, dict) and value else {name: value}
    return found


def numbers(content: Any) -> dict[str, Any]:
    """Sections, numbers and lists of numbers; anything else that strangers may write is left out.

    Example:
        >>> numbers({"metrics": {"AP": 0.5, "AP50": "high"}, "per_class": None})
        {'metrics': {'AP': 0.5}}
    """
    kept: dict[str, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            kept[str(key)] = numbers(value)
        elif all(_is_number(item) for item in (value if isinstance(value, list) else [value])):
            kept[str(key)] = value
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Rows of ``metrics.csv``; cells that are empty or no numbers are left out."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [
            {key: number for key, cell in row.items() if (number := _number(cell)) is not None}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if "step" in row]


def _number(cell: Any) -> float | None:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None

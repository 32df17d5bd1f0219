"""The run directory: what a training run writes, and how it is found again after a stop."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from paploss.training.config import Section

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "gradient_norm", "class_gradient", "box_gradient",
    "images_per_second", "seconds", "AP", "AP50", "AP75", "APs", "APm", "APl",
)  # fmt: skip
DETECTIONS_AN_IMAGE = 100  # as many as COCO's AP looks at


def never(setting: str, there: Any, now: Any) -> bool:
    """No setting of a run may change."""
    return False


class RunDirectory:
    """``config.yaml``, ``metrics.csv``, ``evaluation.json``, ``detections.json``, ``checkpoints/``
    and ``tensorboard/``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.last = self.path / "checkpoints/last.pt"
        self.best = self.path / "checkpoints/best.pt"
        self.evaluation = self.path / "evaluation.json"
        self._metrics = self.path / "metrics.csv"

    def open(self, config: Section, may_change: Callable[[str, Any, Any], bool] = never) -> None:
        """Start a run here, or go on with the one that is here if its configuration is the same.

        Args:
            config: of the run.
            may_change: of a setting's name, its value there and its value now: whether it may differ.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "config.yaml"
        if file.exists():
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
            changes = _differences(before or {}, config.model_dump(mode="json"))
            refused = [
                f"{setting}: {there!r} there, {now!r} now"
                for setting, there, now in changes
                if not may_change(setting, there, now)
            ]
            if refused:
                raise ValueError(
                    f"{self.path} holds a run with another configuration ({'; '.join(refused)}): "
                    "choose another --run, or delete it"
                )
            if not changes:
                return
        write_whole(file, config.to_yaml())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the run directory; a process that dies lets go of it."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise ValueError(f"{self.path}: another process is working on this run") from None

    def epochs_done(self) -> float:
        """How far a run has come, as its last row of metrics tells."""
        if not self._metrics.exists():
            return 0.0
        with open(self._metrics, newline="", encoding="utf-8") as file:
            epochs = [row["epoch"] for row in csv.DictReader(file) if None not in row.values()]
        return float(epochs[-1]) if epochs else 0.0

    def forget_after(self, step: int, *, evaluated_again: bool = False) -> None:
        """Drop metrics of steps that will be run again, and of an evaluation that will be."""
        if not self._metrics.exists():
            return
        with open(self._metrics, newline="", encoding="utf-8") as file:
            rows = [
                row
                for row in csv.DictReader(file)
                if _step(row) <= step and not (evaluated_again and _step(row) == step and row["AP"])
            ]
        lines = [",".join(COLUMNS), *(",".join(row.get(c) or "" for c in COLUMNS) for row in rows)]
        write_whole(self._metrics, "\n".join(lines) + "\n")

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to ``metrics.csv``."""
        new = not self._metrics.exists()
        with open(self._metrics, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow({key: row.get(key, "") for key in COLUMNS})

    def write_evaluation(self, content: dict[str, Any]) -> None:
        write_whole(self.evaluation, json.dumps(content, indent=1) + "\n")

    def write_detections(self, detections: list[dict[str, Any]]) -> None:
        """COCO's result format; the best of each image, a hundredth of a pixel is close enough."""
        kept: Counter[int] = Counter()
        records = []
        for found in sorted(detections, key=lambda found: -found["score"]):
            kept[found["image_id"]] += 1
            if kept[found["image_id"]] <= DETECTIONS_AN_IMAGE:
                bbox = [round(value, 2) for value in found["bbox"]]
                score = float(f"{found['score']:.9g}")  # all of float32
                records.append(found | {"bbox": bbox, "score": score})
        text = json.dumps(records, separators=(",", ":"))
        write_whole(self.path / "detections.json", text + "\n")


def _step(row: dict[str, str]) -> float:
    cut_short = None in row.values()  # by the stop
    return float("inf") if cut_short else int(row["step"])


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _differences(before: Any, now: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Settings that differ: name, value before, value now."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in sorted(before.keys() | now.keys())
            for difference in _differences(
                before.get(key), now.get(key), f"{where}.{key}" if where else key
            )
        ]
    return [] if before == now else [(where, before, now)]

"""The run directory: what a training run writes, and how it is found again after a stop."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import yaml

from paploss.training.config import TrainConfig

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "gradient_norm", "images_per_second", "seconds",
    "AP", "AP50", "AP75", "APs", "APm", "APl",
)  # fmt: skip


class RunDirectory:
    """``config.yaml``, ``metrics.csv``, ``evaluation.json``, ``checkpoints/`` and ``tensorboard/``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.last = self.path / "checkpoints/last.pt"
        self.best = self.path / "checkpoints/best.pt"
        self.evaluation = self.path / "evaluation.json"
        self._metrics = self.path / "metrics.csv"

    def open(self, config: TrainConfig) -> None:
        """Start a run here, or go on with the one that is here if its configuration is the same."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "config.yaml"
        if file.exists():
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
            changed = _differences(before or {}, config.model_dump(mode="json"))
            if changed:
                raise ValueError(
                    f"{self.path} holds a run with another configuration ({'; '.join(changed)}): "
                    "choose another --run, or delete it"
                )
            return
        _write_whole(file, config.to_yaml())

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
        _write_whole(self._metrics, "\n".join(lines) + "\n")

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to ``metrics.csv``."""
        new = not self._metrics.exists()
        with open(self._metrics, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow({key: row.get(key, "") for key in COLUMNS})

    def write_evaluation(self, content: dict[str, Any]) -> None:
        _write_whole(self.evaluation, json.dumps(content, indent=1) + "\n")


def _step(row: dict[str, str]) -> float:
    cut_short = None in row.values()  # by the stop
    return float("inf") if cut_short else int(row["step"])


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in sorted(before.keys() | now.keys())
            for difference in _differences(
                before.get(key), now.get(key), f"{where}.{key}" if where else key
            )
        ]
    return [] if before == now else [f"{where}: {before!r} there, {now!r} now"]

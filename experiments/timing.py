"""How long a trial of each search and a training of each detector take on this machine, two at a time.

The searches and trainings of the tables ran on several machines, some more than twice as fast as others;
by these times cost.py tells what each takes on one. What is there is not timed again.

    python experiments/timing.py --data PATH --weights FILE     # results/timing.json; of blood cells
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from losses import BCCD, RATE, ROOT, Choice, Row, tables, train_in
from searches import QUICK, SEARCHES

from paploss.search.config import load_search_config
from paploss.search.study import Search

KEPT = ROOT / "results/timing.json"


def trial(name: str) -> str:
    """The same for all searches whose trials take as long."""
    path, settings = SEARCHES[name]
    epochs = settings.get("proxy.epochs")
    return path + (f", {epochs} epochs" if epochs else "")


def training(config: str, settings: tuple[str, ...]) -> str:
    """The same for all trainings that take as long but for their loss."""
    return ", ".join([config, *(s for s in settings if s.startswith("detector."))])


def time_trial(name: str, places: dict[str, str]) -> float:
    """Seconds a trial, with two at a time; the first two, with the start of their workers, do not count."""
    path, settings = SEARCHES[name]
    short = {"sampler.rounds": 6 if path == QUICK else 1, "finalists.epochs": None}
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = load_search_config(
            ROOT / path, settings | places | short | {"executor.workers": 2}
        )
        Search(config, Path(folder), lambda _: ends.append(time.perf_counter())).run()
    return (ends[-1] - ends[1]) / (len(ends) - 2)


def time_training(rows: list[Row], extra: list[str]) -> float:
    """Seconds of a whole run, mean of two at a time, the searched and the usual loss."""

    def timed(row: Row) -> float:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            choice = row.chosen or Choice(RATE[row.config])
            done = train_in(Path(folder) / "run", row, choice, 0, extra)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return time.perf_counter() - start

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(timed, (rows[0], rows[-1]))) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    options = parser.parse_args()
    places = {"train.data.path": options.data, "train.detector.weights": options.weights}
    extra = ["--data", options.data, "--set", f"detector.weights={options.weights}"]
    os.chdir(ROOT)
    processor = next(
        line.partition(": ")[2]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    kept: dict[str, Any] = {"machine": processor, "trial": {}, "training": {}}
    if KEPT.exists():
        kept = json.loads(KEPT.read_text())
        if kept["machine"] != processor:
            raise SystemExit(f"{KEPT}: of {kept['machine']}, this is {processor}: remove it first")

    def keep(kind: str, key: str, seconds: float) -> None:
        kept[kind][key] = round(seconds, 2)
        print(f"{kind} {key}: {seconds:.1f} s", flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")

    for name in SEARCHES:
        if trial(name) not in kept["trial"]:
            keep("trial", trial(name), time_trial(name, places if "bccd" in name else {}))
    by_kind: dict[str, list[Row]] = {}
    for rows in tables().values():
        for row in rows:
            by_kind.setdefault(training(row.config, row.settings), []).append(row)
    for key, rows in by_kind.items():
        if key not in kept["training"]:
            keep("training", key, time_training(rows, extra if rows[0].config == BCCD else []))


if __name__ == "__main__":
    main()

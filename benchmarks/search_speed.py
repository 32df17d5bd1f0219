"""What a search costs beside its trainings, and what a second worker gains.

A few rounds of a real search, with one worker and with two, each of one thread. Engine: wall time in
which a worker neither trains nor evaluates: sampling, the store, messages. Apart from it are the start
(processes, data) and the wait of a worker that has nothing left of a round for the one that has.

    python benchmarks/search_speed.py     # results/search_speed.{json,md}
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from paploss.search.config import load_search_config
from paploss.search.study import Search

ROOT = Path(__file__).parent.parent
CONFIG = "configs/shapes-retinanet-search.yaml"


def measure(workers: int, rounds: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "sampler.rounds": rounds,
        "executor.workers": workers,
        "executor.threads": 1,
        # Every trial trains to its end: a linear start has trials that collapse at once.
        "space.init": "retinanet-r50-fpn-coco-tied",
        "finalists.epochs": None,
    }
    config = load_search_config(ROOT / CONFIG, settings)
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        search = Search(
            config, Path(directory), lambda progress: ends.append(time.perf_counter() - start)
        )
        search.run()
        wall = time.perf_counter() - start
        outcomes = [trial.user_attrs["outcome"] for trial in search.study.get_trials()]
    seconds = [outcome["seconds"] for outcome in outcomes]
    # Of the time after the first trials, in which processes start and data load once.
    steady = wall - ends[workers - 1]
    busy = sum(seconds) - sum(seconds[:workers])
    size = config.sampler.samples
    finishes = [ends[first : first + size] for first in range(0, len(ends), size)]
    waiting = sum(of_round[-1] - end for of_round in finishes for end in of_round[-workers:])
    return {
        "workers": workers,
        "trials": len(seconds),
        "wall": wall,
        "trial": sum(seconds) / len(seconds),
        "start": ends[workers - 1] - max(seconds[:workers]),
        "waiting_share": waiting / workers / steady,
        "engine_share": 1 - (busy + waiting) / workers / steady,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    one, two = measure(1, options.rounds), measure(2, options.rounds)
    gain = one["wall"] / two["wall"]
    content = {"machine": f"{platform.machine()}, 2 cores", "runs": [one, two], "gain": gain}
    (ROOT / "results/search_speed.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# What a search costs beside its trainings",
        "",
        f"`python benchmarks/search_speed.py` with `{CONFIG}`, {one['trials']} trials,"
        f" one thread a worker; {platform.machine()}, 2 CPU cores.",
        "",
        "| workers | wall s | s a trial | start s | engine | waiting for the end of a round | both |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (one, two):
        lines.append(
            f"| {row['workers']} | {row['wall']:.0f} | {row['trial']:.1f} | {row['start']:.1f} "
            f"| {100 * row['engine_share']:.1f}% | {100 * row['waiting_share']:.1f}% "
            f"| {100 * (row['engine_share'] + row['waiting_share']):.1f}% |"
        )
    lines += [
        "",
        "*Engine* and *waiting* are shares of all wall time after the start: sampling, store and messages;"
        " and a worker without a trial while another has the last of a round, which PPO2 needs before it"
        f" draws the next. Two workers are {gain:.2f} times as fast as one.",
    ]
    (ROOT / "results/search_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

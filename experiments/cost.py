"""What a searched loss costs: time of searches, of trainings, and of the loss within a step.

Reads what the other experiments and benchmarks/training_step.py have left in results/.

    python experiments/cost.py     # results/tables/cost.md
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import timing
from algorithms import TABLES as ALGORITHM_TABLES
from algorithms import searches_of
from losses import BCCD, DETR, FASTER_RCNN, RETINANET, ROOT, TITLES
from searches import SEARCHES, behind
from timing import training, trial

CONFIGS = {  # of a search, by how its name begins
    "retinanet": RETINANET,
    "faster-rcnn": FASTER_RCNN,
    "deformable-detr": DETR,
    "bccd": BCCD,
}
TIMED = json.loads(timing.KEPT.read_text())


def read(kind: str, name: str) -> dict[str, Any] | None:
    """A search or a table, if it is there."""
    file = ROOT / f"results/{kind}/{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def beside_steps(config: str) -> float:
    """Seconds that a training takes beside its steps: start, evaluations, report; median of the runs
    that were timed as a whole, 0 if none was.
    """
    runs = [
        json.loads(file.read_text()) for file in (ROOT / f"results/runs/{config}").glob("*.json")
    ]
    timed = [run["wall_seconds"] - run["seconds"] for run in runs if "wall_seconds" in run]
    return statistics.median(timed) if timed else 0.0


def training_minutes(config: str, settings: Sequence[str] = ()) -> float:
    """Of one full training, with two at a time."""
    return float(TIMED["training"][training(config, tuple(settings))]) / 60


def search_minutes(name: str) -> float:
    """On two cores, finalists included."""
    search = read("searches", name)
    assert search is not None
    trials = TIMED["trial"][trial(name)] * len(search["rewards"]) / 60
    detectors = [detector for detector in CONFIGS if name.startswith(detector)]
    config = CONFIGS[detectors[0] if detectors else "retinanet"]
    return trials + len(search["finalists"]) * training_minutes(config) / 2


def searches() -> list[str]:
    lines = [
        "| search | trials | collapsed | core-hours of trials, as it ran | trainings of finalists"
        " | minutes in all |",
        "|---|---|---|---|---|---|",
    ]
    for name in SEARCHES:
        search = read("searches", name)
        if search is None or "/" in name:
            continue
        lines.append(
            f"| {name} | {len(search['rewards'])} | {search['states'].get('collapsed', 0)}"
            f" | {search['hours']:.2f} | {len(search['finalists'])} | {search_minutes(name):.0f} |"
        )
    return lines


def reruns() -> list[str]:
    """A line for each table, or for each of its detectors, which are compared with nothing but themselves."""
    lines = [
        "| table | searches | minutes: these | trainings at the chosen rates | together"
        " | together, searches of tables above kept | trainings that choose rates and weights |",
        "|---|---|---|---|---|---|---|",
    ]
    counted: set[str] = set()

    def rerun(name: str, found: set[str], training: float, choosing: float) -> str:
        searching = {search: search_minutes(search) for search in found}
        kept = sum(searching[search] for search in found & counted)
        counted.update(found)
        together = sum(searching.values()) + training
        return (
            f"| {name} | {len(found)} | {together - training:.0f} | {training:.0f}"
            f" | {together:.0f} | {together - kept:.0f} | {choosing:.0f} |"
        )

    for name in TITLES:
        table = read("tables", name)
        if table is None:
            continue
        configs = list(dict.fromkeys(row["config"] for row in table["rows"]))
        for config in configs:
            rows = [row for row in table["rows"] if row["config"] == config]
            part = f", {rows[0]['label'].partition(', ')[0]}" if len(configs) > 1 else ""
            found = {
                search
                for row in rows
                for seed in table["seeds"]
                for search in behind(row["loss"].format(seed=seed))
            }
            minutes = [training_minutes(config, row["settings"]) / 2 for row in rows]
            choosing = sum(
                one * len(row["tried_on_evaluation"].keys() - {row["chosen"]})
                for row, one in zip(rows, minutes, strict=True)
            )
            training = sum(minutes) * len(table["seeds"])
            lines.append(rerun(f"{name}{part}", found, training, choosing))
    for name in ALGORITHM_TABLES:
        found = set(searches_of(name))
        if all(read("searches", search) for search in found):
            lines.append(rerun(name, found, 0, 0))
    return lines


def timed() -> list[str]:
    lines = ["| | seconds |", "|---|---|"]
    for kind in ("trial", "training"):
        lines += [f"| {kind}, {what} | {s:.1f} |" for what, s in TIMED[kind].items()]
    return lines


def trainings() -> list[str]:
    lines = []
    for name in CONFIGS:
        table = read("tables", name)
        if table is None:
            continue
        rows = table["rows"]
        lines += [f"| {TITLES[name]} | s of steps |", "|---|---|"]
        lines += [f"| {row['label']} | {row['seconds']:.0f} |" for row in rows if "seconds" in row]
        beside = beside_steps(rows[0]["config"])
        lines.append(f"| beside them | {beside:.0f} |")
        lines.append("")
    return lines


def main() -> None:
    step = (ROOT / "results/training_step.md").read_text()
    shares = [line.split("|") for line in step.splitlines() if line.startswith("| ")][1:]
    lines = [
        "# What it costs",
        "",
        "`python experiments/cost.py`. The searches and trainings ran on several machines, some more than"
        " twice as fast as others. So times are those of one of them,"
        f" {TIMED['machine']}, two cores, by what a trial and a training take there, two at a time of one"
        " thread each (`python experiments/timing.py`, nothing else running; of trials the wall time of"
        " one, of trainings the time of a whole run, start and evaluations included):",
        "",
        *timed(),
        "",
        "Searches; the best trials are trained at length:",
        "",
        *searches(),
        "",
        "Every table, by detector where there are several: all searches behind it and its trainings with"
        " `--as-chosen`, *together* what making it anew takes ([how](../README.md#time)), or less by the"
        " searches that a table above it has as well. The rates and weights were chosen once, by"
        " further trainings:",
        "",
        *reruns(),
        "",
        "Trainings with each loss, as they ran: seconds of their steps, and what comes beside them (start,"
        " evaluation and test split, calibration, report; median of the runs whose whole time was taken)."
        " These are of several machines, so only large differences mean something:",
        "",
        *trainings(),
        "A step with pap against one with the detector's usual loss, forward, backward and update"
        " ([training_step.md](../training_step.md)):",
        "",
        "| detector, backbone | pap alone, ms (share of the step) | step with pap / with the usual loss |",
        "|---|---|---|",
        *(f"|{cells[1]}|{cells[-3]}|{cells[-2]}|" for cells in shares),
    ]
    (ROOT / "results/tables/cost.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

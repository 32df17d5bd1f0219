"""What a searched loss costs: time of searches, of trainings, and of the loss within a step.

Reads what the other experiments and benchmarks/training_step.py have left in results/.

    python experiments/cost.py     # results/tables/cost.md
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from algorithms import TABLES as ALGORITHM_TABLES
from algorithms import searches_of
from losses import ROOT, TITLES
from searches import SEARCHES, behind

DETECTORS = ("retinanet", "faster-rcnn", "deformable-detr", "bccd")


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


def training_minutes(search: str) -> float:
    """Of one full training, as a finalist of a search gets."""
    detectors = [name for name in DETECTORS if search.startswith(name)]
    table = read("tables", detectors[0] if detectors else "retinanet")
    assert table is not None
    steps = statistics.mean(row["seconds"] for row in table["rows"] if "seconds" in row)
    return (steps + beside_steps(table["rows"][0]["config"])) / 60


def search_minutes(name: str) -> float:
    """On two cores, finalists included: as timed, or by the sum of its parts if it was not in one go."""
    search = read("searches", name)
    assert search is not None
    if "wall_seconds" in search:
        return float(search["wall_seconds"]) / 60
    return (60 * search["hours"] + len(search["finalists"]) * training_minutes(name)) / 2


def searches() -> list[str]:
    lines = [
        "| search | trials | collapsed | core-hours of trials | trainings of finalists"
        " | minutes in all on two cores | minutes of one training |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SEARCHES:
        search = read("searches", name)
        if search is None or "/" in name:
            continue
        lines.append(
            f"| {name} | {len(search['rewards'])} | {search['states'].get('collapsed', 0)}"
            f" | {search['hours']:.2f} | {len(search['finalists'])} | {search_minutes(name):.0f}"
            f" | {training_minutes(name):.1f} |"
        )
    return lines


def reruns() -> list[str]:
    """A line for each table, or for each of its detectors, which are compared with nothing but themselves."""
    lines = [
        "| table | searches | minutes on two cores: these | trainings at the chosen rates | together"
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
            minutes = [(row.get("seconds", 0.0) + beside_steps(config)) / 60 / 2 for row in rows]
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


def trainings() -> list[str]:
    lines = []
    for name in DETECTORS:
        table = read("tables", name)
        if table is None:
            continue
        rows = table["rows"]
        lines += [f"| {TITLES[name]} | s of steps |", "|---|---|"]
        lines += [f"| {row['label']} | {row['seconds']:.0f} |" for row in rows if "seconds" in row]
        beside = beside_steps(rows[0]["config"])
        lines.append(
            f"| beside them | {f'{beside:.0f}' if beside else 'not timed, counted as 0'} |"
        )
        lines.append("")
    return lines


def main() -> None:
    step = (ROOT / "results/training_step.md").read_text()
    shares = [line.split("|") for line in step.splitlines() if line.startswith("| ")][1:]
    lines = [
        "# What it costs",
        "",
        "`python experiments/cost.py`, from the searches and trainings of the other tables; x86_64, two"
        " runs or trials at a time of one thread each. Times of trainings were taken while other work"
        " ran beside them, so differences between losses of less than a fifth mean nothing; what a loss"
        " costs is in the table of steps, which was measured alone.",
        "",
        "Searches; the best trials are trained at length, as many minutes each as one training:",
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
        "Trainings: seconds of their steps, and what comes beside them (start, evaluation and test split,"
        " calibration, report; median of the runs whose whole time was taken):",
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

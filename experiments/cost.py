"""What a searched loss costs: time of searches, of trainings, and of the loss within a step.

Reads what the other experiments and benchmarks/training_step.py have left in results/.

    python experiments/cost.py     # results/tables/cost.md
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from losses import TITLES

ROOT = Path(__file__).parent.parent
DETECTORS = ("retinanet", "faster-rcnn", "deformable-detr", "bccd")


def searches() -> list[str]:
    lines = [
        "| search | trials | collapsed | core-hours of trials | trainings of finalists"
        " | minutes in all on two cores | minutes of one training |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("retinanet-coarse", *DETECTORS):
        file = ROOT / f"results/searches/{name}.json"
        if not file.exists():
            continue
        search = json.loads(file.read_text())
        table = ROOT / f"results/tables/{name.removesuffix('-coarse')}.json"
        rows = json.loads(table.read_text())["rows"]
        training = statistics.mean(row["seconds"] for row in rows if "seconds" in row) / 60
        finalists = len(search["finalists"])
        in_all = (60 * search["hours"] + finalists * training) / 2
        lines.append(
            f"| {name} | {len(search['rewards'])} "
            f"| {search['states'].get('collapsed', 0)} | {search['hours']:.2f} | {finalists} "
            f"| {in_all:.0f} | {training:.1f} |"
        )
    return lines


def trainings() -> list[str]:
    lines = []
    for name in DETECTORS:
        rows = json.loads((ROOT / f"results/tables/{name}.json").read_text())["rows"]
        lines += [f"| {TITLES[name]} | s a training |", "|---|---|"]
        lines += [f"| {row['label']} | {row['seconds']:.0f} |" for row in rows if "seconds" in row]
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
        "Trainings with evaluation:",
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

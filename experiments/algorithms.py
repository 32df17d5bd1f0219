"""Which algorithm searches best? Best reward by number of trials, as a table and a picture.

Searches that are not kept in results/searches are run first.

    python experiments/algorithms.py algorithms algorithms-again     # results/tables/NAME.md, docs/figures/NAME.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import ttest_ind
from searches import ALGORITHM_LABELS, KEPT, QUICK, ROOT, SEARCHES, search_unless_kept

MARKS = (40, 80, 120, 160)
TABLES = {
    "algorithms": "Search algorithms on the real thing",
    "algorithms-again": "Search algorithms on the real thing, once more",
}


def searches_of(table: str) -> list[str]:
    return [name for name in SEARCHES if name.startswith(f"{table}/")]


def rewards(table: str) -> dict[str, np.ndarray]:
    """Of every algorithm, by number of trials, a row a repeat."""
    rows: dict[str, list[list[float]]] = {}
    for name in searches_of(table):
        content = json.loads((KEPT / f"{name}.json").read_text())
        rows.setdefault(name.split("/")[1], []).append(content["rewards"])
    return {algorithm: 100 * np.array(values) for algorithm, values in rows.items()}


def difference(values: np.ndarray, reference: np.ndarray) -> str:
    """Of the means, with half a 95% interval by Welch's t: repeats of two algorithms are no pairs."""
    interval = ttest_ind(values, reference, equal_var=False).confidence_interval()
    return f"{values.mean() - reference.mean():+.1f} ± {(interval.high - interval.low) / 2:.1f}"


def compare(table: str) -> None:
    search_unless_kept(searches_of(table), 2, {})
    found = rewards(table)
    best = {name: np.maximum.accumulate(rows, -1) for name, rows in found.items()}
    at_length = (
        " What the answers are worth after a full training is in"
        " [algorithms-at-length.md](algorithms-at-length.md)."
        if table == "algorithms"
        else ""
    )
    lines = [
        f"# {TABLES[table]}",
        "",
        f"`python experiments/algorithms.py {table}`, `{QUICK}`; x86_64, two workers of one thread."
        " 160 trials a search; a trial is 31 steps of the tiny RetinaNet, its reward the AP on 100 images"
        " of the evaluation split. Best reward so far, mean ± standard deviation over repeats of the"
        " search; *less PPO2's*: after 160 trials, ± half a 95% interval (Welch's t); *last round*: mean"
        f" reward of the last 8 trials.{at_length}",
        "",
        f"![Best reward by number of trials](../../docs/figures/{table}.png)",
        "",
        "| algorithm | repeats | "
        + " | ".join(f"{mark} trials" for mark in MARKS)
        + " | less PPO2's | last round |",
        "|---" * (len(MARKS) + 4) + "|",
    ]
    for name, rows in best.items():
        cells = [
            f"{rows[:, mark - 1].mean():.1f} ± {rows[:, mark - 1].std(ddof=1):.1f}"
            for mark in MARKS
        ]
        cells.append("" if name == "ppo2" else difference(rows[:, -1], best["ppo2"][:, -1]))
        cells.append(f"{found[name][:, -8:].mean():.1f}")
        lines.append(f"| {ALGORITHM_LABELS[name]} | {len(rows)} | " + " | ".join(cells) + " |")
    if table != "algorithms":
        lines += ["", *together(rewards("algorithms"), found)]
    (ROOT / f"results/tables/{table}.md").write_text("\n".join(lines) + "\n")
    draw(best, ROOT / f"docs/figures/{table}.png")


def together(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> list[str]:
    """Best rewards of the searches of both tables, of the algorithms that are in both."""
    best = {name: np.concatenate([rows, second[name]]).max(-1) for name, rows in first.items()}
    lines = [
        "With those of [algorithms.md](algorithms.md), best reward of 160 trials:",
        "",
        "| algorithm | repeats | best reward | less PPO2's |",
        "|---|---|---|---|",
    ]
    for name, values in best.items():
        less = "" if name == "ppo2" else difference(values, best["ppo2"])
        lines.append(
            f"| {ALGORITHM_LABELS[name]} | {len(values)} "
            f"| {values.mean():.1f} ± {values.std(ddof=1):.1f} | {less} |"
        )
    return lines


def draw(curves: dict[str, np.ndarray], file: Path) -> None:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for colour, (name, rows) in enumerate(curves.items()):
        trials = np.arange(1, rows.shape[1] + 1)
        axes.plot(trials, rows.mean(0), color=f"C{colour}", label=ALGORITHM_LABELS[name])
        axes.fill_between(trials, rows.min(0), rows.max(0), color=f"C{colour}", alpha=0.12, lw=0)
    axes.set(xlabel="trials", ylabel="best reward so far (AP): mean and range of repeats")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    for table in parser.parse_args().tables:
        compare(table)


if __name__ == "__main__":
    main()

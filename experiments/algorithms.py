"""Which algorithm searches best? Best reward by number of trials, as a table and a picture.

Searches that are not kept in results/searches/algorithms are run first.

    python experiments/algorithms.py     # results/tables/algorithms.md, docs/figures/algorithms.png
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import ttest_ind
from searches import ALGORITHM_LABELS, ALGORITHMS, KEPT, QUICK, ROOT, SEARCHES, search_unless_kept

MARKS = (40, 80, 120, 160)


def rewards(algorithm: str) -> np.ndarray:
    """By number of trials, a row a repeat."""
    files = sorted((KEPT / "algorithms" / algorithm).glob("[0-9].json"))
    return 100 * np.array([json.loads(file.read_text())["rewards"] for file in files])


def difference(values: np.ndarray, reference: np.ndarray) -> str:
    """Of the means, with half a 95% interval by Welch's t: repeats of two algorithms are no pairs."""
    interval = ttest_ind(values, reference, equal_var=False).confidence_interval()
    return f"{values.mean() - reference.mean():+.1f} ± {(interval.high - interval.low) / 2:.1f}"


def main() -> None:
    search_unless_kept([name for name in SEARCHES if name.startswith("algorithms/")], 2, {})
    found = {name: rewards(name) for name in ALGORITHMS}
    best = {name: np.maximum.accumulate(rows, -1) for name, rows in found.items()}
    lines = [
        "# Search algorithms on the real thing",
        "",
        f"`python experiments/algorithms.py`, `{QUICK}`; x86_64, two workers of one thread. 160 trials a"
        " search; a trial is 31 steps of the tiny RetinaNet, its reward the AP on 100 images of the"
        " evaluation split. Best reward so far, mean ± standard deviation over repeats of the search;"
        " *less PPO2's*: after 160 trials, ± half a 95% interval (Welch's t); *last round*: mean reward"
        " of the last 8 trials. What the answers are worth after a full training is in"
        " [algorithms-at-length.md](algorithms-at-length.md).",
        "",
        "![Best reward by number of trials](../../docs/figures/algorithms.png)",
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
    folder = ROOT / "results/tables"
    (folder / "algorithms.md").write_text("\n".join(lines) + "\n")
    draw(best, ROOT / "docs/figures/algorithms.png")


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


if __name__ == "__main__":
    main()

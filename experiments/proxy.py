"""Does the proxy of a search carry signal? Rank correlation of its reward with AP after full training.

Losses of many kinds, from f(x) = x to the published shapes and random changes of them, are each given
the short trainings of three searches (three seeds) and the full one (seed 0, AP on the test split).
Finished ones are kept in results/runs and not run again, so the command can be repeated.

    python experiments/proxy.py     # results/proxy.{json,md}, docs/figures/proxy.png
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from losses import PUBLISHED, RATE, RETINANET, Choice, Row, metric, train
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from paploss import LossParameters, load_preset
from paploss.search.config import load_search_config
from paploss.search.executors import Trial, make_executor, run_all
from paploss.training.loop import load_parameters

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results/runs/proxy"
SEEDS = (0, 1, 2)
PROXIES = {
    "quick": "configs/shapes-retinanet-quick-search.yaml",
    "search": "configs/shapes-retinanet-search.yaml",
    "refine": "configs/shapes-retinanet-refining-search.yaml",
}


def losses() -> dict[str, str]:
    """Fourteen losses by label, as presets or files: hand-made, published, and random changes."""
    made = {name: f"results/losses/{name}.loss.json" for name in ("sqrt", "linear", "square")}
    made |= {"published": PUBLISHED, "tied": f"{PUBLISHED}-tied"}
    tied = load_preset(f"{PUBLISHED}-tied")
    changed = {"tied, scale 1": LossParameters(tied.functions, 1.0)}
    rng = np.random.default_rng(0)
    start = tied.to_vector()
    for number, sigma in enumerate((0.03, 0.05, 0.05, 0.08, 0.08, 0.12, 0.12, 0.2)):
        vector = np.clip(start + sigma * rng.standard_normal(start.size), 0.01, 0.99)
        changed[f"tied + {sigma:g} ({number})"] = LossParameters.from_vector(vector, segments=5)
    for number, (label, parameters) in enumerate(changed.items()):
        made[label] = f"results/losses/tied-changed-{number}.loss.json"
        if not (ROOT / made[label]).exists():
            parameters.save(ROOT / made[label])
    return made


def keep(name: str, content: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Read a finished result, or write it."""
    file = KEPT / f"{name}.json"
    if content is not None:
        KEPT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content) + "\n")
    return json.loads(file.read_text()) if file.exists() else None


def rewards(proxy: str, made: dict[str, str], workers: int) -> dict[str, list[dict[str, Any]]]:
    """Outcomes of a search's proxy with every loss, a seed each."""
    config = load_search_config(PROXIES[proxy], {"executor.workers": workers})
    names = [(label, seed) for label in made for seed in SEEDS]

    def file(label: str, seed: int) -> str:
        return f"{proxy}-{Path(made[label]).name.removesuffix('.loss.json')}-seed{seed}"

    jobs = [
        Trial(key, load_parameters(made[label]), seed)
        for key, (label, seed) in enumerate(names)
        if keep(file(label, seed)) is None
    ]
    with contextlib.closing(make_executor(config)) as executor:
        for key, outcome in run_all(jobs, executor):
            keep(file(*names[key]), asdict(outcome))
            print(proxy, *names[key], outcome, flush=True)
    return {label: [keep(file(label, seed)) or {} for seed in SEEDS] for label in made}


def full_training(made: dict[str, str]) -> dict[str, float]:
    """AP on the test split by loss."""
    rows = [Row(label, RETINANET, loss) for label, loss in made.items()]
    with ThreadPoolExecutor(len(rows)) as pool:
        results = pool.map(lambda row: train(row, Choice(RATE[RETINANET]), 0, []), rows)
        return {
            row.label: 100 * metric(result, "test")
            for row, result in zip(rows, results, strict=True)
        }


@dataclass(frozen=True)
class Signal:
    """What a proxy tells of the full training."""

    one_seed: float  # Spearman's rank correlation
    mean_of_seeds: float
    better_half: float  # of one seed, among the losses that end best
    noise: float  # standard deviation over seeds, median of losses
    seconds: float

    @classmethod
    def of(cls, outcomes: dict[str, list[dict[str, Any]]], full: dict[str, float]) -> Signal:
        reward = {label: [100 * o["reward"] for o in runs] for label, runs in outcomes.items()}
        ap = [full[label] for label in reward]
        first = [values[0] for values in reward.values()]
        better = [k for k in range(len(ap)) if ap[k] >= statistics.median(ap)]
        return cls(
            spearmanr(first, ap).statistic,
            spearmanr([statistics.mean(values) for values in reward.values()], ap).statistic,
            spearmanr([first[k] for k in better], [ap[k] for k in better]).statistic,
            statistics.median(statistics.stdev(v) for v in reward.values() if max(v) > 1),
            # The shortest of those that trained to their end: other work may have run beside them.
            min(
                o["seconds"] for runs in outcomes.values() for o in runs if o["state"] == "complete"
            ),
        )


def write(measured: dict[str, dict[str, list[dict[str, Any]]]], full: dict[str, float]) -> None:
    signals = {proxy: Signal.of(outcomes, full) for proxy, outcomes in measured.items()}
    reward = {
        proxy: {label: [100 * o["reward"] for o in runs] for label, runs in outcomes.items()}
        for proxy, outcomes in measured.items()
    }
    content = {
        "command": "python experiments/proxy.py",
        "machine": f"{platform.machine()}, two workers of one thread",
        "proxies": {
            proxy: {"config": PROXIES[proxy], **asdict(signal), "rewards": reward[proxy]}
            for proxy, signal in signals.items()
        },
        "AP": full,
    }
    (ROOT / "results/proxy.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# Does the proxy carry signal?",
        "",
        f"`python experiments/proxy.py`; {platform.machine()}, CPU, one thread a trial, two at a time."
        f" {len(full)} losses. Reward: AP on the evaluation split after the proxy, three seeds of image"
        " order and augmentation; AP: on the test split after full training, seed 0.",
        "",
        "| proxy | s a trial | rank correlation, one seed | mean of three seeds"
        " | better half of the losses, one seed | noise over seeds (AP) |",
        "|---|---|---|---|---|---|",
    ]
    for proxy, signal in signals.items():
        lines.append(
            f"| {proxy} (`{PROXIES[proxy]}`) | {signal.seconds:.0f} | **{signal.one_seed:.2f}** "
            f"| {signal.mean_of_seeds:.2f} | {signal.better_half:.2f} | {signal.noise:.2f} |"
        )
    lines += [
        "",
        "Spearman's rank correlation with AP after full training; the noise is the standard deviation,"
        " median over losses with a reward above 1.",
        "",
        "![Rewards of the proxies against AP after full training](../docs/figures/proxy.png)",
        "",
        "| loss | "
        + " | ".join(f"{proxy}, by seed" for proxy in reward)
        + " | AP, full training |",
        "|---" * (len(reward) + 2) + "|",
    ]
    for label in sorted(full, key=lambda label: -full[label]):
        cells = [", ".join(f"{v:.1f}" for v in values[label]) for values in reward.values()]
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {full[label]:.1f} |")
    (ROOT / "results/proxy.md").write_text("\n".join(lines) + "\n")
    draw(reward, full, signals)


def draw(
    reward: dict[str, dict[str, list[float]]], full: dict[str, float], signals: dict[str, Signal]
) -> None:
    figure = Figure(figsize=(5.2 * len(reward), 4.2), layout="constrained")
    places = figure.subplots(1, len(reward), sharey=True, squeeze=False).flat
    for axes, (proxy, of_losses) in zip(places, reward.items(), strict=True):
        for label, values in of_losses.items():
            axes.plot(values, [full[label]] * len(values), "o-", ms=4, lw=0.8, alpha=0.8)
            if "+" not in label:  # the changed ones are a crowd, and in the table
                place = (max(values), full[label])
                axes.annotate(label, place, fontsize=7, xytext=(4, -2), textcoords="offset points")
        axes.set(
            xlabel="reward: AP on the evaluation split (a dot a seed)",
            title=f"{proxy}: rank correlation {signals[proxy].one_seed:.2f}",
        )
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("AP on the test split after full training")
    figure.savefig(ROOT / "docs/figures/proxy.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)  # files of losses are named from there
    made = losses()
    full = full_training(made)
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for proxy in PROXIES:
        measured[proxy] = rewards(proxy, made, options.workers)
        write(measured, full)


if __name__ == "__main__":
    main()

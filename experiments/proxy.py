"""Does the proxy of a search carry signal? Rank correlation of its reward with AP after full training.

Losses of many kinds, from f(x) = x to the published shapes and random changes of them, are each given
the short training of the search (three seeds) and the full one (seed 0, AP on the test split).
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
from pathlib import Path
from typing import Any

import numpy as np
from losses import PUBLISHED, RETINANET, Choice, Row, metric, train
from scipy.stats import spearmanr

from paploss import LossParameters, load_preset
from paploss.search.config import SearchConfig, load_search_config
from paploss.search.executors import Trial, make_executor, run_all
from paploss.training.loop import load_parameters

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results/runs/proxy"
SEEDS = (0, 1, 2)


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


def rewards(config: SearchConfig, made: dict[str, str]) -> None:
    names = [(loss, seed) for loss in made for seed in SEEDS]
    jobs = [
        Trial(key, load_parameters(made[loss]), seed)
        for key, (loss, seed) in enumerate(names)
        if keep(f"{list(made).index(loss):02}-proxy-seed{seed}") is None
    ]
    with contextlib.closing(make_executor(config)) as executor:
        for key, outcome in run_all(jobs, executor):
            loss, seed = names[key]
            content = {"reward": outcome.reward, "seconds": outcome.seconds, "state": outcome.state}
            keep(f"{list(made).index(loss):02}-proxy-seed{seed}", {"loss": loss, **content})
            print(loss, seed, outcome, flush=True)


def full_training(config: SearchConfig, made: dict[str, str], workers: int) -> dict[str, float]:
    """AP on the test split by loss."""
    choice = Choice(config.train.optimizer.learning_rate)
    rows = [Row(label, RETINANET, loss) for label, loss in made.items()]
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(lambda row: train(row, choice, 0, []), rows)
        return {
            row.label: metric(result, "test") for row, result in zip(rows, results, strict=True)
        }


def write(made: dict[str, str], full: dict[str, float], config: str) -> None:
    rows = []
    for key, loss in enumerate(made):
        proxy = [keep(f"{key:02}-proxy-seed{seed}") or {} for seed in SEEDS]
        rows.append((loss, [100 * p["reward"] for p in proxy], 100 * full[loss]))
    first = [r[1][0] for r in rows]
    means = [statistics.mean(r[1]) for r in rows]
    full_ap = [r[2] for r in rows]
    one, mean = spearmanr(first, full_ap).statistic, spearmanr(means, full_ap).statistic
    better = [k for k in range(len(rows)) if full_ap[k] >= statistics.median(full_ap)]
    among = spearmanr([first[k] for k in better], [full_ap[k] for k in better]).statistic
    noise = statistics.median(statistics.stdev(r[1]) for r in rows if max(r[1]) > 1)
    seconds = statistics.median(
        (keep(f"{k:02}-proxy-seed{s}") or {})["seconds"] for k in range(len(rows)) for s in SEEDS
    )
    content = {
        "command": "python experiments/proxy.py",
        "config": config,
        "machine": f"{platform.machine()}, two workers of one thread",
        "spearman_one_seed": one,
        "spearman_mean_of_seeds": mean,
        "spearman_better_half": among,
        "noise_over_seeds": noise,
        "seconds_a_trial": seconds,
        "losses": [{"loss": r[0], "rewards": r[1], "AP": r[2]} for r in rows],
    }
    (ROOT / "results/proxy.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# Does the proxy carry signal?",
        "",
        f"`python experiments/proxy.py` with `{config}`; {platform.machine()}, CPU, one thread a trial,"
        f" two at a time. A trial takes {seconds:.0f} s (median). Reward: AP on the evaluation split"
        " after the proxy, three seeds of image order and augmentation; AP: on the test split after"
        " full training, seed 0.",
        "",
        f"Spearman rank correlation over {len(rows)} losses: **{one:.2f}** (one seed of the proxy, as"
        f" in a search), {mean:.2f} (mean of three). Among the better half alone: {among:.2f}."
        f" Standard deviation of the reward over seeds: {noise:.2f} AP (median of losses with a"
        " reward above 1).",
        "",
        "![Reward of the proxy against AP after full training](../docs/figures/proxy.png)",
        "",
        "| loss | reward by seed | mean | AP after full training |",
        "|---|---|---|---|",
    ]
    for (loss, values, ap), average in sorted(
        zip(rows, means, strict=True), key=lambda r: -r[0][2]
    ):
        lines.append(
            f"| {loss} | {', '.join(f'{v:.1f}' for v in values)} | {average:.1f} | {ap:.1f} |"
        )
    (ROOT / "results/proxy.md").write_text("\n".join(lines) + "\n")
    draw(rows, one)


def draw(rows: list[tuple[str, list[float], float]], correlation: float) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    for loss, values, ap in rows:
        axes.plot(values, [ap] * len(values), "o-", ms=4, lw=0.8, alpha=0.8)
        axes.annotate(
            loss, (max(values), ap), fontsize=6, xytext=(4, -2), textcoords="offset points"
        )
    axes.set(
        xlabel="reward of the proxy: AP on the evaluation split (a dot a seed)",
        ylabel="AP on the test split after full training",
        title=f"Spearman rank correlation {correlation:.2f}",
    )
    axes.grid(alpha=0.3)
    figure.savefig(ROOT / "docs/figures/proxy.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.chdir(ROOT)  # files of losses are named from there
    config_file = f"configs/{RETINANET}-search.yaml"
    config = load_search_config(config_file, {"executor.workers": options.workers})
    made = losses()
    rewards(config, made)
    write(made, full_training(config, made, options.workers), config_file)


if __name__ == "__main__":
    main()

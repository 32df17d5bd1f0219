"""How good a point search algorithms find with 320 noisy trials in the 41 dimensions of a loss.

Each run knows the rewards only; what counts is the value without noise of the trial that it would
return, the one of the best reward. Optimum, noise and sampler change with the seed; the samplers of
a seed meet the same function and noise. 1 is the largest value.

    python benchmarks/search_algorithms.py [--seeds N] [--samplers ppo2,random,...]

Runs are kept in results/search_algorithms.json as they end, so the command goes on where it was
stopped. Writes results/search_algorithms.{json,md} and docs/figures/search_algorithms.png.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from matplotlib.figure import Figure
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from paploss.search import PPO2Sampler

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results/search_algorithms.json"
DIMENSIONS, TRIALS, NOISE = 41, 320, 0.02
SETTINGS = {"dimensions": DIMENSIONS, "trials": TRIALS, "noise": NOISE}
MARKS = (80, 160, 320)  # numbers of trials in the table
NAMES = [f"x{k:02}" for k in range(DIMENSIONS)]


def cma_es(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # sigma0 leaves Optuna with version 6
        return CmaEsSampler(sigma0=0.2, popsize=8, seed=seed)  # starts in the middle, as PPO2


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "ppo2": lambda seed: PPO2Sampler(seed=seed),
    "ppo2-paper": lambda seed: PPO2Sampler(seed=seed, next_sigma=False),
    "random": lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed),
    "cmaes": cma_es,
    "gp": lambda seed: GPSampler(seed=seed),
}
LABELS = {
    "ppo2": "PPO2",
    "ppo2-paper": "PPO2, width of eq. (11) as in the paper",
    "random": "random",
    "tpe": "TPE",
    "cmaes": "CMA-ES",
    "gp": "Gaussian process",
}
FEWER_SEEDS = {"gp": 3}  # minutes a run


class Objective:
    """A function on [0, 1]^41 with values from 0 to 1, reached at a point that the seed decides."""

    def __init__(self, kind: str, seed: int) -> None:
        random = np.random.default_rng([0, seed])
        self.kind = kind
        self.seed = seed
        self.optimum = random.uniform(0.1, 0.9, DIMENSIONS)
        weights = random.permutation(np.logspace(0, 3, DIMENSIONS))
        self.weights = 2 * weights / weights.mean()

    def value(self, x: np.ndarray) -> float:
        away = x - self.optimum
        if self.kind == "ill-conditioned":  # a few components decide, by up to 1,000 : 1
            away = np.sqrt(self.weights) * away
        hill = np.exp(-(away**2).sum() / 2)
        if self.kind == "multimodal":  # ripples, the next one 0.2 away in each component
            hill *= 1 - 0.25 * (1 - np.cos(10 * np.pi * away)).mean()
        return float(hill)

    def reward(self, x: np.ndarray, trial: int) -> float:
        noise = np.random.default_rng([1, self.seed, trial]).standard_normal()
        return self.value(x) + NOISE * float(noise)


OBJECTIVES = ("smooth", "multimodal", "ill-conditioned")


def run(kind: str, sampler: str, seed: int) -> dict[str, Any]:
    """One search; ``steps`` are (trials, value) wherever the trial of the best reward changes."""
    objective = Objective(kind, seed)
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS[sampler](seed))
    space = {name: optuna.distributions.FloatDistribution(0, 1) for name in NAMES}
    best, steps = -np.inf, []
    start = time.perf_counter()
    for number in range(TRIALS):
        trial = study.ask(space)
        x = np.array([trial.params[name] for name in NAMES])
        reward = objective.reward(x, number)
        study.tell(trial, reward)
        if reward > best:
            best = reward
            steps.append((number + 1, round(objective.value(x), 4)))
    return {"steps": steps, "seconds": round(time.perf_counter() - start, 1)}


def value_after(result: dict[str, Any], trials: int) -> float:
    return next(value for number, value in reversed(result["steps"]) if number <= trials)


def load_runs() -> dict[str, Any]:
    if not RESULTS.exists():
        return {}
    content = json.loads(RESULTS.read_text())
    if content["settings"] != SETTINGS:
        raise SystemExit(f"{RESULTS} holds runs with {content['settings']}: move it away first")
    return content["runs"]


def save_runs(runs: dict[str, Any]) -> None:
    content = {
        "command": "python benchmarks/search_algorithms.py",
        "optuna": optuna.__version__,
        "settings": SETTINGS,
        "runs": runs,
    }
    temporary = RESULTS.with_suffix(".partial")
    temporary.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    temporary.replace(RESULTS)


def run_all(runs: dict[str, Any], samplers: list[str], seeds: int) -> None:
    for seed in range(seeds):
        for sampler in samplers:
            for kind in OBJECTIVES:
                key = f"{kind}/{sampler}/{seed}"
                if key in runs or seed >= FEWER_SEEDS.get(sampler, seeds):
                    continue
                runs[key] = run(kind, sampler, seed)
                save_runs(runs)
                last = value_after(runs[key], TRIALS)
                print(f"{key}: {last:.3f} ({runs[key]['seconds']} s)", flush=True)


def results_of(runs: dict[str, Any], kind: str, sampler: str) -> dict[int, dict[str, Any]]:
    """The runs of one row by seed."""
    prefix = f"{kind}/{sampler}/"
    return {int(key.removeprefix(prefix)): runs[key] for key in runs if key.startswith(prefix)}


def markdown(runs: dict[str, Any]) -> str:
    lines = [
        "# Search algorithms",
        "",
        f"`python benchmarks/search_algorithms.py`, optuna {optuna.__version__}: {TRIALS} trials in "
        f"{DIMENSIONS} dimensions, standard deviation of the noise {NOISE}. The value without noise "
        "of the trial with the best reward so far: median (smallest to largest) over the seeds. "
        "1 is the optimum.",
        "PPO2 and CMA-ES start in the middle with sigma 0.2 and 8 samples a round. Gaussian process: "
        f"{FEWER_SEEDS['gp']} seeds only, it takes minutes a run.",
        "",
        "![Best value by number of trials](../docs/figures/search_algorithms.png)",
    ]
    for kind in OBJECTIVES:
        marks = " | ".join(f"{mark} trials" for mark in MARKS)
        lines += ["", f"## {kind}", "", f"| algorithm | seeds | {marks} | better than random |"]
        lines += ["|---" * (len(MARKS) + 3) + "|"]
        random = results_of(runs, kind, "random")
        for sampler in SAMPLERS:
            found = results_of(runs, kind, sampler)
            if found:
                lines.append(row(sampler, found, random))
    return "\n".join(lines) + "\n"


def row(sampler: str, found: dict[int, Any], random: dict[int, Any]) -> str:
    cells = []
    for mark in MARKS:
        values = [value_after(result, mark) for result in found.values()]
        cells.append(f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    both = sorted(set(found) & set(random))
    wins = sum(value_after(found[s], TRIALS) > value_after(random[s], TRIALS) for s in both)
    against = "-" if sampler == "random" else f"{wins} of {len(both)}"
    return f"| {LABELS[sampler]} | {len(found)} | {' | '.join(cells)} | {against} |"


def plot(runs: dict[str, Any]) -> None:
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(OBJECTIVES), sharey=True)
    trials = np.arange(1, TRIALS + 1)
    for axes, kind in zip(panels, OBJECTIVES, strict=True):
        for color, sampler in enumerate(SAMPLERS):
            found = results_of(runs, kind, sampler)
            if sampler == "ppo2-paper" or not found:
                continue  # in the table; a sixth band would hide the others
            curves = np.array([[value_after(r, n) for n in trials] for r in found.values()])
            label = LABELS[sampler] + f" ({len(found)} seeds)"
            axes.plot(trials, np.median(curves, 0), color=f"C{color}", label=label)
            axes.fill_between(
                trials, curves.min(0), curves.max(0), color=f"C{color}", alpha=0.15, linewidth=0
            )
        axes.set(title=kind, xlabel="trials", xlim=(0, TRIALS), ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("value of the best trial: median, range")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(ROOT / "docs/figures/search_algorithms.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    options = parser.parse_args()
    samplers = options.samplers.split(",")
    if unknown := set(samplers) - set(SAMPLERS):
        parser.error(f"--samplers: {', '.join(unknown)} unknown; known are {', '.join(SAMPLERS)}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    runs = load_runs()
    run_all(runs, samplers, options.seeds)
    (ROOT / "results/search_algorithms.md").write_text(markdown(runs))
    plot(runs)
    print(markdown(runs))


if __name__ == "__main__":
    main()

"""Search losses for the tiny detectors and keep what was found.

Each search is resumable: its study stays in runs/searches/NAME, and the same command goes on. What it
found is kept in results/searches: NAME.loss.json, and NAME.json with the rewards of all trials. One
that is there is not run again.

    python experiments/searches.py retinanet-coarse retinanet [--workers 2]
    python experiments/searches.py algorithms       # all below it; or algorithms/ppo2
    python experiments/searches.py bccd --data PATH --weights FILE
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paploss.search.config import load_search_config
from paploss.search.study import Search, SearchProgress

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results/searches"
RETINANET = "configs/shapes-retinanet-search.yaml"
REFINE = "configs/shapes-retinanet-refining-search.yaml"
QUICK = "configs/shapes-retinanet-quick-search.yaml"
FASTER_RCNN = "configs/shapes-faster-rcnn-search.yaml"
REFINE_FASTER_RCNN = "configs/shapes-faster-rcnn-refining-search.yaml"
DETR = "configs/shapes-deformable-detr-search.yaml"
BCCD = "configs/bccd-retinanet-search.yaml"


def once_more(start: str, rounds: int, finalists: int) -> dict[str, Any]:
    """Settings of a search with another seed, of rounds of eight trials."""
    return {
        "sampler.seed": 1,
        "finalists.count": finalists,
        "sampler.rounds": rounds,
        "space.init": start,
    }


# Name: configuration, and what differs from it.
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    # From f(x) = x with short trials, then on from there with longer ones.
    "retinanet-coarse": (RETINANET, {}),
    "retinanet": (REFINE, {"space.init": "results/searches/retinanet-coarse.loss.json"}),
    "faster-rcnn-coarse": (FASTER_RCNN, {}),
    "faster-rcnn": (
        REFINE_FASTER_RCNN,
        {"space.init": "results/searches/faster-rcnn-coarse.loss.json"},
    ),
    "faster-rcnn-longer": (  # on from there once more, with still longer trials
        REFINE_FASTER_RCNN,
        {
            "space.init": "results/searches/faster-rcnn.loss.json",
            "proxy.epochs": 3,
            "sampler.sigma": 0.05,
        },
    ),
    "deformable-detr": (DETR, {}),
    "bccd": (BCCD, {}),
    # Their like in the other space, safe or free.
    "faster-rcnn-free": (FASTER_RCNN, {"space.safe": False}),
    "deformable-detr-safe": (DETR, {"space.safe": True}),
    "bccd-safe": (BCCD, {"space.safe": True}),
    # Of the tables that are made again, an hour each: 160 trials from the detector's preset with another
    # seed, short ones and then longer ones, where the search that is made again had both.
    "retinanet-again-coarse": (
        RETINANET,
        once_more("retinanet-r50-fpn-coco-tied", 10, 4) | {"sampler.sigma": 0.1},
    ),
    "retinanet-again": (
        REFINE,
        once_more("results/searches/retinanet-again-coarse.loss.json", 10, 4),
    ),
    "faster-rcnn-again-coarse": (
        FASTER_RCNN,
        once_more("faster-rcnn-r50-fpn-coco-tied", 15, 1) | {"finalists.epochs": None},
    ),
    "faster-rcnn-again": (
        REFINE_FASTER_RCNN,
        once_more("results/searches/faster-rcnn-again-coarse.loss.json", 5, 4),
    ),
    "deformable-detr-again": (DETR, once_more("retinanet-r50-fpn-coco-tied", 20, 3)),
    "bccd-again": (BCCD, once_more("retinanet-r50-fpn-coco-tied", 20, 3)),
}
# Searches that are compared with each other, with quick trials, several of each: one may be lucky.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo2": {},
    "random": {"sampler.name": "random"},
    "tpe": {"sampler.name": "tpe"},
    "cmaes": {"sampler.name": "cmaes"},
    "gp": {"sampler.name": "gp"},
    "ppo2-warm": {"space.init": "retinanet-r50-fpn-coco", "sampler.sigma": 0.1},
}
ALGORITHMS_AGAIN = ALGORITHMS | {
    "ppo2-tied": {"space.init": "retinanet-r50-fpn-coco-tied", "sampler.sigma": 0.1}
}
ALGORITHM_LABELS = {
    "ppo2": "PPO2",
    "random": "random",
    "tpe": "TPE",
    "cmaes": "CMA-ES",
    "gp": "Gaussian process",
    "ppo2-warm": "PPO2 from the published loss",
    "ppo2-tied": "PPO2 from its tied version, the default",
}
SPACES: dict[str, dict[str, Any]] = {  # beside that of algorithms/ppo2
    "no-scale": {"space.fixed": ["scale"]},
    "shared": {"space.shared": True},
    "shared-no-scale": {"space.shared": True, "space.fixed": ["scale"]},
    "iou": {"train.loss.localization": "iou"},
    "l1": {"train.loss.localization": "l1"},
    "3-segments": {"space.segments": 3},
    "7-segments": {"space.segments": 7},
    "safe": {"space.safe": True},
}
for kind, variants, repeats, first_seed in (
    ("algorithms", ALGORITHMS, 4, 0),
    ("algorithms-again", ALGORITHMS_AGAIN, 4, 4),
    ("spaces", SPACES, 3, 0),
):
    for variant, own in variants.items():
        for repeat in range(repeats):
            seed = {"sampler.seed": first_seed + repeat}
            SEARCHES[f"{kind}/{variant}/{repeat}"] = (QUICK, own | seed)


def behind(loss: str) -> list[str]:
    """The search that found a loss, after those that it went on from; none if it was not searched."""
    if not loss.startswith("results/searches/"):
        return []
    name = loss.removeprefix("results/searches/").removesuffix(".loss.json")
    return [*behind(SEARCHES[name][1].get("space.init", "")), name]


def search(name: str, workers: int, places: dict[str, str]) -> None:
    path, settings = SEARCHES[name]
    config = load_search_config(ROOT / path, settings | places | {"executor.workers": workers})
    continued = (ROOT / "runs/searches" / name).exists()
    start = time.perf_counter()

    def tell(progress: SearchProgress) -> None:
        if progress.of_finalists:
            print(
                f"{name}: finalists {progress.finalists}/{progress.of_finalists} "
                f"best {100 * progress.best_finalist:.2f} {time.perf_counter() - start:.0f} s",
                flush=True,
            )
        elif progress.trials % config.sampler.samples == 0:
            print(
                f"{name}: {progress.trials}/{progress.of_trials} best {100 * progress.best:.2f} "
                f"mean {100 * progress.round_mean:.2f} collapsed {progress.collapsed} "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )

    made = Search(config, ROOT / "runs/searches" / name, tell)
    found = made.run()
    trials = made.study.get_trials(deepcopy=False)
    outcomes = [trial.user_attrs["outcome"] for trial in trials]
    size = config.sampler.samples
    rewards = [outcome["reward"] for outcome in outcomes]
    content = {
        "command": f"python experiments/searches.py {name}",
        "config": path,
        "settings": settings,
        "machine": f"{platform.machine()}, {workers} workers of one thread",
        "trial": found.trial,
        "reward": found.reward,
        "hours": sum(outcome["seconds"] for outcome in outcomes) / 3600,
        "states": {
            s: sum(o["state"] == s for o in outcomes) for s in {o["state"] for o in outcomes}
        },
        "round_means": [
            statistics.mean(rewards[k : k + size]) for k in range(0, len(rewards), size)
        ],
        "rewards": rewards,
        "finalists": made.study.user_attrs.get("repeats", {}),  # rewards when trained at length
        "problems": made.problems(),
    }
    if not continued:  # with finalists, the sampler's thinking and start, unlike "hours"
        content["wall_seconds"] = time.perf_counter() - start
    (KEPT / name).parent.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(content) + "\n")
    found_file = ROOT / "runs/searches" / name / "best.loss.json"
    (KEPT / f"{name}.loss.json").write_text(found_file.read_text())
    write_page()


def search_unless_kept(names: list[str], workers: int, places: dict[str, str]) -> None:
    os.chdir(ROOT)  # files of losses are named from there
    for name in names:
        if not (KEPT / f"{name}.json").exists():
            search(name, workers, places)


def write_page() -> None:
    """All searches that are there: each of the long ones, the quick ones by kind."""
    found = {name: KEPT / f"{name}.json" for name in SEARCHES}
    kept = {name: json.loads(file.read_text()) for name, file in found.items() if file.exists()}
    results = {name: result for name, result in kept.items() if "/" not in name}
    lines = [
        "# Searches",
        "",
        "`python experiments/searches.py NAME`; trials are short trainings from the same weights, two at"
        " a time of one thread each. *Reward*: AP on the evaluation split after a trial's training, so"
        " only searches with the same trials can be compared by it; *mean by round* shows every round"
        " of 8. *Answer*: the trial that did best of the best few in a full training on the evaluation split, and"
        " the factor of its gradient scale that did; *AP at length*: its, of so many trainings.",
        "",
        "![Rewards of every trial](../../docs/figures/searches.png)",
        "",
        "| search | trials | collapsed | best reward | mean by round, first to last | answer"
        " | AP at length | core-hours of trials |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        means = ", ".join(f"{100 * mean:.1f}" for mean in result["round_means"])
        finalists = result["finalists"].values()
        at_length = f"{100 * max(finalists):.1f} of {len(finalists)}" if finalists else ""
        about = json.loads((KEPT / f"{name}.loss.json").read_text())["about"]["source"]
        lines.append(
            f"| {name} | {len(result['rewards'])} | {result['states'].get('collapsed', 0)} "
            f"| {100 * max(result['rewards']):.1f} | {means} "
            f"| {about[about.index('trial ') :]} | {at_length} | {result['hours']:.2f} |"
        )
    lines += ["", *quick_searches(kept)]
    (KEPT / "README.md").write_text("\n".join(lines) + "\n")
    draw({name: result["rewards"] for name, result in results.items()})


def quick_searches(kept: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each kind of quick search, over its repeats."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for name, result in kept.items():
        if "/" in name:
            kinds.setdefault(name.rpartition("/")[0], []).append(result)
    lines = [
        f"Quick searches (`{QUICK}`), 160 trials each, all of one kind together; means over repeats:",
        "",
        "| searches | repeats | best reward of each | mean of the first round | of the last"
        " | collapsed | core-hours of one |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, results in kinds.items():
        first, last = (
            100 * statistics.mean(result["round_means"][k] for result in results) for k in (0, -1)
        )
        best = ", ".join(f"{100 * max(result['rewards']):.1f}" for result in results)
        collapsed = sum(result["states"].get("collapsed", 0) for result in results)
        hours = statistics.mean(result["hours"] for result in results)
        lines.append(
            f"| {kind} | {len(results)} | {best} | {first:.1f} | {last:.1f} | {collapsed} | {hours:.2f} |"
        )
    return lines if kinds else []


def draw(rewards: dict[str, list[float]]) -> None:
    columns = min(3, len(rewards))
    rows = -(-len(rewards) // columns)
    figure = Figure(figsize=(3.8 * columns, 2.8 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flat
    for (name, values), axes in zip(rewards.items(), places, strict=False):
        ap = 100 * np.array(values)
        axes.plot(np.arange(1, len(ap) + 1), ap, ".", ms=4, alpha=0.6, label="a trial")
        ends = np.arange(8, len(ap) + 1, 8)
        axes.plot(ends - 3.5, ap.reshape(-1, 8).mean(1), label="mean of a round")
        axes.set(title=name, xlabel="trial", ylabel="reward (AP)")
        axes.grid(alpha=0.3)
    for axes in list(places):  # what the last row has no search for
        axes.set_axis_off()
    figure.axes[0].legend(fontsize=8)
    figure.savefig(ROOT / "docs/figures/searches.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    folders = {str(folder) for name in SEARCHES for folder in Path(name).parents} - {"."}
    parser.add_argument("names", nargs="+", choices=[*SEARCHES, *sorted(folders)])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data")
    parser.add_argument("--weights")
    options = parser.parse_args()
    given = {"train.data.path": options.data, "train.detector.weights": options.weights}
    places = {setting: place for setting, place in given.items() if place}
    for asked in options.names:
        names = [name for name in SEARCHES if f"{name}/".startswith(f"{asked}/")]
        search_unless_kept(names, options.workers, places)
    write_page()


if __name__ == "__main__":
    main()

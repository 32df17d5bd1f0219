"""Compare losses on one data set and detector: tune each one's learning rate, then repeat with seeds.

Every loss gets the same grid of learning rates, judged by AP on the evaluation split with seed 0. The
best rate is then run with all seeds, and only those runs' AP on the test split is reported. The result
of every finished run is kept in results/runs/ and not run again; a stopped one continues in its run
directory. So the command can be stopped and repeated.

    python experiments/losses.py shapes            # results/losses_shapes.{json,md}
    python experiments/losses.py bccd --data PATH --weights FILE
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Study:
    config: str
    losses: dict[str, list[str]]  # name in the table: options of `paploss train`
    rates: tuple[float, ...]


def pap(preset: str) -> dict[str, list[str]]:
    """The published parameters of a detector, and the same with f5 tied to f1."""
    return {
        "pap, published": ["--loss", preset],
        "pap, published, tied": ["--loss", f"{preset}-tied"],
    }


def searched(name: str, label: str = "pap, searched") -> dict[str, list[str]]:
    """What experiments/searches.py found; not there before it has run."""
    file = ROOT / f"results/searches/{name}.loss.json"
    return {label: ["--loss", str(file)]} if file.exists() else {}


def substitution(name: str) -> dict[str, list[str]]:
    """One hand-made function in all five places."""
    file = ROOT / f"results/losses/{name}.loss.json"
    return {f"pap, {name}": ["--loss", str(file)]}


def named(*losses: str) -> dict[str, list[str]]:
    return {loss: ["--loss", loss] for loss in losses}


RETINANET, FASTER_RCNN = "retinanet-r50-fpn-coco", "faster-rcnn-r50-fpn-coco"
STUDIES = {
    "shapes": Study(
        "configs/shapes-retinanet-scratch.yaml",
        pap(RETINANET) | named("focal+giou", "focal+l1"),
        (2e-3, 1e-3, 4e-3),
    ),
    "bccd": Study(
        "configs/bccd-retinanet.yaml",
        pap(RETINANET) | named("focal+giou", "focal+l1"),
        (1e-3, 2e-3, 4e-3),
    ),
    # The three detectors from the same trained backbone, for the same epochs.
    "shapes-retinanet": Study(
        "configs/shapes-retinanet.yaml",
        searched("retinanet")
        | pap(RETINANET)
        | substitution("linear")
        | named("focal+giou", "focal+l1"),
        (2e-3, 1e-3, 4e-3),
    ),
    "shapes-faster-rcnn": Study(
        "configs/shapes-faster-rcnn.yaml",
        {"pap, published": ["--loss", FASTER_RCNN]} | named("ce+l1"),
        (2e-3, 1e-3, 4e-3),
    ),
    "shapes-deformable-detr": Study(
        "configs/shapes-deformable-detr.yaml",
        {"pap, RetinaNet's, tied": ["--loss", f"{RETINANET}-tied"]} | named("focal+l1+giou"),
        (1e-3, 5e-4, 2e-3),
    ),
}


def run_directory(study: str, loss: str, rate: float, seed: int) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", loss.lower())
    given = STUDIES[study].losses[loss][-1]
    if given.endswith(".json"):  # another content of the file is another loss
        name += "-" + hashlib.sha256(Path(given).read_bytes()).hexdigest()[:6]
    return ROOT / "runs" / f"losses-{study}" / f"{name}-lr{rate:g}-seed{seed}"


def train(study: str, loss: str, rate: float, seed: int, extra: list[str]) -> dict[str, Any]:
    """The result of one run; trains it unless it is there."""
    run = run_directory(study, loss, rate, seed)
    result = ROOT / "results/runs" / run.parent.name / f"{run.name}.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    if not result.exists():
        settings = STUDIES[study]
        command = [
            sys.executable,
            "-m",
            "paploss",
            "train",
            settings.config,
            *settings.losses[loss],
        ]
        command += ["--lr", str(rate), "--seed", str(seed), "--run", str(run), "--json", *extra]
        # One thread a run, two runs at a time: cheaper than two threads on one run.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            message = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"
            if "the loss" not in message:  # not a collapse, which is a result
                raise RuntimeError(f"{run}: {message}")
            result.write_text(json.dumps({"collapsed": message}) + "\n")
        else:
            shutil.copy(run / "evaluation.json", result)
        print(
            f"{run.name}: {json.loads(result.read_text()).get('evaluation', {}).get('metrics', {}).get('AP', 'collapsed')}",
            flush=True,
        )
    content: dict[str, Any] = json.loads(result.read_text())
    return content


def ap_on_evaluation(result: dict[str, Any]) -> float:
    return result["evaluation"]["metrics"]["AP"] if "evaluation" in result else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data")
    parser.add_argument("--weights")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    extra = ["--data", options.data] if options.data else []
    if options.weights:
        extra += ["--set", f"detector.weights={options.weights}"]
    study = STUDIES[options.study]

    with ThreadPoolExecutor(options.jobs) as pool:
        grid = [(loss, rate) for rate in study.rates for loss in study.losses]
        tuned = dict(
            zip(
                grid,
                pool.map(lambda g: train(options.study, g[0], g[1], 0, extra), grid),
                strict=True,
            )
        )
        best = {
            loss: max(study.rates, key=lambda rate: ap_on_evaluation(tuned[loss, rate]))
            for loss in study.losses
        }
        final = [(loss, seed) for loss in study.losses for seed in SEEDS]
        results = dict(
            zip(
                final,
                pool.map(lambda f: train(options.study, f[0], best[f[0]], f[1], extra), final),
                strict=True,
            )
        )
    write(options.study, study, tuned, best, results)


def write(
    name: str,
    study: Study,
    tuned: dict[tuple[str, float], dict[str, Any]],
    best: dict[str, float],
    results: dict[tuple[str, int], dict[str, Any]],
) -> None:
    figures = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    rows = []
    for loss in study.losses:
        runs = [results[loss, seed] for seed in SEEDS]
        row: dict[str, Any] = {"loss": loss, "learning_rate": best[loss]}
        for figure in figures:
            values = [100 * run["test"]["metrics"][figure] for run in runs]
            row[figure] = [statistics.mean(values), statistics.stdev(values), values]
        classes = runs[0]["test"]["per_class"]
        row["per_class"] = {
            c: statistics.mean(100 * run["test"]["per_class"][c] for run in runs) for c in classes
        }
        row["seconds"] = statistics.mean(run["seconds"] for run in runs)
        if "calibration" in runs[0]:
            row["calibration"] = [
                [run["calibration"]["test"][f"expected_error_{when}"] for run in runs]
                for when in ("before", "after")
            ]
        rows.append(row)
    grid = {f"{loss} @ {rate:g}": 100 * ap_on_evaluation(r) for (loss, rate), r in tuned.items()}
    command = f"python experiments/losses.py {name}"
    content = {
        "command": command,
        "config": study.config,
        "machine": f"{platform.machine()}, one thread a run",
        "seeds": SEEDS,
        "grid_on_evaluation": grid,
        "test": rows,
    }
    (ROOT / f"results/losses_{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        f"# Losses on {name}",
        "",
        f"`{command}`, `{study.config}`; {platform.machine()}, CPU. Mean and standard deviation over"
        f" seeds {', '.join(map(str, SEEDS))} on the test split; learning rate from"
        f" {', '.join(f'{rate:g}' for rate in study.rates)} by AP on the evaluation split, seed 0.",
        "",
        "| loss | rate | " + " | ".join(figures) + " | s a run |",
        "|---|---|" + "---|" * (len(figures) + 1),
    ]
    for row in rows:
        cells = " | ".join(f"{row[f][0]:.1f} ± {row[f][1]:.1f}" for f in figures)
        lines.append(
            f"| {row['loss']} | {row['learning_rate']:g} | {cells} | {row['seconds']:.0f} |"
        )
    lines += ["", "AP by class:", "", "| loss | " + " | ".join(rows[0]["per_class"]) + " |"]
    lines.append("|---|" + "---|" * len(rows[0]["per_class"]))
    for row in rows:
        lines.append(
            f"| {row['loss']} | " + " | ".join(f"{v:.1f}" for v in row["per_class"].values()) + " |"
        )
    lines += [
        "",
        "AP on the evaluation split by learning rate (seed 0), from which the rate was chosen:",
        "",
    ]
    lines.append("| loss | " + " | ".join(f"{rate:g}" for rate in study.rates) + " |")
    lines.append("|---|" + "---|" * len(study.rates))
    for loss in study.losses:
        lines.append(
            f"| {loss} | "
            + " | ".join(f"{grid[f'{loss} @ {rate:g}']:.1f}" for rate in study.rates)
            + " |"
        )
    calibrated = [row for row in rows if "calibration" in row]
    if calibrated:
        lines += [
            "",
            "Expected calibration error on the test split, before and after calibration (mean of seeds):",
            "",
        ]
        lines += ["| loss | before | after |", "|---|---|---|"]
        for row in calibrated:
            before, after = (statistics.mean(v) for v in row["calibration"])
            lines.append(f"| {row['loss']} | {before:.3f} | {after:.3f} |")
    (ROOT / f"results/losses_{name}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

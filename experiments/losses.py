"""Compare losses: one table a name, one trained detector or several behind every line of it.

Every loss gets its learning rate and its box weight (pap: its gradient scale) by the same rule: the usual
value, half and twice that, and on by factors of two while the best is at an end; judged by AP on the
evaluation split with seed 0. The best is then run with all seeds, and only those runs' AP on the test
split is reported. The result of every finished run is kept in results/runs/ and
not run again, whichever table asks for it; a stopped one continues in its run directory. Searches that
a row needs are run first, unless they are kept in results/searches.

    python experiments/losses.py retinanet [substitutions ...]     # results/tables/NAME.{json,md}
    python experiments/losses.py bccd --data PATH --weights FILE
    python experiments/losses.py trap --as-chosen    # rates and weights as the kept table has them
    python experiments/losses.py retinanet-again     # another search and other seeds, rates as chosen before
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Semaphore
from typing import Any

import reported
from matplotlib.figure import Figure
from scipy.stats import t as student
from searches import ALGORITHM_LABELS, ALGORITHMS, SEARCHES, behind, search_unless_kept

from paploss.search.config import load_search_config

ROOT = Path(__file__).parent.parent
SEEDS = (0, 1, 2)
OTHER_SEEDS = (3, 4, 5)  # of the tables that are made again; the main ones have all six
AT_ONCE = Semaphore(2)  # runs
FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
# The first learning rate of a configuration; of all losses.
RATE = {
    "shapes-retinanet": 2e-3,
    "shapes-faster-rcnn": 2e-3,
    "shapes-deformable-detr": 1e-3,
    "bccd-retinanet": 2e-3,
}
# The usual box weight; that of pap, 1, is a factor of its gradient scale.
BOX_WEIGHT = {
    "focal+l1": 1.0,
    "focal+giou": 2.0,
    "focal+l1+giou": 1.0,  # a factor of both
    "ap+l1": 1.0,
    "alrp": 1.0,
    "rs": 1.0,
    "ce+l1": 1.0,
    "ce+giou": 10.0,
    "cse-autoloss-a": 10.0,
}


@dataclass(frozen=True)
class Choice:
    """What the evaluation split chooses for a row; a weight of None is the loss's own."""

    rate: float
    box_weight: float | None = None

    def __str__(self) -> str:
        return f"{self.rate:g}" + (f", box weight {self.box_weight:g}" if self.box_weight else "")

    @classmethod
    def read(cls, text: str) -> Choice:
        rate, _, weight = text.partition(", box weight ")
        return cls(float(rate), float(weight) if weight else None)


@dataclass(frozen=True)
class Row:
    """A line of a table: which loss trains which configuration."""

    label: str
    config: str
    loss: str  # as `paploss train --loss` takes it; with {seed} in it, one a seed
    settings: tuple[str, ...] = ()  # further ones, key=value
    paper: reported.Figures = ()  # those of the paper, on COCO
    tuned: tuple[str, ...] = ("rate", "weight")  # what the evaluation split chooses
    chosen: Choice | None = None  # instead of what it would choose
    seeds: tuple[int, ...] = SEEDS

    def loss_of(self, seed: int) -> str:
        return self.loss.format(seed=seed)

    def name(self, seed: int) -> str:
        """The same for the same training but for its seed, in whatever table."""
        loss = self.loss_of(seed)
        name = re.sub(r"^results/(searches|losses)/|\.loss\.json$", "", loss)
        if loss.endswith(".json"):  # another content of the file is another loss
            name += "-" + hashlib.sha256((ROOT / loss).read_bytes()).hexdigest()[:6]
        return "-".join(slug(part) for part in (name, *self.settings))


TITLES = {
    "retinanet": "RetinaNet on shapes",
    "faster-rcnn": "Faster R-CNN on shapes",
    "deformable-detr": "Deformable DETR on shapes",
    "bccd": "RetinaNet on blood cells (BCCD)",
    "substitutions": "Searched and hand-made functions",
    "functions-and-scale": "Shared or separate functions, with and without the gradient scale",
    "localization": "What a box's quality is measured by",
    "segments": "Segments of a function",
    "denominator": "Gradient of the denominator, blocked or not",
    "heads": "Faster R-CNN with a loss for each head",
    "proposals": "Faster R-CNN with more proposals",
    "twelve-seeds": "Faster R-CNN with twelve seeds",
    "algorithms-at-length": "What each search algorithm found, trained in full",
    "trap": "Published losses, and what they are without the trap",
    "safe": "Free space and safe space",
    "retinanet-again": "RetinaNet on shapes, once more",
    "faster-rcnn-again": "Faster R-CNN on shapes, once more",
    "deformable-detr-again": "Deformable DETR on shapes, once more",
    "bccd-again": "RetinaNet on blood cells (BCCD), once more",
    "transfer-again": "A loss searched on shapes, on blood cells (BCCD), once more",
    "substitutions-again": "Quickly searched and hand-made functions",
    "denominator-again": "Gradient of the denominator, blocked or not, once more",
}


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


RETINANET, FASTER_RCNN, DETR = "shapes-retinanet", "shapes-faster-rcnn", "shapes-deformable-detr"
BCCD = "bccd-retinanet"
PUBLISHED, PUBLISHED_FASTER_RCNN = "retinanet-r50-fpn-coco", "faster-rcnn-r50-fpn-coco"
TIED = "published, f5 tied to f1"
AGAIN = {  # one more search for each
    RETINANET: "retinanet-again",
    FASTER_RCNN: "faster-rcnn-again",
    DETR: "deformable-detr-again",
    BCCD: "bccd-again",
}
PPO2 = "algorithms/ppo2"  # quick searches in the free space, by which others are measured


def usual(config: str, loss: str, figures: dict[str, reported.Figures] | None = None) -> Row:
    return Row(loss, config, loss, paper=(figures or {}).get(loss, ()))


def published(config: str, preset: str = PUBLISHED) -> list[Row]:
    """The parameters of the paper's searches on COCO, and what they are without the trap."""
    return [Row("published", config, preset), Row(TIED, config, f"{preset}-tied")]


def searched(
    search: str,
    figures: dict[str, reported.Figures],
    label: str = "searched",
    config: str = RETINANET,
) -> Row:
    """What a search found."""
    found = f"results/searches/{search}.loss.json"
    return Row(label, config, found, paper=figures.get(label, ()))


def quick(search: str, label: str, *settings: str, scaled: bool = True) -> Row:
    """What three quick searches of a kind found, trained at their rate with a seed each."""
    figures = reported.RETINANET.get("searched" if search == PPO2 else label, ())
    tuned = ("weight",) if scaled else ()
    found = f"results/searches/{search}/{{seed}}.loss.json"
    return Row(label, RETINANET, found, settings, figures, tuned)


def substitution(name: str) -> Row:
    """One hand-made function in all five places."""
    return Row(name, RETINANET, f"results/losses/{name}.loss.json", paper=reported.RETINANET[name])


def blocked_or_not(row: Row, name: str, figures: dict[str, reported.Figures]) -> list[Row]:
    """A loss without and with the gradient of the denominator."""
    return [
        replace(row, label=f"{name}, blocked"),
        replace(
            row,
            label=f"{name}, not blocked",
            settings=("loss.block_denominator_gradient=false",),
            paper=figures["not blocked"],
        ),
    ]


# The searched loss of Faster R-CNN and its best rival, with what its table chose for them.
BEST_RATE, RIVALS_BOX_WEIGHT = 4e-3, 20.0
BEST = Row(
    "searched",
    FASTER_RCNN,
    "results/searches/faster-rcnn-longer.loss.json",
    chosen=Choice(BEST_RATE),
)
RIVAL = Row("ce+giou", FASTER_RCNN, "ce+giou", chosen=Choice(BEST_RATE, RIVALS_BOX_WEIGHT))


def heads() -> list[Row]:
    """Faster R-CNN with the searched loss in both heads, in one of them, and in none."""
    own = "loss.heads.rpn"
    return [
        replace(BEST, label="searched in both heads"),
        replace(
            BEST,
            label="ce+giou for proposals, searched for regions",
            settings=(f"{own}.name={RIVAL.loss}", f"{own}.box_weight={RIVALS_BOX_WEIGHT:g}"),
        ),
        replace(
            RIVAL,
            label="searched for proposals, ce+giou for regions",
            settings=(f"{own}.name=pap", f"{own}.parameters={BEST.loss}"),
        ),
        replace(RIVAL, label="ce+giou in both heads"),
    ]


def proposals(count: int, *settings: str) -> list[Row]:
    """Faster R-CNN whose first stage lets so many proposals of an image through."""
    return [
        replace(row, label=f"{row.label}, {count} proposals", settings=settings)
        for row in (BEST, RIVAL)
    ]


def as_chosen(table: str, rows: list[Row]) -> list[Row]:
    """Rows with the rates and weights that the kept table has; one that it lacks is tuned."""
    kept = ROOT / f"results/tables/{table}.json"
    before = read(kept)["rows"] if kept.exists() else []
    chosen = {row["label"]: Choice.read(row["chosen"]) for row in before}
    return [replace(row, chosen=chosen.get(row.label)) for row in rows]


def found_again(row: Row) -> Row:
    """What one more search finds in place of what the first one found, with other seeds: as it is, at the
    rate that it was searched with unless another one was chosen.
    """
    name = AGAIN[row.config]
    path, settings = SEARCHES[name]
    rate = load_search_config(ROOT / path, settings).train.optimizer.learning_rate
    chosen = row.chosen or Choice(rate)
    return replace(row, loss=f"results/searches/{name}.loss.json", chosen=chosen, seeds=OTHER_SEEDS)


def again(table: str, rows: list[Row]) -> list[Row]:
    """A table once more, after another search: the first row's loss is its, the others are by hand; other
    seeds, rates and weights as the table chose them.
    """
    by_hand = [replace(row, seeds=OTHER_SEEDS) for row in as_chosen(table, rows[1:])]
    return [found_again(rows[0]), *by_hand]


def anew(row: Row) -> Row:
    """What one more search finds, tuned like a row of a first table."""
    return replace(found_again(row), label=f"{row.label}, tuned anew", chosen=None)


def tables() -> dict[str, list[Row]]:
    """All tables; differences are to the first row of the same configuration."""
    best = searched("retinanet", reported.RETINANET)
    two_parts = searched("faster-rcnn", reported.FASTER_RCNN, config=FASTER_RCNN)
    best_detr = searched("deformable-detr", reported.DEFORMABLE_DETR, config=DETR)
    # The paper's main table: three detectors from the same trained backbone, the same epochs.
    main = {
        "retinanet": [
            best,
            *published(RETINANET),
            substitution("linear"),
            *(
                usual(RETINANET, loss, reported.RETINANET)
                for loss in ("focal+giou", "focal+l1", "ap+l1", "alrp", "rs")
            ),
        ],
        "faster-rcnn": [
            searched("faster-rcnn-longer", reported.FASTER_RCNN, config=FASTER_RCNN),
            replace(two_parts, label="searched, two parts of three", paper=()),
            *published(FASTER_RCNN, PUBLISHED_FASTER_RCNN),
            *(
                usual(FASTER_RCNN, loss, reported.FASTER_RCNN)
                for loss in ("ce+l1", "ce+giou", "alrp", "cse-autoloss-a")
            ),
        ],
        "deformable-detr": [
            best_detr,
            *(replace(row, label=f"RetinaNet's, {row.label}") for row in published(DETR)),
            usual(DETR, "focal+l1+giou", reported.DEFORMABLE_DETR),
        ],
    }
    blood_cells = [
        searched("bccd", {}, "searched on BCCD", BCCD),
        usual(BCCD, "focal+giou"),
        usual(BCCD, "focal+l1"),
    ]
    six = (*SEEDS, *OTHER_SEEDS)
    substitutions = [best, *map(substitution, ("sigmoid", "sqrt", "linear", "square"))]
    denominator = [
        row
        for best_of_all, name, figures in (
            (best, "RetinaNet", reported.RETINANET),
            (two_parts, "Faster R-CNN", reported.FASTER_RCNN),
            (best_detr, "Deformable DETR", reported.DEFORMABLE_DETR),
        )
        for row in blocked_or_not(best_of_all, name, figures)
    ]
    return {
        **{name: [replace(row, seeds=six) for row in rows] for name, rows in main.items()},
        # Its ablations.
        "substitutions": substitutions,
        "functions-and-scale": [
            quick(PPO2, "separate, scale"),
            quick("spaces/no-scale", "separate, scale 1", scaled=False),
            quick("spaces/shared", "shared, scale"),
            quick("spaces/shared-no-scale", "shared, scale 1", scaled=False),
        ],
        "localization": [
            quick(PPO2, "GIoU"),
            quick("spaces/iou", "IoU", "loss.localization=iou"),
            quick("spaces/l1", "L1", "loss.localization=l1"),
        ],
        "segments": [
            quick(PPO2, "5 segments"),
            quick("spaces/3-segments", "3 segments"),
            quick("spaces/7-segments", "7 segments"),
        ],
        "denominator": denominator,
        # Why the lead is small on Faster R-CNN: each head alone, and more proposals to be ranked; and
        # whether there is one.
        "heads": [replace(row, seeds=six) for row in heads()],
        "twelve-seeds": [replace(row, seeds=tuple(range(12))) for row in (BEST, RIVAL)],
        "proposals": [*proposals(100), *proposals(300, "detector.proposals=300")],
        # What else may propose losses: the answers of the searches of algorithms.py.
        "algorithms-at-length": [
            quick(f"algorithms/{name}", ALGORITHM_LABELS[name]) for name in ALGORITHMS
        ],
        # The trap: published losses with and without it, a search that may find it and one that may not.
        "trap": [
            replace(row, label=f"{name}, {row.label}")
            for name, config, preset in (
                ("RetinaNet", RETINANET, PUBLISHED),
                ("Faster R-CNN", FASTER_RCNN, PUBLISHED_FASTER_RCNN),
                ("Deformable DETR", DETR, PUBLISHED),
                ("blood cells", BCCD, PUBLISHED),
            )
            for row in published(config, preset)
        ],
        "safe": [
            quick(PPO2, "RetinaNet, free space"),
            quick("spaces/safe", "RetinaNet, safe space"),
            *(
                searched(search, {}, f"{name}, {kind} space", config)
                for name, config, free, safe in (
                    ("Faster R-CNN", FASTER_RCNN, "faster-rcnn-free", "faster-rcnn-coarse"),
                    ("Deformable DETR", DETR, "deformable-detr", "deformable-detr-safe"),
                    ("blood cells", BCCD, "bccd", "bccd-safe"),
                )
                for kind, search in (("free", free), ("safe", safe))
            ),
        ],
        # Other data.
        "bccd": [
            replace(row, seeds=six)
            for row in (
                searched("retinanet", {}, "searched on shapes", BCCD),
                blood_cells[0],
                *published(BCCD),
                *blood_cells[1:],
            )
        ],
        # What rests on the long searches once more, after shorter ones; but for the hand-made functions at
        # the rates and weights chosen above, and the searched ones at their search's.
        **{
            f"{name}-again": again(name, [rows[0], *(r for r in rows if r.loss in BOX_WEIGHT)])
            for name, rows in main.items()
        },
        "bccd-again": again("bccd", blood_cells),
        "transfer-again": [
            replace(searched(AGAIN[RETINANET], {}, "searched on shapes", BCCD), seeds=OTHER_SEEDS),
            *again("bccd", blood_cells)[1:],
        ],
        "substitutions-again": [quick(PPO2, "searched"), *substitutions[1:]],
        # The two for which those rates and weights turned out to tell another tale are tuned as well.
        "denominator-again": [
            row
            for with_it, without in zip(denominator[::2], denominator[1::2], strict=True)
            for row in (
                found_again(with_it),
                *map(found_again, as_chosen("denominator", [without])),
                *([anew(without)] if without.config != RETINANET else []),
            )
        ],
    }


def train_in(
    run: Path, row: Row, choice: Choice, seed: int, extra: list[str]
) -> subprocess.CompletedProcess[str]:
    """Train a row in a run directory, or go on there; a failure is the caller's to judge."""
    settings = list(row.settings)
    if choice.box_weight:
        settings.append(f"loss.box_weight={choice.box_weight}")
    command = [sys.executable, "-m", "paploss", "train", f"configs/{row.config}.yaml"]
    command += ["--loss", row.loss_of(seed), "--lr", str(choice.rate), "--seed", str(seed)]
    command += [part for setting in settings for part in ("--set", setting)]
    # The last model is what counts; looking at it on the way would only take time.
    command += ["--set", "evaluate_every=1000", "--run", str(run), "--json", *extra]
    # One thread a run, two runs at a time: cheaper than two threads on one run.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def train(row: Row, choice: Choice, seed: int, extra: list[str]) -> dict[str, Any]:
    """The result of one run; trains it unless it is there."""
    weight = f"-box{choice.box_weight:g}" if choice.box_weight else ""
    run = ROOT / "runs" / row.config / f"{row.name(seed)}-lr{choice.rate:g}{weight}-seed{seed}"
    kept = ROOT / "results/runs" / row.config / f"{run.name}.json"
    if not kept.exists():
        continued = run.exists()
        with AT_ONCE:
            start = time.perf_counter()
            done = train_in(run, row, choice, seed, extra)
            wall = time.perf_counter() - start
        kept.parent.mkdir(parents=True, exist_ok=True)
        if done.returncode != 0:
            message = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"
            if "the loss" not in message:  # not a collapse, which is a result
                raise RuntimeError(f"{run}: {message}")
            kept.write_text(json.dumps({"collapsed": message}) + "\n")
        else:
            content = json.loads((run / "evaluation.json").read_text())
            if not continued:  # with start and evaluations, unlike "seconds", those of the steps
                content["wall_seconds"] = wall
            kept.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{row.config} {run.name}: {100 * metric(read(kept)):.1f}", flush=True)
    return read(kept)


def read(kept: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(kept.read_text())
    return content


def metric(result: dict[str, Any], split: str = "evaluation", figure: str = "AP") -> float:
    return result[split]["metrics"][figure] if split in result else 0.0  # collapsed


def climb(
    start: float, make: Callable[[float], Choice], judge: Callable[[Choice], float]
) -> dict[Choice, float]:
    """Choices with their AP: of the start, half and twice that, and on while the best is at an end."""
    tried: dict[float, float] = {}
    new = [start, start / 2, start * 2]
    while new:
        with ThreadPoolExecutor(len(new)) as pool:
            tried |= zip(new, pool.map(lambda value: judge(make(value)), new), strict=True)
        best = max(tried, key=lambda value: tried[value])
        new = [value for value in (best / 2, best * 2) if value not in tried]
    return {make(value): tried[value] for value in sorted(tried)}


def choices(row: Row, extra: list[str]) -> dict[Choice, float]:
    """Rates and weights with their AP on the evaluation split."""

    def judge(choice: Choice) -> float:
        return metric(train(row, choice, 0, extra))

    best = Choice(RATE[row.config])
    tried = climb(best.rate, Choice, judge) if "rate" in row.tuned else {best: judge(best)}
    best = max(tried, key=lambda choice: tried[choice])
    if "weight" in row.tuned:
        usual_weight = BOX_WEIGHT.get(row.loss, 1.0)

        def weighted(weight: float) -> Choice:
            return Choice(best.rate, None if weight == usual_weight else weight)

        tried |= climb(usual_weight, weighted, judge)
    return tried


def line(row: Row, extra: list[str]) -> dict[str, Any]:
    """All runs of a row: its choices on the evaluation split, then its seeds on the test split."""
    tried = {} if row.chosen else choices(row, extra)
    best = row.chosen or max(tried, key=lambda choice: tried[choice])
    with ThreadPoolExecutor(len(row.seeds)) as pool:
        runs = list(pool.map(lambda seed: train(row, best, seed, extra), row.seeds))
    content: dict[str, Any] = {
        "label": row.label,
        "config": row.config,
        "loss": row.loss,
        "settings": row.settings,
        "chosen": str(best),
        "paper": row.paper,
        "tried_on_evaluation": {str(choice): 100 * value for choice, value in tried.items()},
        "collapsed": sum("collapsed" in run for run in runs),
    }
    for figure in FIGURES:
        content[figure] = [100 * metric(run, "test", figure) for run in runs]
    finished = [run for run in runs if "test" in run]
    if finished:
        content["per_class"] = {
            name: statistics.mean(100 * run["test"]["per_class"][name] for run in finished)
            for name in finished[0]["test"]["per_class"]
        }
        content["seconds"] = statistics.mean(run["seconds"] for run in finished)
    if finished and "calibration" in finished[0]:  # ranking losses only
        errors = [run["calibration"]["test"] for run in finished]
        content["calibration"] = [
            statistics.mean(error[f"expected_error_{when}"] for error in errors)
            for when in ("before", "after")
        ]
    return content


def difference(values: list[float], reference: list[float]) -> str:
    """Mean of the differences by seed, with a 95% interval by Student's t."""
    pairs = [a - b for a, b in zip(values, reference, strict=True)]
    half = student.ppf(0.975, len(pairs) - 1) * statistics.stdev(pairs) / len(pairs) ** 0.5
    return f"{statistics.mean(pairs):+.1f} ± {half:.1f}"


def write(
    name: str, rows: list[dict[str, Any]], missing: list[str], seeds: tuple[int, ...]
) -> None:
    command = f"python experiments/losses.py {name}"
    content = {
        "command": command,
        "machine": f"{platform.machine()}, one thread a run",
        "seeds": seeds,
        "rows": rows,
    }
    folder = ROOT / "results/tables"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    configs = ", ".join(f"`configs/{c}.yaml`" for c in dict.fromkeys(r["config"] for r in rows))
    lines = [
        f"# {TITLES[name]}",
        "",
        f"`{command}`, {configs}; {platform.machine()}, CPU, one thread a run. Test split, mean ±"
        f" standard deviation over seeds {', '.join(map(str, seeds))}; *difference* by seed to the first row of the"
        " configuration, mean ± half a 95% interval (Student's t).",
        "",
    ]
    head = ["loss", *FIGURES, "difference", "s a run"]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["label"]]
        cells += [
            f"{statistics.mean(row[f]):.1f} ± {statistics.stdev(row[f]):.1f}" for f in FIGURES
        ]
        first = next(other for other in rows if other["config"] == row["config"])
        cells.append("" if row is first else difference(row["AP"], first["AP"]))
        cells.append(f"{row['seconds']:.0f}" if "seconds" in row else "-")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"![AP of every row, a dot a seed](../../docs/figures/tables/{name}.png)"]
    for row in rows:
        if row["collapsed"]:
            lines += ["", f"{row['label']}: {row['collapsed']} of {len(seeds)} collapsed, AP 0."]
    if missing:
        lines += ["", f"Not there yet: {', '.join(missing)}."]
    if any(row["paper"] for row in rows):
        lines += ["", "The paper's own figures, with ResNet-50 on COCO:", ""]
        lines += ["| loss | " + " | ".join(FIGURES) + " |", "|---" * (len(FIGURES) + 1) + "|"]
        for row in rows:
            if row["paper"]:
                told = " | ".join(f"{value:.1f}" for value in row["paper"])
                lines.append(f"| {row['label']} | {told} |")
    lines += ["", "AP by class, and calibration error before and after calibration:"]
    for config in dict.fromkeys(row["config"] for row in rows):
        finished = [row for row in rows if row["config"] == config and "per_class" in row]
        if not finished:
            continue
        classes = list(finished[0]["per_class"])
        lines += ["", "| loss | " + " | ".join([*classes, "before", "after"]) + " |"]
        lines.append("|---" * (len(classes) + 3) + "|")
        for row in finished:
            values = [f"{row['per_class'][c]:.1f}" for c in classes]
            values += [f"{value:.3f}" for value in row.get("calibration", [])] or ["", ""]
            lines.append(f"| {row['label']} | " + " | ".join(values) + " |")
    lines += ["", *told_choices(name, rows)]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    draw(rows, ROOT / f"docs/figures/tables/{name}.png")


def told_choices(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Rates and box weights, and what they were chosen by."""
    tuned = [row for row in rows if row["tried_on_evaluation"]]
    taken = [row for row in rows if not row["tried_on_evaluation"]]
    lines = []
    if taken:
        # The table that they were chosen for, and whose are not of it.
        again = name.endswith("-again")
        own = {"transfer-again": "bccd"}
        first = own.get(name, name.removesuffix("-again")) if again else "faster-rcnn"
        whose = (
            ", but for those of a detector's first row, which are its search's,"
            if again and rows[0] in taken
            else ""
        )
        lines += [
            f"Rates and box weights{whose} as they were chosen for [{first}.md]({first}.md):",
            "",
            *(f"- {row['label']}: {row['chosen']}" for row in taken),
        ]
    if taken and tuned:
        lines.append("")
    if tuned:
        lines += [
            "AP on the evaluation split (seed 0) from which rate and box weight were chosen:",
            "",
        ]
    for row in tuned:
        tried = "; ".join(
            f"{choice}: {value:.1f}" for choice, value in row["tried_on_evaluation"].items()
        )
        lines.append(f"- {row['label']}: {tried} → **{row['chosen']}**")
    return lines


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """AP of the rows from top to bottom: a dot a seed, a stroke for the mean."""
    figure = Figure(figsize=(6.4, 0.7 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    configs = list(dict.fromkeys(row["config"] for row in rows))
    for place, row in enumerate(rows):
        colour = f"C{configs.index(row['config'])}"
        axes.plot(row["AP"], [place] * len(row["AP"]), "o", color=colour, ms=5, alpha=0.6)
        axes.plot(statistics.mean(row["AP"]), place, "|", color=colour, ms=16, mew=2)
    axes.set(xlabel="AP on the test split", ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(file, dpi=110)


def main() -> None:
    made = tables()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", choices=made)
    parser.add_argument("--rows", nargs="+", help="only these, by label; others stay as they are")
    parser.add_argument(
        "--as-chosen",
        action="store_true",
        help="rates and weights of the kept table, not tuned again",
    )
    parser.add_argument("--data")
    parser.add_argument("--weights")
    options = parser.parse_args()
    extra, places = [], {}  # of blood cells; all else is shipped
    if options.data:
        extra += ["--data", options.data]
        places["train.data.path"] = options.data
    if options.weights:
        extra += ["--set", f"detector.weights={options.weights}"]
        places["train.detector.weights"] = options.weights
    for name in options.tables:
        rows = as_chosen(name, made[name]) if options.as_chosen else made[name]
        wanted = [row for row in rows if not options.rows or row.label in options.rows]
        losses = [row.loss_of(seed) for row in wanted for seed in row.seeds]
        for search in [search for loss in losses for search in behind(loss)]:
            search_unless_kept([search], 2, places if search.startswith("bccd") else {})
        compare(name, rows, wanted, extra)


def compare(name: str, rows: list[Row], wanted: list[Row], extra: list[str]) -> None:
    """Make a table, written anew with every row that is complete; until then a row stays as it was."""
    file = ROOT / f"results/tables/{name}.json"
    old = json.loads(file.read_text()) if file.exists() else {"rows": [], "seeds": []}
    same_seeds = old["seeds"] == list(rows[0].seeds)  # else its differences could not be paired
    before = {content["label"]: content for content in old["rows"] if same_seeds}
    done = {row: before[row.label] for row in rows if row.label in before}
    with ThreadPoolExecutor(2) as pool:
        begun = {pool.submit(line, row, extra if row.config == BCCD else []): row for row in wanted}
        for future in as_completed(begun):
            row, content = begun[future], future.result()
            if row.chosen and row.label in before:
                content["tried_on_evaluation"] = before[row.label]["tried_on_evaluation"]
            done[row] = content
            missing = [row.label for row in rows if row not in done]
            write(name, [done[row] for row in rows if row in done], missing, rows[0].seeds)


if __name__ == "__main__":
    main()

"""Time of a whole training step, forward + backward + optimizer, with each loss.

The losses of a detector take turns on the same images and weights; medians and the ratio of pap to
the detector's usual loss, the first of its list, count. Writes results/training_step.md.

    python benchmarks/training_step.py
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paploss.data.detect import load_dataset
from paploss.data.transforms import collate, training_transform
from paploss.detectors import build_detector, detector_config
from paploss.training.config import LossConfig
from paploss.training.loop import make_criteria

ROOT = Path(__file__).parent.parent
WARM_UP = 3


class Case(NamedTuple):
    losses: tuple[str, ...]
    repeats: int
    settings: dict[str, Any]


RETINANET = ("focal+giou", "focal+l1", "pap", "ap+l1", "alrp", "rs")
CASES = (
    Case(RETINANET, 40, {"name": "retinanet"}),
    Case(RETINANET, 15, {"name": "retinanet", "backbone": "resnet18"}),
    Case(("ce+l1", "ce+giou", "pap", "cse-autoloss-a", "alrp"), 40, {"name": "faster-rcnn"}),
    Case(("focal+l1+giou", "pap"), 40, {"name": "deformable-detr"}),
)
BATCH = 16


def main() -> None:
    lines = [
        "# Time of a training step",
        "",
        f"`python benchmarks/training_step.py` on {platform.machine()}, {torch.get_num_threads()}"
        f" threads, torch {torch.__version__}. Tiny detectors, {BATCH} 128-px `shapes`; median ms of"
        " a step (and quartiles), the losses of a detector taking turns. The last column is pap"
        " against the first loss of the row, the detector's usual one.",
        "",
        "| detector, backbone | loss: ms | pap / usual |",
        "|---|---|---|",
    ]
    dataset = load_dataset("shapes", "train", images=64).with_transform(
        training_transform("none", 128)
    )
    images, targets = collate([dataset[index] for index in range(BATCH)])
    wanted = [{"boxes": target["boxes"], "labels": target["labels"]} for target in targets]
    for case in CASES:
        times = measure(case, images, wanted, len(dataset.class_names))
        median = {loss: statistics.median(values) for loss, values in times.items()}
        ratio = median["pap"] / median[case.losses[0]]
        cells = []
        for loss in case.losses:
            low, _, high = statistics.quantiles(times[loss], n=4)
            cells.append(f"{loss}: {median[loss]:.1f} ({low:.1f}-{high:.1f})")
        name = f"{case.settings['name']}, {case.settings.get('backbone', 'test_resnet')}"
        lines.append(f"| {name} | {'<br>'.join(cells)} | {ratio:.3f} |")
        print(json.dumps({"case": name, **median, "ratio": ratio}), flush=True)
    (ROOT / "results/training_step.md").write_text("\n".join(lines) + "\n")


def measure(
    case: Case, images: list[Tensor], targets: list[dict[str, Tensor]], classes: int
) -> dict[str, list[float]]:
    """Milliseconds of every step, by loss."""
    config = detector_config(**case.settings)
    steps = {}
    for loss in case.losses:
        torch.manual_seed(0)
        criteria = make_criteria(LossConfig(name=loss), config)
        model = build_detector(config, classes, criteria).train()
        steps[loss] = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
    times: dict[str, list[float]] = {loss: [] for loss in case.losses}
    for repeat in range(case.repeats + WARM_UP):
        for loss, (model, optimizer) in steps.items():
            start = time.perf_counter()
            total = sum(model(images, targets).values())
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            if repeat >= WARM_UP:
                times[loss].append(1000 * (time.perf_counter() - start))
    return times


if __name__ == "__main__":
    main()

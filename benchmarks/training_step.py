"""Time of a whole training step, forward + backward + optimizer, with each loss.

The losses of a detector take turns on the same images and weights; medians and the ratio of pap to
the detector's usual loss, the first of its list, count; and the time of pap alone, on the predictions
of such a step. Writes results/training_step.md.

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

from paploss.criteria import Criterion, MatchedPredictions
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
        " a step (and quartiles), the losses of a detector taking turns. *pap / usual*: against the"
        " first loss of the row, the detector's usual one. *pap alone*: the loss of such a step, forward"
        " and backward, and its share of the step.",
        "",
        "| detector, backbone | loss: ms | pap alone | pap / usual |",
        "|---|---|---|---|",
    ]
    dataset = load_dataset("shapes", "train", images=64).with_transform(
        training_transform("none", 128)
    )
    images, targets = collate([dataset[index] for index in range(BATCH)])
    wanted = [{"boxes": target["boxes"], "labels": target["labels"]} for target in targets]
    for case in CASES:
        times, alone = measure(case, images, wanted, len(dataset.class_names))
        median = {loss: statistics.median(values) for loss, values in times.items()}
        ratio = median["pap"] / median[case.losses[0]]
        cells = []
        for loss in case.losses:
            low, _, high = statistics.quantiles(times[loss], n=4)
            cells.append(f"{loss}: {median[loss]:.1f} ({low:.1f}-{high:.1f})")
        name = f"{case.settings['name']}, {case.settings.get('backbone', 'test_resnet')}"
        share = f"{alone:.1f} ({100 * alone / median['pap']:.1f}%)"
        lines.append(f"| {name} | {'<br>'.join(cells)} | {share} | {ratio:.3f} |")
        print(json.dumps({"case": name, **median, "alone": alone, "ratio": ratio}), flush=True)
    (ROOT / "results/training_step.md").write_text("\n".join(lines) + "\n")


def measure(
    case: Case, images: list[Tensor], targets: list[dict[str, Tensor]], classes: int
) -> tuple[dict[str, list[float]], float]:
    """Milliseconds of every step, by loss, and of pap without a detector."""
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
    return times, time_alone(steps["pap"][0], images, targets)


def time_alone(
    model: torch.nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]]
) -> float:
    """Median milliseconds of all criteria of one step, forward and backward."""
    seen: list[tuple[Criterion, MatchedPredictions]] = []

    def see(criterion: Any, arguments: tuple[MatchedPredictions]) -> None:
        leaves = (tensor.detach() for tensor in arguments[0])
        seen.append((criterion, MatchedPredictions(*leaves)))

    criteria = [module for module in model.modules() if isinstance(module, Criterion)]
    hooks = [criterion.register_forward_pre_hook(see) for criterion in criteria]
    model(images, targets)
    for hook in hooks:
        hook.remove()
    for _, matched in seen:
        matched.logits.requires_grad_()
        matched.predicted_boxes.requires_grad_()
    times = []
    for _ in range(50 + WARM_UP):
        start = time.perf_counter()
        for criterion, matched in seen:
            torch.autograd.backward(list(criterion(matched).values()))
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[WARM_UP:])


if __name__ == "__main__":
    main()

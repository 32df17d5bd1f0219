"""Time of a whole training step, forward + backward + optimizer, with each loss.

The losses take turns on the same images and weights; medians and their ratio to focal+giou count.
Writes results/training_step.md.

    python benchmarks/training_step.py
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path

import torch

from paploss.criteria import build_criterion
from paploss.data.detect import load_dataset
from paploss.data.transforms import collate, training_transform
from paploss.detectors import DetectorConfig, build_detector

ROOT = Path(__file__).parent.parent
LOSSES = ("focal+giou", "focal+l1", "pap", "ap+l1", "alrp", "rs")
CASES = (("tiny", {}, 16, 60), ("resnet18", {"backbone": "resnet18"}, 16, 25))


def main() -> None:
    lines = [
        "# Time of a training step",
        "",
        f"`python benchmarks/training_step.py` on {platform.machine()}, {torch.get_num_threads()}"
        f" threads, torch {torch.__version__}. RetinaNet, 128-px `shapes`; median ms of a step"
        " (and quartiles), the losses taking turns.",
        "",
        "| backbone, batch | " + " | ".join(LOSSES) + " | pap / focal+giou |",
        "|---|" + "---|" * (len(LOSSES) + 1),
    ]
    dataset = load_dataset("shapes", "train", images=64).with_transform(
        training_transform("none", 128)
    )
    for name, settings, batch_size, repeats in CASES:
        images, targets = collate([dataset[index] for index in range(batch_size)])
        targets = [
            {"boxes": t["boxes"].as_subclass(torch.Tensor), "labels": t["labels"]} for t in targets
        ]
        steps = {}
        for loss in LOSSES:
            torch.manual_seed(0)
            config = DetectorConfig.model_validate({"size": "tiny", **settings})
            model = build_detector(config, len(dataset.class_names), build_criterion(loss)).train()
            steps[loss] = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
        times: dict[str, list[float]] = {loss: [] for loss in LOSSES}
        for repeat in range(repeats + 3):
            for loss, (model, optimizer) in steps.items():
                start = time.perf_counter()
                total = sum(model(images, targets).values())
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                if repeat >= 3:
                    times[loss].append(1000 * (time.perf_counter() - start))
        median = {loss: statistics.median(values) for loss, values in times.items()}
        cells = []
        for loss in LOSSES:
            low, _, high = statistics.quantiles(times[loss], n=4)
            cells.append(f"{median[loss]:.1f} ({low:.1f}-{high:.1f})")
        ratio = median["pap"] / median["focal+giou"]
        lines.append(f"| {name}, {batch_size} | {' | '.join(cells)} | {ratio:.3f} |")
        print(json.dumps({"case": name, **median, "ratio": ratio}), flush=True)
    (ROOT / "results/training_step.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

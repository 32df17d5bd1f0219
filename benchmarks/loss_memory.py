"""Peak memory a loss adds to its inputs, each measured in a fresh process.

Writes results/loss_memory.{json,md}.

    python benchmarks/loss_memory.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from cases import CLASSES, STEPS, make_case

ROOT = Path(__file__).parent.parent
CASES = (
    ("paploss", 8_000_000, 500),
    ("focal", 8_000_000, 500),
    ("paploss", 32_000_000, 1000),
    ("focal", 32_000_000, 1000),
    ("paploss", 8_000_000, 20_000),
    ("paploss", 130_000_000, 2000),
)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_here(name: str, scores: int, positives: int) -> dict[str, float]:
    step = STEPS[name]
    step(*_with_gradient(make_case(CLASSES * 50, 10, "early")))  # imports, compilation
    # Made in place: temporaries of the case itself must not hide the loss's peak.
    rows = scores // CLASSES
    logits = torch.empty(rows, CLASSES).normal_().mul_(0.3).sub_(4.6).requires_grad_()
    labels = torch.full((rows,), -1)
    labels[:positives] = torch.arange(positives) % CLASSES
    quality = torch.rand(rows)
    before = peak_megabytes()
    start = time.perf_counter()
    step(logits, labels, quality)
    return {
        "seconds": time.perf_counter() - start,
        "extra_megabytes": peak_megabytes() - before,
        "peak_megabytes": peak_megabytes(),
    }


def _with_gradient(case: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return case[0].requires_grad_(), *case[1:]


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
        return
    rows = []
    for name, scores, positives in CASES:
        command = [sys.executable, __file__, name, str(scores), str(positives)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append({"loss": name, "scores": scores, "positives": positives} | json.loads(output))
        print(rows[-1], flush=True)
    lines = [
        "# Memory of the loss",
        "",
        "`python benchmarks/loss_memory.py`: peak resident memory added by one forward + backward,"
        " each in a fresh process; the gradient of the logits is part of it. 2 CPU cores.",
        "",
        "| loss | scores x positives | logits, MB | extra, MB | whole process, MB | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['loss']} | {row['scores']:,} x {row['positives']:,} | {row['scores'] * 4 / 2**20:,.0f}"
            f" | {row['extra_megabytes']:,.0f} | {row['peak_megabytes']:,.0f} | {row['seconds']:.2f} |"
        )
    (ROOT / "results/loss_memory.md").write_text("\n".join(lines) + "\n")
    (ROOT / "results/loss_memory.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

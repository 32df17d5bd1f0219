"""Time of the ranking losses as criteria, forward + backward, beside focal loss.

All get the same tensors in the same process, each loss on its own for all its repeats, of which the
fastest counts. Box losses of the positives are part of the measured time. Writes results/ranking_losses.md.

    python benchmarks/ranking_losses.py [--threads N]

On a machine with other work to do, take one thread: two that wait for each other measure the others.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import torch
from cases import make_case

from paploss.criteria import Criterion, MatchedPredictions, build_criterion

ROOT = Path(__file__).parent.parent
SIZES = ((100_000, 100), (1_000_000, 300))
NAMES = ("pap", "ap+l1", "alrp", "rs", "focal+giou")
REPEATS = {100_000: 40, 1_000_000: 15}


def make_matched(scores: int, positives: int, phase: str) -> MatchedPredictions:
    logits, labels, _ = make_case(scores, positives, phase)
    generator = torch.Generator().manual_seed(1)
    corner, size, noise = torch.rand(3, positives, 2, generator=generator)
    target = torch.cat([corner, corner + size], dim=1) * 300
    predicted = target + 30 * (torch.cat([noise, noise.flip(0)], dim=1) - 0.5)
    return MatchedPredictions(logits, labels, predicted, target, predicted / 30, target / 30)


def milliseconds(criterion: Criterion, matched: MatchedPredictions) -> float:
    """One forward + backward on fresh leaves."""
    leaves = ("logits", "predicted_boxes", "box_deltas")
    fresh = {name: getattr(matched, name).detach().requires_grad_() for name in leaves}
    matched = matched._replace(**fresh)
    start = time.perf_counter()
    torch.stack(list(criterion(matched).values())).sum().backward()
    return 1000 * (time.perf_counter() - start)


def measure(scores: int, positives: int, phase: str) -> dict[str, float]:
    matched = make_matched(scores, positives, phase)
    best = {}
    # Not in turn: the heap that one leaves behind changes the time of the next by up to a half.
    for name in NAMES:
        criterion = build_criterion(name)
        times = [milliseconds(criterion, matched) for _ in range(1 + REPEATS[scores])]
        best[name] = min(times[1:])  # the first one warms up
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    machine = (
        f"{platform.processor() or platform.machine()}, {threads} of {os.cpu_count()} cores used"
    )
    load = os.getloadavg()[0]
    lines = [
        "# Time of the ranking losses",
        "",
        f"`python benchmarks/ranking_losses.py --threads {threads}` on {machine}, torch {torch.__version__}, "
        f"load average {load:.1f} at the start.",
        "Milliseconds for forward + backward of the whole criterion, box loss included; the fastest "
        f"of {REPEATS[SIZES[0][0]]} and {REPEATS[SIZES[1][0]]} repeats.",
        "*early*: every negative is within the margin of the positives; *late*: one in a thousand.",
        "",
        f"| scores x positives | phase | {' | '.join(NAMES)} |",
        "|---" * (2 + len(NAMES)) + "|",
    ]
    print("\n".join(lines[-2:]), flush=True)
    for scores, positives in SIZES:
        for phase in ("early", "late"):
            times = measure(scores, positives, phase)
            cells = " | ".join(f"{times[name]:.1f}" for name in NAMES)
            lines.append(f"| {scores:,} x {positives} | {phase} | {cells} |")
            print(lines[-1], flush=True)
    (ROOT / "results/ranking_losses.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Time of one loss, forward + backward, against focal loss, the dense formula and an AP loss loop.

All losses get the same tensors in the same process, paploss and focal in turn. The fastest repeat of
three processes counts: what the allocator does varies from process to process. Writes results/loss_speed.{json,md} and docs/figures/loss_speed.png.

    python benchmarks/loss_speed.py [--quick]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from cases import STEPS, make_case
from torch import Tensor

ROOT = Path(__file__).parent.parent
SIZES = ((100_000, 100), (1_000_000, 300), (8_000_000, 500), (32_000_000, 1000))
PROCESSES = 3
LINEAR_SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000, 32_000_000)
REPEATS = {100_000: 60, 1_000_000: 20, 8_000_000: 9, 32_000_000: 5}
# What would take minutes or tens of gigabytes is left out.
LARGEST = {"dense": 100_000, "ap loop": 1_000_000}  # scores
COLUMNS = ("paploss", "plain", "focal", "dense", "ap loop")


def seconds(name: str, case: tuple[Tensor, Tensor, Tensor]) -> float:
    """One forward + backward; "plain" is paploss without its compiled kernel."""
    os.environ["PAPLOSS_COMPILED"] = "0" if name == "plain" else "1"
    logits, labels, quality = case
    logits = logits.detach().requires_grad_()
    step = STEPS["paploss" if name == "plain" else name]
    start = time.perf_counter()
    step(logits, labels, quality)
    return time.perf_counter() - start


def measure(scores: int, positives: int, phase: str) -> dict[str, float]:
    case = make_case(scores, positives, phase)
    repeats = REPEATS.get(scores, 7)
    times: dict[str, list[float]] = {}
    # The slow ones run last and on their own: what they leave of caches and heap slows the others.
    for group in (("paploss", "focal"), ("plain",), ("dense",), ("ap loop",)):
        for repeat in range(1 + (repeats if group[0] not in LARGEST else 2)):
            for name in group:
                if scores <= LARGEST.get(name, scores):
                    elapsed = seconds(name, case)
                    if repeat > 0:  # the first one warms up
                        times.setdefault(name, []).append(1000 * elapsed)
    return {name: min(values) for name, values in times.items()}


def measure_in_processes(scores: int, positives: int, phase: str) -> dict[str, object]:
    command = [sys.executable, __file__, "--one", str(scores), str(positives), phase]
    best: dict[str, float] = {}
    for _ in range(PROCESSES):
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, value in json.loads(output).items():
            best[name] = min(value, best.get(name, value))
    row = {"scores": scores, "positives": positives, "phase": phase, **best}
    print(line(row), flush=True)
    return row


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
        return
    quick = "--quick" in sys.argv
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    sizes = SIZES[:2] if quick else SIZES
    rows = [measure_in_processes(*size, phase) for size in sizes for phase in ("early", "late")]
    if quick:
        return
    growth = [measure_in_processes(scores, 500, "early") for scores in LINEAR_SIZES]
    result = {
        "command": "python benchmarks/loss_speed.py",
        "machine": machine,
        "torch": torch.__version__,
        "unit": "ms, forward + backward, fastest of several repeats in three processes",
        "rows": rows,
        "growth": growth,
    }
    (ROOT / "results/loss_speed.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "results/loss_speed.md").write_text(markdown(result))
    plot(rows, growth)


def line(row: dict[str, object]) -> str:
    times = "  ".join(f"{name} {row[name]:.2f}" for name in COLUMNS if name in row)
    ratio = row["paploss"] / row["focal"]  # type: ignore[operator]
    return f"{row['scores']:>9,} x {row['positives']:<5} {row['phase']}: {times} ms; {ratio:.2f}x focal"


def markdown(result: dict[str, object]) -> str:
    def cell(row: dict[str, float], name: str) -> str:
        return f"{row[name]:,.1f}" if name in row else "-"

    lines = [
        "# Time of the loss",
        "",
        f"`{result['command']}` on {result['machine']}, torch {result['torch']}; {result['unit']}.",
        "*early*: every negative is within the margin of the positives; *late*: one in a thousand.",
        "*plain* is paploss without numba. *dense* and *AP loop* are left out where they need minutes"
        " or tens of gigabytes.",
        "",
        "| scores x positives | phase | paploss | plain | focal | dense | AP loop | paploss / focal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:  # type: ignore[attr-defined]
        cells = " | ".join(cell(row, name) for name in COLUMNS)
        lines.append(
            f"| {row['scores']:,} x {row['positives']} | {row['phase']} | {cells} "
            f"| {row['paploss'] / row['focal']:.2f} |"
        )
    lines += ["", "Time grows linearly in the number of scores (500 positives, early):", ""]
    lines += ["| scores | paploss | focal | paploss, ns a score |", "|---|---|---|---|"]
    for row in result["growth"]:  # type: ignore[attr-defined]
        lines.append(
            f"| {row['scores']:,} | {row['paploss']:.1f} | {row['focal']:.1f} "
            f"| {1e6 * row['paploss'] / row['scores']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: list[dict[str, float]], growth: list[dict[str, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    early = [row for row in rows if row["phase"] == "early"]
    labels = {"paploss": "paploss (exact)", "plain": "paploss without numba", "focal": "focal loss"}
    labels |= {"dense": "dense formula", "ap loop": "AP loss, loop over positives"}
    for name in COLUMNS:
        points = [(row["scores"], row[name]) for row in early if name in row]
        axes.loglog(*zip(*points, strict=True), "o-", label=labels[name])
    axes.set(xlabel="scores in the mini-batch", ylabel="ms, forward + backward (2 CPU cores)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(ROOT / "docs/figures/loss_speed.png", dpi=130)


if __name__ == "__main__":
    main()

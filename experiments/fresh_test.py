"""Is the searched loss ahead of the published one on images that nobody has looked at?

The test split was seen before the last search was set up (results/README.md). So the trained detectors
of both losses, all seeds, are judged once more on 4,000 images of another seed of the generator. Needs
the checkpoints that `experiments/losses.py retinanet` leaves in runs/.

    python experiments/fresh_test.py     # results/tables/fresh_test.{json,md}
"""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ProcessPoolExecutor

import torch
from losses import PUBLISHED, RATE, RETINANET, ROOT, SEEDS, Row, difference, searched

from paploss.data.detect import load_dataset
from paploss.detectors.inference import detect
from paploss.evaluation.coco import evaluate_coco
from paploss.training.loop import evaluation_batches
from paploss.training.trained import load_detector

IMAGES, GENERATOR_SEED = 4000, 1


def judge(run: str) -> float:
    torch.set_num_threads(1)
    trained = load_detector(ROOT / "runs" / RETINANET / run / "checkpoints/last.pt")
    data = load_dataset("shapes", "test", images=IMAGES, size=128, seed=GENERATOR_SEED)
    batches = evaluation_batches(data, trained.config.batch_size, 0)
    found = detect(trained.model, batches, trained.device)
    return 100 * evaluate_coco(data.ground_truth(), found).to_dict()["metrics"]["AP"]


def main() -> None:
    rows = {"searched": searched("retinanet", {}), "published": Row("", RETINANET, PUBLISHED)}
    runs = [
        f"{row.name(seed)}-lr{RATE[RETINANET]:g}-seed{seed}"
        for row in rows.values()
        for seed in SEEDS
    ]
    with ProcessPoolExecutor(2) as pool:
        values = list(pool.map(judge, runs))
    ap = {label: values[k * len(SEEDS) :][: len(SEEDS)] for k, label in enumerate(rows)}
    (ROOT / "results/tables/fresh_test.json").write_text(json.dumps(ap, indent=1) + "\n")
    lines = [
        "# RetinaNet on images that nobody has looked at",
        "",
        f"`python experiments/fresh_test.py`: the detectors of [retinanet.md](retinanet.md), seeds"
        f" {', '.join(map(str, SEEDS))}, on {IMAGES:,} images of another seed of the generator; x86_64, CPU.",
        "",
        "| loss | AP | by seed |",
        "|---|---|---|",
    ]
    for label, of in ap.items():
        told = ", ".join(f"{value:.1f}" for value in of)
        lines.append(
            f"| {label} | {statistics.mean(of):.1f} ± {statistics.stdev(of):.1f} | {told} |"
        )
    gain = difference(ap["searched"], ap["published"])
    lines += ["", f"Searched less published, by seed: {gain} (95% interval, Student's t)."]
    (ROOT / "results/tables/fresh_test.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

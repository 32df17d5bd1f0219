"""Runs to report on: a small real search, and files written by hand for all that is out of the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from paploss.search.config import SearchConfig
from paploss.search.executors import Trial
from paploss.search.objective import Outcome
from paploss.search.run import run_search
from tests.search.tasks import quality

HOSTILE = "<script>alert(1)</script>"


class Uneven:
    """A smooth reward; every fifth trial collapses."""

    trials = 0

    def run(self, job: Trial, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        self.trials += 1
        if self.trials % 5 == 0:
            return Outcome(0.0, "collapsed", 1.0, "the loss is nan")
        return Outcome(0.4 * quality(job.heads), "complete", 2.0)


def uneven(config: str) -> Uneven:
    return Uneven()


def make_search(directory: Path, **sections: Any) -> Path:
    """Search with a task that takes no time, then train for a few steps with two losses."""
    content = {
        "train": {
            "detector": {"weights": "shapes"},
            "data": {"images": 16, "evaluation_images": 8},
            "batch_size": 8,
            "epochs": 1,
        },
        "space": {"init": "linear"},
        "sampler": {"rounds": 4, "samples": 4},
        "executor": {"workers": 0},
    }
    config = SearchConfig.model_validate(content | sections)
    run_search(config, directory, make_task=uneven)
    return directory


def write_run(
    run: Path, data: Path, *, seed: int = 0, loss: str = "focal+l1", ap: float = 0.4
) -> Path:
    """A finished training of one class whose name is hostile, and whose only box is found."""
    run.mkdir(parents=True)
    settings = {
        "detector": {"name": "retinanet"},
        "data": {
            "path": str(data),
            "train_split": "train",
            "evaluation_split": "val",
            "test_split": "test",
            "evaluation_images": 10,
            "size": 32,
            "seed": 0,
        },
        "loss": {"name": loss, "parameters": None},
        "epochs": 2,
        "seed": seed,
    }
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    (run / "metrics.csv").write_text(
        "step,epoch,loss,learning_rate,gradient_norm,class_gradient,box_gradient,"
        "images_per_second,seconds,AP\n"
        "10,1.0,0.9,0.002,1.5,0.1,0.3,50,4.0,\n"
        "20,2.0,0.6,0.001,1.2,0.1,0.2,50,8.0,\n"
        f"20,2.0,,,,,,,,{ap}\n"
    )
    metrics = dict.fromkeys(("AP", "AP50", "AP75", "APs"), ap) | {"APl": -1.0}
    recall = [round(0.01 * k, 2) for k in range(101)]
    figures = {
        "metrics": metrics,
        "per_class": {HOSTILE: ap},
        "ap_by_iou": {f"{0.5 + 0.05 * k:.2f}": ap * (1 - k / 10) for k in range(10)},
        "precision_recall": {
            "recall": recall,
            "precision50": [1 - r for r in recall],
            "precision75": [0.5 * (1 - r) for r in recall],
        },
    }
    (run / "evaluation.json").write_text(json.dumps({"evaluation": figures, "test": figures}))
    boxes = [[4, 4, 16, 16], [5 + seed, 4, 16, 16], [6, 5, 16, 16], [1, 20, 8, 8]]
    found = [
        {"image_id": 1, "category_id": 0, "bbox": box, "score": 0.9 - 0.2 * k}
        for k, box in enumerate(boxes)
    ]
    (run / "detections.json").write_text(json.dumps(found))
    return run


def write_data(folder: Path, class_name: str = HOSTILE) -> Path:
    """A COCO folder with one image of 32 x 32 pixels in each split, and one box in it."""
    for split in ("train", "val", "test"):
        (folder / split).mkdir(parents=True)
        Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(folder / split / "a.png")
        content = {
            "images": [{"id": 1, "file_name": "a.png", "width": 32, "height": 32}],
            "categories": [{"id": 1, "name": class_name}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 4, 16, 16],
                             "area": 256, "iscrowd": 0}],
        }  # fmt: skip
        (folder / split / "_annotations.coco.json").write_text(json.dumps(content))
    return folder

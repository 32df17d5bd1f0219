"""Search a loss for the images of a folder, train with it, and compare it on the test split.

    python examples/search_folder.py
    python examples/search_folder.py my_folder --rounds 20 --samples 8 --epochs 15 --run runs/mine

Without a folder, one with generated images in COCO's layout is written first. It is what
`paploss search --data my_folder` does, as a program.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from PIL import Image

from paploss.data import shapes
from paploss.search.config import SearchConfig
from paploss.search.run import run_search


def write_coco_folder(folder: Path, images: int) -> None:
    """Generated images as a COCO data set: annotations/instances_SPLIT.json and SPLIT/*.png."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        data = shapes(split, images=images, size=128)
        content = data.ground_truth()
        (folder / split).mkdir(exist_ok=True)
        for number, item in enumerate(content["images"]):
            item["file_name"] = f"{item['id']}.png"
            picture, _ = data[number]
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(
                folder / split / item["file_name"]
            )
        (folder / f"annotations/instances_{split}.json").write_text(json.dumps(content))


def main() -> None:
    parser = argparse.ArgumentParser(description="Search a loss for a folder of images.")
    parser.add_argument("folder", type=Path, nargs="?", help="COCO, PASCAL VOC or YOLO layout")
    parser.add_argument("--run", type=Path, default=Path("runs/example"))
    parser.add_argument("--images", type=int, default=16, help="of a generated folder, per split")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1, help="of the final trainings")
    parser.add_argument("--workers", type=int, default=0, help="trials at once; 0: this process")
    arguments = parser.parse_args()

    folder = arguments.folder
    if folder is None:
        folder = arguments.run / "data"
        if not folder.exists():
            write_coco_folder(folder, arguments.images)
    config = SearchConfig.model_validate(
        {
            "train": {
                "detector": {"name": "retinanet", "size": "tiny", "weights": "shapes"},
                "data": {"path": str(folder)},
                "epochs": arguments.epochs,
                "batch_size": 8,
            },
            "space": {"safe": True},
            "sampler": {"rounds": arguments.rounds, "samples": arguments.samples},
            "executor": {"workers": arguments.workers},
        }
    )
    result = run_search(
        config,
        arguments.run / "search",
        on_trial=lambda seen: print(f"trial {seen.trials}/{seen.of_trials}: best {seen.best:.3f}"),
    )
    for loss, row in result["losses"].items():
        print(f"{loss}: test AP {100 * row['AP']['mean']:.1f}")
    print(f"the loss: {arguments.run / 'search/best.loss.json'}")


if __name__ == "__main__":
    main()

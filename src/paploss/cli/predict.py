"""``paploss predict``: detections of images, as annotated pictures and a COCO json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def predict(
    checkpoint: Annotated[Path, typer.Argument(help="A run's checkpoints/*.pt.")],
    images: Annotated[list[Path], typer.Argument(help="Image files or folders of them.")],
    out: Annotated[Path, typer.Option(help="Where pictures and detections.json go.")] = Path(
        "predictions"
    ),
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Draw detections of at least this probability.")
    ] = 0.5,
) -> None:
    """Detect objects; detections.json holds all of them, the pictures those above the threshold."""
    from paploss.training.trained import annotate, load_detector, read_image

    files = [
        file
        for path in images
        for file in (
            sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES)
            if path.is_dir()
            else [path]
        )
    ]
    if not files:
        raise typer.BadParameter(f"no images in {', '.join(map(str, images))}")
    trained = load_detector(checkpoint)
    out.mkdir(parents=True, exist_ok=True)
    found = []
    console = Console()
    for image_id, file in enumerate(files):
        image = read_image(file)
        boxes, labels, probabilities = trained.predict(image)
        drawn = annotate(image, boxes, labels, probabilities, trained.class_names, threshold)
        drawn.save(out / f"{file.stem}.png")
        for (x1, y1, x2, y2), label, score in zip(
            boxes.tolist(), labels.tolist(), probabilities.tolist(), strict=True
        ):
            found.append(
                {
                    "image_id": image_id,
                    "file_name": str(file),
                    "category_id": label,
                    "category": trained.class_names[label],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "score": score,
                }
            )
        shown = int((probabilities >= threshold).sum())
        console.print(f"{escape(str(file))}: {shown} objects", highlight=False)
    (out / "detections.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    console.print(f"wrote {len(files)} pictures and detections.json to {escape(str(out))}")

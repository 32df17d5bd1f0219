"""``paploss demo``: watch the AP of a toy batch rise as the loss moves its boxes and scores."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paploss import ParameterizedAPLoss, load_preset
from paploss.evaluation.coco import coco_metrics

IMAGES, CLASSES, OBJECTS, CANDIDATES, SIZE = 8, 3, 5, 40, 128
PRESET = "retinanet-r50-fpn-coco-tied"


def demo() -> None:
    """Fit the boxes and scores of a toy batch with the loss and print the AP."""
    console = Console()
    torch.manual_seed(0)
    ground_truth, boxes, labels, targets = _toy_batch()
    logits = (torch.randn(IMAGES * CANDIDATES, CLASSES) - 2).requires_grad_()
    boxes.requires_grad_()
    loss_function = ParameterizedAPLoss(load_preset(PRESET))
    optimizer = torch.optim.Adam([{"params": [logits], "lr": 0.05}, {"params": [boxes], "lr": 0.5}])
    console.print(
        f"{IMAGES} images, {IMAGES * OBJECTS} objects, {logits.numel()} scores, preset {PRESET}"
    )
    table = Table("step", "loss", "AP", "AP50", "AP75", box=None, header_style="bold")
    for step in range(201):
        loss = loss_function(logits, labels, boxes, targets)
        if step % 25 == 0:
            metrics = coco_metrics(ground_truth, _detections(logits, boxes))
            figures = (f"{100 * metrics[name]:.1f}" for name in ("AP", "AP50", "AP75"))
            table.add_row(str(step), f"{loss.item():.3f}", *figures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    console.print(table)


def _toy_batch() -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
    """Ground truth, and candidates around its objects: boxes, labels, target boxes, (N, ...) each."""
    corner = torch.rand(IMAGES, OBJECTS, 2) * SIZE * 0.7
    truth = torch.cat([corner, corner + SIZE * (0.1 + 0.2 * torch.rand(IMAGES, OBJECTS, 2))], 2)
    classes = torch.randint(CLASSES, (IMAGES, OBJECTS))
    annotations = [
        {
            "id": 1 + image * OBJECTS + index,
            "image_id": image,
            "category_id": int(classes[image, index]),
            **_coco_box(truth[image, index]),
            "iscrowd": 0,
        }
        for image in range(IMAGES)
        for index in range(OBJECTS)
    ]
    ground_truth = {
        "images": [{"id": image} for image in range(IMAGES)],
        "categories": [{"id": index} for index in range(CLASSES)],
        "annotations": annotations,
    }
    nearest = torch.arange(CANDIDATES) % OBJECTS
    targets = truth[:, nearest].reshape(-1, 4)
    # One candidate an object is its match, the others are background.
    labels = torch.where(torch.arange(CANDIDATES) < OBJECTS, classes[:, nearest], -1).reshape(-1)
    boxes = targets + torch.randn_like(targets) * SIZE * 0.06
    return ground_truth, boxes, labels, targets


def _detections(logits: Tensor, boxes: Tensor) -> list[dict[str, Any]]:
    scores, classes = logits.detach().sigmoid().max(1)
    return [
        {
            "image_id": index // CANDIDATES,
            "category_id": int(classes[index]),
            "score": float(scores[index]),
            **_coco_box(box),
        }
        for index, box in enumerate(boxes.detach())
    ]


def _coco_box(box: Tensor) -> dict[str, Any]:
    x1, y1, x2, y2 = box.tolist()
    return {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}

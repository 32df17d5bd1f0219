"""Train the backbone and feature pyramid that tiny detectors may start from (`detector.weights: shapes`).

The paper's detectors start from ImageNet; here the same small ResNet learns, on images of `shapes` that
no other split holds, to say of every cell of its feature maps which shape covers it. That is no
detection loss, so it favours none. A few minutes on one CPU core.

    python experiments/pretrain_backbone.py     # src/paploss/detectors/weights/shapes-test_resnet.pt

The file holds the state dict of the backbone as timm has it, and that of the feature pyramid (fpn.*).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from paploss.data import load_dataset
from paploss.data.shapes import CLASSES
from paploss.data.transforms import training_transform
from paploss.detectors import detector_config
from paploss.detectors.backbones import build_backbone
from paploss.training.batches import steps_per_epoch, training_batches

OUTPUT = Path(__file__).parent.parent / "src/paploss/detectors/weights/shapes-test_resnet.pt"
BACKGROUND = len(CLASSES)
SIZE, BATCH, RATE = 128, 32, 3e-3


def cell_labels(boxes: Tensor, labels: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """The class of every cell of a feature map and its weight, (cells, cells) each.

    The middle of each object of about the map's scale has the object's class, the rest of the objects
    is left out. Objects weigh the same whatever their size, and together as much as the background.
    """
    stride = SIZE / cells
    centres = (torch.arange(cells) + 0.5) * stride
    classes = torch.full((cells, cells), BACKGROUND)
    weights = torch.ones(cells, cells)
    sides = boxes[:, 2:] - boxes[:, :2]
    own = (sides.amax(1) / stride).log2().sub(2).abs() <= 1.2  # 2 to 9 cells
    for index in sides.prod(1).argsort(descending=True).tolist():
        middle, half = (boxes[index, :2] + boxes[index, 2:]) / 2, sides[index] / 2

        def within(share: float, middle: Tensor = middle, half: Tensor = half) -> Tensor:
            x, y = ((centres - c).abs() <= (share * h).clamp(min=stride / 2)
                    for c, h in zip(middle, half, strict=True))  # fmt: skip
            return y[:, None] & x

        weights[within(1.0)] = 0
        if own[index]:
            inner = within(0.4)
            classes[inner] = labels[index]
            weights[inner] = 1 / inner.sum().clamp(min=1)
    background = classes == BACKGROUND
    weights[background] *= 1 / weights[background].sum().clamp(min=1)
    return classes, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    torch.manual_seed(0)
    images = load_dataset("shapes", "pretrain", images=options.images, size=SIZE, seed=0)
    images.transform = training_transform("flip", SIZE)
    config = detector_config(name="retinanet", size="tiny", weights="none")
    pyramid = build_backbone(config).to(memory_format=torch.channels_last)
    classify = nn.Conv2d(config.channels, len(CLASSES) + 1, 1)
    learned = [*pyramid.parameters(), *classify.parameters()]
    steps = options.epochs * steps_per_epoch(len(images), BATCH)
    optimizer = torch.optim.AdamW(learned, lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]  # as torchvision's detectors do
    spread = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    start = time.perf_counter()
    batches = training_batches(
        images, batch_size=BATCH, seed=0, first_step=0, steps=steps, workers=0
    )
    for step, (batch, targets) in enumerate(batches, 1):
        maps = pyramid(((torch.stack(batch) - mean) / spread).to(memory_format=torch.channels_last))
        losses, right = [], []
        for level in pyramid.levels:
            logits = classify(maps[level])
            wanted, weights = (
                torch.stack(part)
                for part in zip(
                    *(cell_labels(t["boxes"], t["labels"], logits.shape[-1]) for t in targets),
                    strict=True,
                )
            )
            each = nn.functional.cross_entropy(logits, wanted, reduction="none")
            losses.append((each * weights).sum() / weights.sum())
            covered = wanted != BACKGROUND
            right.append((logits.argmax(1) == wanted)[covered].float().mean())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            figures = ", ".join(
                f"{loss.item():.2f} ({100 * float(share):.0f}% of objects' cells right)"
                for loss, share in zip(losses, right, strict=True)
            )
            print(f"{step}/{steps} {time.perf_counter() - start:.0f} s: {figures}", flush=True)
    state = {
        name.removeprefix("body.model."): value.half() if value.is_floating_point() else value
        for name, value in pyramid.state_dict().items()
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    torch.save(state, OUTPUT)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""The loss alone, with a network, a matching and a loop of your own.

    python examples/own_loop.py
    python examples/own_loop.py --epochs 20 --images 500

A small grid detector: every cell of an 8-pixel grid gives one score a class and one box. A cell is
positive if the centre of an object lies in it. That is all the loss has to know.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paploss import ParameterizedAPLoss, load_preset
from paploss.data import collate, shapes, training_transform

CELL, SIDE = 8, 128


class GridDetector(nn.Module):
    """Images (B, 3, 128, 128) to scores (B, 256, C) and boxes (B, 256, 4), a row a cell."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):  # each halves the image
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU())
        self.scores = nn.Conv2d(128, classes, 1)
        self.sides = nn.Conv2d(128, 4, 1)  # distances of the sides from the cell's centre
        middles = torch.arange(CELL / 2, SIDE, CELL)
        y, x = torch.meshgrid(middles, middles, indexing="ij")
        self.register_buffer("centres", torch.stack([x, y], -1).reshape(-1, 2))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        scores = self.scores(features).flatten(2).transpose(1, 2)
        left_top, right_bottom = (
            self.sides(features).flatten(2).transpose(1, 2).exp() * CELL
        ).split(2, dim=2)
        return scores, torch.cat([self.centres - left_top, self.centres + right_bottom], 2)


def match(targets: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Label (cells,) and target box (cells, 4) of every cell of all images; -1 is background."""
    columns = SIDE // CELL
    labels = torch.full((len(targets), columns * columns), -1)
    boxes = torch.zeros(*labels.shape, 4)
    for image, target in enumerate(targets):
        column, row = ((target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2 // CELL).long().T
        cells = (row.clamp(0, columns - 1) * columns + column.clamp(0, columns - 1)).tolist()
        for cell, label, box in zip(cells, target["labels"], target["boxes"], strict=True):
            labels[image, cell], boxes[image, cell] = label, box
    return labels.flatten(), boxes.flatten(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="The loss in a loop of your own.")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--loss", default="retinanet-r50-fpn-coco-tied", help="a preset")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = shapes(
        "train",
        images=arguments.images,
        size=SIDE,
        transform=training_transform("flip", SIDE),
    )
    batches = DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate)
    model = GridDetector(len(data.class_names))
    criterion = ParameterizedAPLoss(load_preset(arguments.loss))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(arguments.epochs):
        total = 0.0
        for images, targets in batches:
            scores, boxes = model(torch.stack(images))
            labels, target_boxes = match(targets)
            # All cells of all images at once: the loss ranks the mini-batch as a whole.
            loss = criterion(scores.flatten(0, 1), labels, boxes.flatten(0, 1), target_boxes)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.3f}")


if __name__ == "__main__":
    main()

"""A torchvision detector trained with the loss: `attach` is the only new line.

python examples/torchvision_model.py
python examples/torchvision_model.py --loss focal+giou --steps 200 --images 500

The weights are fresh, so that nothing is downloaded; a pretrained model takes the loss the same way.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from paploss.criteria import CRITERIA, build_criterion
from paploss.data import collate, shapes, training_transform
from paploss.detectors import attach


def main() -> None:
    parser = argparse.ArgumentParser(description="torchvision's RetinaNet with any loss.")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--loss", default="pap", choices=CRITERIA)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = shapes("train", images=arguments.images, transform=training_transform("flip", 128))
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=torch.nn.BatchNorm2d
    )
    model = RetinaNet(backbone, len(data.class_names), min_size=128, max_size=128)

    attach(model, build_criterion(arguments.loss))

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    batches = DataLoader(
        data, batch_size=arguments.batch_size, shuffle=True, drop_last=True, collate_fn=collate
    )
    model.train()
    step = 0
    while step < arguments.steps:
        for images, targets in batches:
            losses = model(images, targets)  # a dict, as torchvision's models return
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step}: " + ", ".join(f"{k} {v:.3f}" for k, v in losses.items()))
            if step == arguments.steps:
                break

    model.eval()
    with torch.no_grad():
        found = model(images[:1])[0]
    print(f"detections in an image: {len(found['scores'])}, kept by rank")


if __name__ == "__main__":
    main()

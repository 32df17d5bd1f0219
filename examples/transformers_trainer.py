"""A transformers detector and its `Trainer`, with the loss attached to the model.

    python examples/transformers_trainer.py
    python examples/transformers_trainer.py --steps 500 --images 500

The model is a small Deformable DETR with fresh weights, so that nothing is downloaded;
`DeformableDetrForObjectDetection.from_pretrained(...)` takes the loss in the same way.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_convert
from transformers import (
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    Trainer,
    TrainingArguments,
)

from paploss.criteria import build_criterion
from paploss.data import shapes, training_transform
from paploss.detectors import attach

SIDE = 128


def collate(items: list[tuple[Tensor, dict[str, Any]]]) -> dict[str, Any]:
    """A batch as transformers takes it: boxes are cx, cy, w, h in parts of the image."""
    images = torch.stack([image.as_subclass(Tensor) for image, _ in items])
    labels = [
        {
            "class_labels": target["labels"],
            "boxes": box_convert(target["boxes"].as_subclass(Tensor), "xyxy", "cxcywh") / SIDE,
        }
        for _, target in items
    ]
    mask = torch.ones(len(items), SIDE, SIDE, dtype=torch.long)
    return {"pixel_values": images, "pixel_mask": mask, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description="The transformers Trainer with the loss.")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = shapes("train", images=arguments.images, transform=training_transform("flip", SIDE))
    config = DeformableDetrConfig(
        backbone_config={
            "model_type": "timm_backbone",
            "backbone": "test_resnet",
            "out_indices": [3, 4],
        },
        num_labels=len(data.class_names),
        num_feature_levels=2,
        num_queries=30,
        d_model=64,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        auxiliary_loss=True,
        disable_custom_kernels=True,
    )
    model = DeformableDetrForObjectDetection(config)

    attach(model, build_criterion("pap"))

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=4,
            learning_rate=2e-4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,  # images and boxes are no columns that it knows
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        )
        Trainer(model, settings, data_collator=collate, train_dataset=data).train()


if __name__ == "__main__":
    main()

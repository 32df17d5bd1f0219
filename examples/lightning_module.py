"""A Lightning module around a detector that trains with the loss.

pip install lightning
python examples/lightning_module.py
python examples/lightning_module.py --steps 500 --images 500
"""

from __future__ import annotations

import argparse
import logging
import warnings

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from paploss.criteria import build_criterion
from paploss.data import collate, shapes, training_transform
from paploss.detectors import build_detector, detector_config


class Detector(lightning.LightningModule):
    """Any torchvision detector would do; here it is the tiny RetinaNet that paploss builds."""

    def __init__(self, classes: int, loss: str = "pap") -> None:
        super().__init__()
        config = detector_config(name="retinanet", size="tiny", weights="shapes")
        self.model = build_detector(config, classes, build_criterion(loss))

    def training_step(self, batch: tuple[list[Tensor], list[dict[str, Tensor]]]) -> Tensor:
        images, targets = batch
        losses = self.model(images, targets)
        loss = sum(losses.values())
        self.log("loss", loss, batch_size=len(images))
        print(f"step {self.global_step + 1}: loss {loss:.3f}")
        return loss

    def on_train_epoch_end(self) -> None:
        self.model.criterion.end_epoch()  # aLRP's self-balance needs it, other losses do not

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lightning with the loss.")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--loss", default="pap")
    arguments = parser.parse_args()

    # Lightning advises more loading processes; in-memory images need none.
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # of its own making
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    data = shapes("train", images=arguments.images, transform=training_transform("flip", 128))
    batches = DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate)
    trainer = lightning.Trainer(
        max_steps=arguments.steps,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=10.0,
    )
    trainer.fit(Detector(len(data.class_names), arguments.loss), batches)


if __name__ == "__main__":
    main()

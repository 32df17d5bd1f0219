"""A trained detector: loaded from a checkpoint, with scores that are probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError
from torch import Tensor, nn
from torchvision.transforms.v2.functional import pil_to_tensor

from paploss.detectors import build_detector
from paploss.evaluation.calibration import Calibration
from paploss.training.checkpoint import load_checkpoint
from paploss.training.config import TrainConfig
from paploss.training.loop import make_criteria

_COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


@dataclass
class TrainedDetector:
    """A model ready to detect."""

    model: nn.Module
    config: TrainConfig
    class_names: list[str]
    calibration: Calibration
    device: torch.device

    @torch.no_grad()
    def predict(self, image: Image.Image) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes (n, 4) x1, y1, x2, y2, labels (n,) and calibrated probabilities (n,) of an image."""
        tensor = pil_to_tensor(image).to(self.device).float() / 255
        output = self.model([tensor])[0]
        logits = output["scores"].double().logit(eps=1e-15)
        return output["boxes"].cpu(), output["labels"].cpu(), self.calibration(logits).cpu()


def load_detector(path: Path | str, device: torch.device | str | None = None) -> TrainedDetector:
    """The detector of a checkpoint, in evaluation mode."""
    content = load_checkpoint(path)
    config = TrainConfig.model_validate(content["config"])
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    detector = config.detector.model_copy(update={"weights": "none"})  # the checkpoint has them all
    criteria = make_criteria(config.loss, detector)
    model = build_detector(detector, len(content["class_names"]), criteria)
    model.load_state_dict(content["model"])
    return TrainedDetector(
        model.eval().to(device),
        config,
        content["class_names"],
        Calibration(**content.get("calibration", {})),
        torch.device(device),
    )


def read_image(path: Path | str) -> Image.Image:
    """An RGB image, turned as its camera says."""
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path}: not a readable image: {error}") from None


def annotate(
    image: Image.Image,
    boxes: Tensor,
    labels: Tensor,
    probabilities: Tensor,
    class_names: list[str],
    threshold: float,
) -> Image.Image:
    """The image with boxes, names and probabilities of detections above a threshold."""
    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    width = max(1, round(max(image.size) / 400))
    for box, label, probability in zip(
        boxes.tolist(), labels.tolist(), probabilities.tolist(), strict=True
    ):
        if probability < threshold:
            continue
        colour = _COLOURS[label % len(_COLOURS)]
        draw.rectangle(box, outline=colour, width=width)
        text = f"{class_names[label]} {probability:.2f}"
        corner = (box[0], max(0, box[1] - 11))
        draw.rectangle(draw.textbbox(corner, text), fill=colour)
        draw.text(corner, text, fill="white")
    return drawn

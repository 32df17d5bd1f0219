"""How lists of images become batches."""

from __future__ import annotations

from torch import Tensor
from torchvision.models.detection.transform import GeneralizedRCNNTransform

Targets = list[dict[str, Tensor]]


class ResizeForEvaluation(GeneralizedRCNNTransform):
    """Normalises and batches images; resizes them in evaluation only: augmentation made them fit."""

    def __init__(self, short_side: int, long_side: int) -> None:
        # Mean and deviation of ImageNet, torchvision's own default.
        super().__init__(short_side, long_side, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def resize(
        self, image: Tensor, target: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        if self.training:
            return image, target
        resized: tuple[Tensor, dict[str, Tensor] | None] = super().resize(image, target)
        return resized

"""A small batch, and a criterion that keeps what reaches it."""

from __future__ import annotations

import torch
from torch import Tensor

from paploss.criteria import Criterion, MatchedPredictions
from paploss.loss.parameterized_ap import Positives


class Recorder(Criterion):
    """Keeps the last matched predictions in ``seen``; its loss touches both branches."""

    ranking = True

    def __init__(self, score: str = "sigmoid") -> None:
        super().__init__()
        self.score = score  # type: ignore[assignment]

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        self.seen = matched
        return {"recorded": matched.logits.square().mean() + matched.box_deltas.square().sum()}


def batch(first_label: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Three images: two objects, none, and one as large as the image."""
    generator = torch.Generator().manual_seed(1)
    images = [torch.rand(3, 128, 128, generator=generator) for _ in range(3)]
    targets = [
        {
            "boxes": torch.tensor([[10.0, 10.0, 40.0, 50.0], [60.0, 20.0, 120.0, 90.0]]),
            "labels": torch.tensor([0, 2]) + first_label,
        },
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
        {
            "boxes": torch.tensor([[0.0, 0.0, 128.0, 128.0]]),
            "labels": torch.tensor([1]) + first_label,
        },
    ]
    return images, targets


def crowded(count: int, first_label: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """One image with many objects."""
    generator = torch.Generator().manual_seed(2)
    corners = torch.rand(count, 2, generator=generator) * 100
    sizes = 5 + torch.rand(count, 2, generator=generator) * 20
    labels = torch.randint(0, 3, (count,), generator=generator) + first_label
    return [torch.rand(3, 128, 128, generator=generator)], [
        {"boxes": torch.cat([corners, corners + sizes], 1), "labels": labels}
    ]

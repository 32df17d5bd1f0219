"""Criterion: what every loss promises to the detectors and to the training loop."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from paploss.criteria.matched import MatchedPredictions
from paploss.loss.parameterized_ap import Positives, find_positives


class Criterion(nn.Module):
    """A loss over matched predictions: a dict of named losses whose sum is minimised.

    Without positives, or without predictions at all, every criterion returns finite losses that
    still belong to the graph.

    Attributes:
        score: which score the head trains. With ``softmax`` the logits have one column more, the
            last, for background.
        ranking: True if only differences of scores mean something, so that a fixed threshold on
            scores does not.
        weight: factor of all losses of this head, beside those of a detector's other heads.
    """

    score: Literal["sigmoid", "softmax"] = "sigmoid"
    ranking: bool = False
    weight: float = 1.0

    def forward(self, matched: MatchedPredictions) -> dict[str, Tensor]:
        positives = self.find_positives(matched)
        # Losses are sums over the whole batch: half precision is too coarse for them.
        with torch.autocast(matched.logits.device.type, enabled=False):
            losses = self.losses(matched, positives)
            return {name: loss * self.weight for name, loss in losses.items()}

    def losses(self, matched: MatchedPredictions, positives: Positives) -> dict[str, Tensor]:
        """The named losses; what a criterion has to define."""
        raise NotImplementedError

    def end_epoch(self) -> None:
        """To be called after every epoch of training; most criteria learn nothing from it."""

    def find_positives(self, matched: MatchedPredictions) -> Positives:
        """Rows and classes of the positives; a `ValueError` names what does not fit together."""
        logits = matched.logits
        if self.score == "softmax" and logits.dim() == 2:
            if logits.shape[1] < 2:
                raise ValueError(
                    "logits: expected a column for each class and one for background, "
                    f"found {logits.shape[1]}"
                )
            logits = logits[:, :-1]
        positives = find_positives(logits, matched.labels)
        for name in ("predicted_boxes", "target_boxes", "box_deltas", "target_deltas"):
            boxes = getattr(matched, name)
            if boxes.shape != (len(positives.rows), 4) or not boxes.is_floating_point():
                raise ValueError(
                    f"{name}: expected a floating-point tensor of shape ({len(positives.rows)}, 4), "
                    f"one row a positive, found {boxes.dtype} of shape {tuple(boxes.shape)}"
                )
        return positives


def positives_or_one(positives: Positives) -> int:
    """How many positives there are, for a mean over them; 1 if there are none."""
    return max(1, len(positives.rows))

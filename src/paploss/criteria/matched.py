"""MatchedPredictions: the one place where any detector meets any loss."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class MatchedPredictions(NamedTuple):
    """A head's predictions of a whole mini-batch, matched to their targets.

    N predictions (anchors, proposals or queries) of all images and levels together, P of them
    positive. What concerns boxes is given for the positives only, in the order of their rows.
    """

    logits: Tensor  # (N, C) raw scores; C + 1 columns, the last for background, under a softmax
    labels: Tensor  # (N,) int64: class of a positive, -1 background, -2 ignored
    predicted_boxes: Tensor  # (P, 4) x1, y1, x2, y2
    target_boxes: Tensor  # (P, 4)
    box_deltas: Tensor  # (P, 4) what the box branch puts out, in its own code
    target_deltas: Tensor  # (P, 4) the target boxes in that code

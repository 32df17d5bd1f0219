"""Sigmoid scores for torchvision's models that read theirs by a softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_logits(probabilities: Tensor) -> Tensor:
    """Logits whose softmax gives each class its own probability divided by the number of classes.

    That factor is the same for all predictions and classes, so their order stays. What is left of
    the whole goes to a first column, that of background.

    Args:
        probabilities: (..., C), each between 0 and 1; they need not add up to 1.

    Returns:
        (..., C + 1)

    Example:
        >>> softmax_logits(torch.tensor([0.9, 0.5])).softmax(0)[1:] * 2
        tensor([0.9000, 0.5000])
    """
    rest = probabilities.shape[-1] - probabilities.sum(-1, keepdim=True)
    return torch.cat([rest.clamp(min=0), probabilities], -1).log()


def keep_best(probabilities: Tensor, count: int) -> Tensor:
    """The highest probabilities of an image as they are, all others 0; (N, C) -> (N, C)."""
    if probabilities.numel() <= count:
        return probabilities
    lowest = probabilities.flatten().topk(count).values[-1]
    return torch.where(probabilities >= lowest, probabilities, 0.0)

"""Scores that mean something: Platt scaling for detectors trained with a ranking loss.

A ranking loss fixes the order of scores and nothing else, so a score of 0.1 may be a sure find.
One rising map for all classes, fitted on held-out data, turns scores into probabilities of being
right and leaves every AP as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from paploss.evaluation.records import (
    Bools,
    box_iou,
    pairs_by_image_and_class,
    parse_detections,
    parse_ground_truth,
)

# The flattest map allowed, per standard deviation of the logits: scores that say nothing, or the
# opposite, about being right must still keep their order.
_SMALLEST_SLOPE = 1e-3
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Calibration:
    """The rising map ``sigmoid(scale * logit + shift)`` from raw scores to probabilities.

    Example:
        >>> calibration = Calibration(scale=2.0, shift=1.0)
        >>> calibration(torch.tensor([-0.5, 0.0]))
        tensor([0.5000, 0.7311], dtype=torch.float64)
    """

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale: expected a positive number, found {self.scale}")
        if not math.isfinite(self.shift):
            raise ValueError(f"shift: expected a finite number, found {self.shift}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities of raw scores of any shape, without gradient.

        They are float64: in float32 neighbouring scores would become equal, and lose their order.
        """
        # PyTorch's sigmoid may round one and the same number differently at two places of a tensor
        # (vector and scalar code). Taken once for each score, equal scores stay equal, and the
        # running maximum keeps all others from changing places.
        values, place = torch.unique(logits.detach().double(), return_inverse=True)
        if not values.numel():
            return torch.zeros_like(place, dtype=torch.float64)
        return torch.sigmoid(self.scale * values + self.shift).cummax(0).values[place]


class Marks(NamedTuple):
    """Which of N detections are right, and which are neither right nor wrong."""

    correct: Bools  # (N,)
    ignored: Bools  # (N,) matched to a crowd: leave these out of a fit


def fit_calibration(logits: Tensor | npt.ArrayLike, correct: Tensor | npt.ArrayLike) -> Calibration:
    """Platt scaling: logistic regression of being right on the raw score.

    Targets are smoothed as Platt does, (n + 1) / (n + 2) and 1 / (n + 2), which keeps the fit finite
    on separable data. With nothing right, nothing wrong or nothing at all there is nothing to
    fit: the result is the identity.

    Args:
        logits: (N,) raw scores.
        correct: (N,) bool, as `mark_correct` tells.
    """
    x = _vector(logits, "logits")
    right = _vector(correct, "correct") > 0.5
    if x.shape != right.shape:
        raise ValueError(f"correct: expected as many as logits, {len(x)}, found {len(right)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("logits: expected finite numbers, found NaN or infinity")
    positives = int(right.sum())
    negatives = len(x) - positives
    if positives == 0 or negatives == 0:
        return Calibration()
    low, high = 1 / (negatives + 2), (positives + 1) / (positives + 2)
    target = torch.where(right, high, low).double()
    mean, spread = float(x.mean()), float(x.std(correction=0))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # all the same score: only its level can be fitted
        level = float(target.mean().logit())
        return Calibration(scale=1.0, shift=level - mean)
    # With logits of mean 0 and deviation 1 the problem is as easy as it gets, whatever their range.
    slope, level = _fit_line((x - mean) / spread, target)
    return Calibration(scale=slope / spread, shift=level - slope * mean / spread)


def expected_calibration_error(
    probabilities: Tensor | npt.ArrayLike, correct: Tensor | npt.ArrayLike, *, bins: int = 15
) -> float:
    """Mean distance between probability and the fraction that is right, over equal bins.

    Args:
        probabilities: (N,) in [0, 1].
        correct: (N,) bool.
        bins: how many equal parts of [0, 1]; each weighs as many detections as it holds.
    """
    p = _vector(probabilities, "probabilities")
    right = _vector(correct, "correct")
    if p.shape != right.shape:
        raise ValueError(
            f"correct: expected as many as probabilities, {len(p)}, found {len(right)}"
        )
    if bins < 1:
        raise ValueError(f"bins: expected at least 1, found {bins}")
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError("probabilities: expected numbers within [0, 1], found others")
    if not len(p):
        return 0.0
    place = (p * bins).long().clamp(max=bins - 1)
    # Count times distance of a bin's means is the distance of its sums.
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, p - right)
    return float(gaps.abs().sum() / len(p))


def mark_correct(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], *, iou: float = 0.5
) -> Marks:
    """Which detections are true positives, matched as COCO does at one IoU threshold.

    In each image and class, by falling score, a detection takes the free object it overlaps most;
    failing that, a crowd, which can be taken by many.

    Args:
        ground_truth: COCO's format.
        detections: N of ``image_id``, ``category_id``, ``bbox`` (x, y, width, height), ``score``.
        iou: the smallest overlap that counts, in (0, 1].
    """
    if not 0 < iou <= 1:
        raise ValueError(f"iou: expected a number in (0, 1], found {iou}")
    truth = parse_ground_truth(ground_truth)
    found = parse_detections(detections, truth)
    correct = np.zeros(len(detections), dtype=bool)
    ignored = np.zeros(len(detections), dtype=bool)
    for chosen, objects in pairs_by_image_and_class(truth, found):
        crowd = truth.crowd[objects]
        overlap = box_iou(found.boxes[chosen], truth.boxes[objects], crowd)
        free = ~crowd
        threshold = min(iou, 1 - 1e-10)
        for row in np.flatnonzero(overlap.max(1) >= threshold):
            candidates = np.where(free & (overlap[row] >= threshold), overlap[row], -1.0)
            # Of equal overlaps COCO takes the last.
            best = len(candidates) - 1 - int(candidates[::-1].argmax())
            if candidates[best] >= 0:
                free[best] = False
                correct[chosen[row]] = True
            elif bool((overlap[row][crowd] >= threshold).any()):
                ignored[chosen[row]] = True
    return Marks(correct, ignored)


def _fit_line(x: Tensor, target: Tensor) -> tuple[float, float]:
    """Slope and level of least cross entropy, the slope kept positive."""
    slope, level = _newton(x, target, slope=0.0, fixed_slope=False)
    if slope < _SMALLEST_SLOPE:
        # The problem is convex: the best line that is steep enough has the smallest slope allowed.
        return _newton(x, target, slope=_SMALLEST_SLOPE, fixed_slope=True)
    return slope, level


def _newton(x: Tensor, target: Tensor, *, slope: float, fixed_slope: bool) -> tuple[float, float]:
    """Newton's method with step halving on the mean cross entropy, convex in (slope, level)."""
    features = torch.stack(
        [torch.zeros_like(x) if fixed_slope else x, torch.ones_like(x)]
    )  # (2, N)
    offset = slope * x if fixed_slope else torch.zeros_like(x)
    line = torch.stack([x.new_zeros(()), target.mean().logit()])

    def cross_entropy(candidate: Tensor) -> Tensor:
        z = offset + candidate @ features
        return (functional.softplus(z) - target * z).mean()

    value = cross_entropy(line)
    for _ in range(_NEWTON_STEPS):
        p = torch.sigmoid(offset + line @ features)
        gradient = features @ (p - target) / len(x)
        hessian = (features * (p * (1 - p))) @ features.T / len(x)
        # The little on the diagonal keeps a fixed slope, and far tails, solvable.
        step = torch.linalg.solve(hessian + 1e-12 * torch.eye(2, dtype=x.dtype), gradient)
        decrement = float(gradient @ step)
        if decrement < 1e-18:
            break
        length = 1.0
        while length > 1e-10:
            candidate = line - length * step
            candidate_value = cross_entropy(candidate)
            if candidate_value <= value - 1e-4 * length * decrement:
                break
            length /= 2
        else:
            break  # no better point within rounding
        line, value = candidate, candidate_value
    return (slope if fixed_slope else float(line[0])), float(line[1])


def _vector(values: Tensor | npt.ArrayLike, name: str) -> Tensor:
    """(N,) float64 on the CPU, without gradient."""
    if isinstance(values, Tensor):
        vector = values.detach().to("cpu", torch.float64)
    else:
        vector = torch.from_numpy(np.array(values, dtype=np.float64))
    if vector.ndim != 1:
        raise ValueError(f"{name}: expected shape (N,), found {tuple(vector.shape)}")
    return vector

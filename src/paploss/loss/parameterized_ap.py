"""The Parameterized AP Loss of eq. (6), exact over every prediction of the mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paploss.loss.gradient_scale import scale_gradient
from paploss.loss.localization import LOCALIZATION_QUALITIES
from paploss.loss.parameters import LossParameters
from paploss.loss.piecewise_linear import PiecewiseLinear
from paploss.loss.ranking_sums import FunctionTables, RankingSums, look_up

_P = ParamSpec("_P")
_R = TypeVar("_R")

BACKGROUND = -1
IGNORED = -2
_QUALITY_SLACK = 1e-3  # rounding of half-precision qualities


class _Functions(NamedTuple):
    f1: PiecewiseLinear
    f2: PiecewiseLinear
    f3: PiecewiseLinear
    f4: PiecewiseLinear
    f5: PiecewiseLinear
    of_scores: FunctionTables  # f2 and f4 side by side


class Positives(NamedTuple):
    """Where the positives of a batch are, and what is to be left out."""

    rows: Tensor  # (P,) rows of the logits
    classes: Tensor  # (P,) their columns
    ignored_rows: Tensor | None  # (N,) bool, or None when nothing is ignored


def not_traced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A graph break for `torch.compile`: sizes in here depend on the data."""
    untraced: Callable[_P, _R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return untraced


@lru_cache(maxsize=64)
def _functions_on(parameters: LossParameters, device: torch.device) -> _Functions:
    f1, f2, f3, f4, f5 = (PiecewiseLinear(points, device) for points in parameters.functions)
    return _Functions(f1, f2, f3, f4, f5, FunctionTables([f2, f4]))


class _ParameterizedAP(torch.autograd.Function):
    """1 - PAP and its gradients; comments name the terms of eq. (6).

    B is all scores. Of the sums over j != i, the kernel takes the one over all of B with weight
    ``1 - f3(0)``; what positives differ from that, and the term j = i, are put right here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,  # (N, C)
        quality: Tensor,  # (P,)
        positives: Positives,
        functions: _Functions,
        block_denominator_gradient: bool,
    ) -> Tensor:
        f1, f2, f3, f4, f5, of_scores = functions
        scores = logits[positives.rows, positives.classes]  # (P,) s_i
        ranking = RankingSums(scores, of_scores)
        intervals, everything = ranking.locate(logits, positives.ignored_rows)

        value1, slope1 = f1.value_and_slope(quality)  # f1(l_i)
        value3, slope3 = f3.value_and_slope(quality)  # f3(l_j)
        value5, slope5 = f5.value_and_slope(quality)  # f5(l_i)
        weight = 1 - value3  # of a positive j in the numerator
        background = 1 - f3.at_zero  # of every other score
        places, corrections = ranking.weigh(scores, weight - background)

        values, slopes, in_reach = ranking.sums([everything * background + corrections, everything])
        numerator = values[0] - weight * f2.at_half  # N_i, without j = i
        denominator = 1 + values[1] - f4.at_half  # D_i
        rank_error = numerator / denominator  # N_i / D_i
        not_finite = everything.sum() * 0  # NaN if any score was NaN or infinite, else 0
        loss = 1 - (value1 - rank_error * value5).mean() + not_finite

        if any(ctx.needs_input_grad[:2]):
            by_numerator = value5 / denominator / len(scores)  # d loss / d N_i
            by_denominator = -by_numerator * rank_error  # d loss / d D_i
            if block_denominator_gradient:
                by_denominator = torch.zeros_like(by_denominator)
            by_sums = torch.stack([by_numerator, by_denominator])  # (2, P)
            table = ranking.transposed_slopes(
                by_sums
            )  # (2, K+2): effect of a score in each interval
            as_compared = weight * table[0].take(places) + table[1].take(
                places
            )  # s_i in place of s_j
            as_reference = (by_sums * slopes).sum(0)
            # The term j = i is in both and cancels; without any other, what is left is rounding.
            lone = ranking.lone(in_reach[1], places)
            by_score = torch.where(lone, 0.0, as_compared - as_reference)
            # A better box of j lowers N_i of every other positive i.
            seen = ranking.transposed_values(by_sums[:1], table[:1])[0]
            pressure = ranking.at_scores(seen, table[0], scores, places) - by_numerator * f2.at_half
            by_quality = (rank_error * slope5 - slope1) / len(scores) - pressure * slope3
            ctx.save_for_backward(
                intervals,
                background * table[0] + table[1],
                by_score,
                by_quality,
                positives.rows,
                positives.classes,
            )
            ctx.dtypes = logits.dtype, quality.dtype
        return loss.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        intervals, by_interval, by_score, by_quality, rows, classes = ctx.saved_tensors
        logits_dtype, quality_dtype = ctx.dtypes
        grad_logits = look_up((by_interval * grad).to(logits_dtype), intervals)
        grad_logits[rows, classes] = (by_score * grad).to(logits_dtype)
        return grad_logits, (by_quality * grad).to(quality_dtype), None, None, None


def _loss(
    logits: Tensor,
    quality: Tensor,
    positives: Positives,
    parameters: LossParameters,
    block_denominator_gradient: bool,
) -> Tensor:
    functions = _functions_on(parameters, logits.device)
    with torch.autocast(logits.device.type, enabled=False):
        loss: Tensor = _ParameterizedAP.apply(
            logits, quality, positives, functions, block_denominator_gradient
        )
    return loss


@not_traced
def parameterized_ap_loss(
    logits: Tensor,
    labels: Tensor,
    quality: Tensor,
    parameters: LossParameters,
    *,
    block_denominator_gradient: bool = True,
    check: bool = False,
) -> Tensor:
    """Parameterized AP Loss of a mini-batch, ``1 - PAP`` with

        PAP = 1/|P| sum_{i in P} [ f1(l_i) - N_i / D_i f5(l_i) ]
        N_i = sum_{j != i} f2(s_j - s_i) (1 - f3(l_j))
        D_i = 1 + sum_{j != i} f4(s_j - s_i)

    over all scores of all classes at once (eq. 6). Time and memory grow linearly with the number of
    scores, whatever the number of positives.

    Args:
        logits: (N, C) raw scores, no sigmoid; one score a class, one-vs-all.
        labels: (N,) int64, the class of a positive, -1 for background, -2 for ignored rows.
        quality: (N,) localisation score in [0, 1]; read at positives only.
        parameters: the five functions; the gradient scale is not used here.
        block_denominator_gradient: treat the denominator as a constant in the backward pass.
        check: raise a `ValueError` if a logit is NaN or infinite. Without it such logits make the
            loss NaN, which costs nothing.

    Returns:
        The loss, a scalar: 0 is perfect. Without positives it is 0 with zero gradients.

    Example:
        >>> logits = torch.tensor([[2.0], [-1.0], [0.5]], requires_grad=True)
        >>> labels = torch.tensor([0, -1, -1])
        >>> quality = torch.tensor([0.9, 0.0, 0.0])
        >>> parameterized_ap_loss(logits, labels, quality, LossParameters.linear())
        tensor(0.1000, grad_fn=<_ParameterizedAPBackward>)
    """
    positives = find_positives(logits, labels, check=check)
    if quality.shape != labels.shape or not quality.is_floating_point():
        raise ValueError(
            f"quality: expected a floating-point tensor of shape {tuple(labels.shape)}, "
            f"found {quality.dtype} of shape {tuple(quality.shape)}"
        )
    if len(positives.rows) == 0:
        return nothing_to_rank(logits, quality)
    chosen = quality[positives.rows]
    low, high = torch.stack(chosen.detach().aminmax()).tolist()
    if low < -_QUALITY_SLACK or high > 1 + _QUALITY_SLACK:
        raise ValueError(
            f"quality: expected numbers in [0, 1] at positives, found {low:.4g} to {high:.4g}"
        )
    return _loss(logits, chosen, positives, parameters, block_denominator_gradient)


class ParameterizedAPLoss(torch.nn.Module):
    """Parameterized AP Loss as a module that takes boxes.

    Args:
        parameters: the loss's shape, its gradient scale included.
        localization: ``giou``, ``iou`` or ``l1``, see `paploss.loss.localization`.
        block_denominator_gradient: as in `parameterized_ap_loss`.
        check: as in `parameterized_ap_loss`.

    Shape:
        logits (N, C), labels (N,), predicted_boxes (N, 4), target_boxes (N, 4) as x1, y1, x2, y2;
        boxes are read at positives only.

    Example:
        >>> loss = ParameterizedAPLoss(LossParameters.linear())
        >>> logits = torch.tensor([[2.0], [-1.0]])
        >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [5.0, 5.0, 6.0, 6.0]])
        >>> loss(logits, torch.tensor([0, -1]), boxes, boxes)
        tensor(0.)
    """

    def __init__(
        self,
        parameters: LossParameters,
        localization: str = "giou",
        *,
        block_denominator_gradient: bool = True,
        check: bool = False,
    ) -> None:
        super().__init__()
        if localization not in LOCALIZATION_QUALITIES:
            raise ValueError(
                f"localization: expected one of {', '.join(LOCALIZATION_QUALITIES)}, "
                f"found {localization!r}"
            )
        self.parameters_of_loss = parameters
        self.localization = localization
        self.block_denominator_gradient = block_denominator_gradient
        self.check = check

    @not_traced
    def forward(
        self, logits: Tensor, labels: Tensor, predicted_boxes: Tensor, target_boxes: Tensor
    ) -> Tensor:
        positives = find_positives(logits, labels, check=self.check)
        for name, boxes in (("predicted_boxes", predicted_boxes), ("target_boxes", target_boxes)):
            if boxes.shape != (len(labels), 4) or not boxes.is_floating_point():
                raise ValueError(
                    f"{name}: expected a floating-point tensor of shape ({len(labels)}, 4), "
                    f"found {boxes.dtype} of shape {tuple(boxes.shape)}"
                )
        if len(positives.rows) == 0:
            return nothing_to_rank(logits, predicted_boxes)
        return self.of_positives(
            logits, positives, predicted_boxes[positives.rows], target_boxes[positives.rows]
        )

    @not_traced
    def of_positives(
        self, logits: Tensor, positives: Positives, predicted_boxes: Tensor, target_boxes: Tensor
    ) -> Tensor:
        """The same for positives that are known (`find_positives`) with their boxes only, (P, 4)."""
        if len(positives.rows) == 0:
            return nothing_to_rank(logits, predicted_boxes)
        predicted = scale_gradient(predicted_boxes, self.parameters_of_loss.gradient_scale)
        with torch.autocast(logits.device.type, enabled=False):
            quality = LOCALIZATION_QUALITIES[self.localization](
                at_least_float32(predicted), at_least_float32(target_boxes)
            )
        return _loss(
            logits, quality, positives, self.parameters_of_loss, self.block_denominator_gradient
        )

    def extra_repr(self) -> str:
        return f"localization={self.localization}"


def find_positives(logits: Tensor, labels: Tensor, *, check: bool = False) -> Positives:
    """Check logits (N, C) and labels (N,), and find the positives among them."""
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(
            "logits: expected a floating-point tensor of shape (N, C), "
            f"found {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels: expected an int64 tensor of shape ({len(logits)},), "
            f"found {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if check and not bool(logits.isfinite().all()):
        wrong = logits.numel() - int(logits.isfinite().sum())
        raise ValueError(f"logits: expected finite numbers, found {wrong} NaN or infinite")
    if labels.numel() == 0:
        return Positives(labels, labels, None)
    lowest, highest = torch.stack(labels.aminmax()).tolist()
    if lowest < IGNORED or highest >= logits.shape[1]:
        raise ValueError(
            f"labels: expected classes 0..{logits.shape[1] - 1}, {BACKGROUND} for background or "
            f"{IGNORED} for ignored, found {lowest if lowest < IGNORED else highest}"
        )
    rows = (labels >= 0).nonzero().squeeze(1)
    return Positives(rows, labels[rows], labels == IGNORED if lowest == IGNORED else None)


def nothing_to_rank(logits: Tensor, other: Tensor) -> Tensor:
    """0 that keeps the graph alive (and NaN where there is one to hide)."""
    zero = logits.sum(dtype=torch.float32 if logits.dtype != torch.float64 else None) * 0
    return zero + (other[:0].sum() * 0).to(zero.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()

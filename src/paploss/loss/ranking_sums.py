"""Exact sums of piecewise-linear functions over all score differences, in near-linear time.

Every ranking loss here is made of sums ``sum_j w_j f(s_j - r_i)`` for references r_i (the scores of
the positives) over all scores s_j, f being piecewise linear in ``x = clip(d, -1, 1) / 2 + 1/2``. As a
function of s_j the term is linear between knots ``r_i + (2 x_m - 1)``. So it is enough to know, for
each interval between neighbouring knots, HOW MANY scores lie in it and the SUM of their distances
from its left end: no P x N matrix, no sort of the scores, no truncation.

    knots      all P x T knots, sorted: K of them make K+1 intervals, numbered 0..K
    locate     one pass over the scores: interval, count and sum. A uniform grid answers for most
               scores; only scores that share a grid cell with a knot are compared exactly
    sums       per reference: differences of running sums between its own knots
    transposed per interval: the slope (or value) of sum_i c_i f(s - r_i), by a running sum of the
               slope changes at the knots; one look-up a score gives its gradient

Tables are float64. Scores are compared in their own precision, with knots rounded up to it, so the
side of a knot on which a score lies is never in doubt.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from paploss.loss.piecewise_linear import PiecewiseLinear

# Scores handled at a time in plain PyTorch: what stays in a CPU's cache, and a bound on memory on a GPU.
_CHUNK_ON_CPU = 1 << 17
_CHUNK_ELSEWHERE = 1 << 26


class FunctionTables:
    """F functions of score differences, tabulated at the T control points of all of them together.

    Depends on the functions alone, so one is made per set of functions and used in every step.

    Args:
        functions: of ``x = clip(d / margin, -1, 1) / 2 + 1/2``, d being a score difference.
        margin: difference of two scores beyond which functions are constant.
    """

    def __init__(self, functions: Sequence[PiecewiseLinear], margin: float = 1.0) -> None:
        x = torch.unique(torch.cat([f.x for f in functions]))  # (T,)
        self.offsets = margin * (2 * x - 1)  # of the knots from their reference
        tables = [f.value_and_slope(x) for f in functions]
        # (F, T): the segment right of a control point starts at this level with this slope per score.
        # Right of the last one, at x = 1, all functions are constant.
        self.level = torch.stack([value for value, _ in tables])
        self.level[:, -1] = torch.stack([f.y[-1] for f in functions])
        self.slope = torch.stack([slope / (2 * margin) for _, slope in tables])
        self.slope[:, -1] = 0
        self.bottom = torch.stack([f.y[:1] for f in functions])  # (F, 1) left of x = 0
        self.opening = torch.zeros_like(x)  # (T,) where the margin around r opens and closes
        self.opening[0], self.opening[-1] = 1, -1


class Sums(NamedTuple):
    """Sums over all scores for every function and reference, (F, P) each."""

    values: Tensor  # sum_j w_j f(s_j - r_i)
    slopes: Tensor  # sum_j w_j f'(s_j - r_i)
    in_reach: Tensor  # sum of w_j over the scores within the margin, -margin <= s_j - r_i < margin


class RankingSums:
    """Sums of piecewise-linear functions of score differences, for one set of references.

    A histogram is a (2, K+1) float64 tensor: per interval, the weight of the scores in it, and the
    weighted sum of their distances from its left end. Histograms may be scaled and added.

    Args:
        references: (P,) scores r_i to which all others are compared.
        functions: tables of the F functions f to be summed.

    Example:
        >>> f = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)])
        >>> ranking = RankingSums(torch.tensor([0.0, 1.0]), FunctionTables([f]))
        >>> _, histogram = ranking.locate(torch.tensor([[-0.5, 0.5, 9.0]]))
        >>> ranking.sums([histogram]).values  # .25 + .75 + 1 and 0 + .25 + 1
        tensor([[2.0000, 1.2500]], dtype=torch.float64)
    """

    def __init__(self, references: Tensor, functions: FunctionTables) -> None:
        self._functions = functions
        references = references.detach().double()[:, None]  # (P, 1)
        knots = references + functions.offsets  # (P, T)
        rounding = (knots - references) - functions.offsets  # large references round their knots
        self.knots, self._order = knots.flatten().sort()  # (K,)
        rounding = rounding.take(self._order)
        places = torch.arange(len(self._order), device=self._order.device)
        places = torch.empty_like(places).scatter_(0, self._order, places).view(knots.shape)
        self._right = places + 1  # (P, T) interval right of each knot
        # (K,) windows that span the interval right of a knot: those opened and not yet closed
        windows = functions.opening.expand_as(knots).take(self._order).cumsum(0)
        covered = windows > 0
        # Stretches that no window spans are cut out of the coordinate in which distances are summed,
        # so that scores far from each other cost no precision.
        self._widths = (self.knots.diff() - rounding.diff()) * covered[:-1]  # (K-1,)
        # For each of the K+1 intervals: windows, left end (for interval 0, any number), the rounding
        # of that, and its coordinate.
        self._windows = _pad(windows, 1, 0)
        self._left = torch.cat([self.knots[:1], self.knots])
        self._rounding = _pad(rounding, 1, 0)
        self._coordinate = _pad(self._widths.cumsum(0), 2, 0)

    # ---------------------------------------------------------------- the pass over the scores

    def locate(self, scores: Tensor, ignored_rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Interval of every score, and the histogram of them all.

        Args:
            scores: (N, C), any floating dtype.
            ignored_rows: (N,) bool; scores of these rows count nowhere (interval K+1).

        Returns:
            intervals (N, C), whole numbers for `look_up`, and the histogram. NaN and infinite scores
            show in it as a NaN or infinite sum.
        """
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        knots = _round_up(self.knots, dtype)
        left = torch.cat([self._left, self._left[:1]])  # one more for ignored scores
        compiled = _compiled_kernels(scores)
        locate = _locate_in_chunks if compiled is None else compiled.locate
        intervals, histogram = locate(scores, ignored_rows, knots, left)
        return intervals, histogram[:, :-1]

    def weigh(self, scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Intervals and histogram of a few weighted scores, (Q,) each, by plain comparison."""
        scores = scores.double()
        intervals = torch.bucketize(scores, self.knots, right=True)
        weighted = torch.stack([weights, weights * (scores - self._left.take(intervals))])
        histogram = weighted.new_zeros(2, len(self._left)).index_add_(1, intervals, weighted)
        return intervals, histogram

    # ---------------------------------------------------------------- sums for each reference

    def sums(self, histograms: list[Tensor]) -> Sums:
        """Sums for every function over scores with weights of its own, hence one histogram each.

        With one function alone, any number of histograms: sums (histograms, P).
        """
        f = self._functions
        compiled = _compiled_kernels(self.knots)
        if compiled is not None:
            tables = self._coordinate, self._rounding, self._windows, self._right
            return Sums(*compiled.sums(histograms, *tables, f.level, f.slope, f.bottom))
        counts, distances = torch.stack(histograms, dim=1)  # (F, K+1) each
        moments = distances + counts * (self._coordinate + self._rounding)
        moments = torch.where(self._windows > 0, moments, 0.0)
        whole, unit = _whole_numbers(torch.stack([counts, moments]))
        above = whole.flip(2).cumsum(2).flip(2)  # (2, F, K+1)
        total = above[0, :, :1] * unit[0]  # (F, 1)
        above = above.flatten(0, 1).index_select(1, self._right.flatten())
        above = above.view(2, -1, *self._right.shape)  # (2, F, P, T)
        opening, closing = above[0, :, :, 0] * unit[0], above[0, :, :, -1] * unit[0]  # (F, P)
        above[..., :-1] -= above[..., 1:]  # what lies between two neighbouring knots of a reference
        counts, moments = above * unit[..., None]  # (F, P, T) each
        distances = moments - counts * self._coordinate.take(self._right)
        values = counts @ f.level[..., None] + distances @ f.slope[..., None]
        slopes = counts @ f.slope[..., None]
        bottom = (total - opening) * f.bottom
        return Sums(values.squeeze(2) + bottom, slopes.squeeze(2), opening - closing)

    def lone(self, in_reach: Tensor, intervals: Tensor) -> Tensor:
        """(P,) bool: references, in known intervals, that meet no score but their own.

        Counts alone decide, so it is certain where sums that ought to cancel leave rounding errors.
        """
        return (in_reach < 1.5) & (self._windows.take(intervals) == 1)

    # ---------------------------------------------------------------- the transpose: sums for each score

    def transposed_slopes(self, coefficients: Tensor) -> Tensor:
        """Slope of ``sum_i c_i f(s - r_i)`` in every interval; (F, P) -> (F, K+2).

        The last entry, for ignored scores, is 0.
        """
        compiled = _compiled_kernels(self.knots)
        if compiled is not None:
            table: Tensor = compiled.transposed_slopes(
                coefficients, self._functions.slope, self._order
            )
            return table
        slopes = coefficients[:, :, None] * self._functions.slope[:, None, :]  # (F, P, T)
        whole, unit = _whole_numbers(slopes)
        # Each window closes with exactly the slope it opened: outside, the sum is exactly 0.
        whole[..., 1:] -= whole[..., :-1].clone()
        bends = whole.flatten(1).index_select(1, self._order)
        return _pad(bends.cumsum(1) * unit[:, 0], 1, 1)

    def transposed_values(self, coefficients: Tensor, slopes: Tensor) -> Tensor:
        """``sum_i c_i f(s - r_i)`` at the left end of every interval; (F, P) -> (F, K+2).

        ``slopes`` are those of `transposed_slopes`; `at_scores` puts the two together.
        """
        bottom = coefficients.sum(1, keepdim=True) * self._functions.bottom
        rise = _pad((slopes[:, 1:-2] * self._widths).cumsum(1), 2, 0)
        return _pad(rise + bottom, 0, 1)

    def at_scores(
        self, values: Tensor, slopes: Tensor, scores: Tensor, intervals: Tensor
    ) -> Tensor:
        """One function's transposed tables, (K+2,) each, evaluated at scores in known intervals."""
        distances = scores.double() - self._left.take(intervals) + self._rounding.take(intervals)
        return values.take(intervals) + slopes.take(intervals) * distances

    def values_at(self, coefficients: Tensor, scores: Tensor, intervals: Tensor) -> Tensor:
        """``sum_i c_i f(s - r_i)``, added over all functions, for every score of the batch.

        Args:
            coefficients: (F, P).
            scores: (N, C).
            intervals: of these scores, from `locate`.

        Returns:
            (N, C) in the dtype of the scores; 0 for ignored ones. Needs no more memory than that.
        """
        slopes = self.transposed_slopes(coefficients)  # (F, K+2)
        values = self.transposed_values(coefficients, slopes).sum(0)
        slopes = slopes.sum(0)
        values = values + slopes * _pad(self._rounding, 0, 1)
        left = torch.cat([self._left, self._left[:1]])
        result = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
        for part in _parts(scores):
            slope = look_up(slopes, intervals[part])
            rise = slope * (scores[part].double() - look_up(left, intervals[part]))
            # Where nothing rises an infinite distance must not matter.
            rise.masked_fill_(slope == 0, 0.0)
            result[part] = rise.add_(look_up(values, intervals[part]))
        return result


def look_up(table: Tensor, intervals: Tensor) -> Tensor:
    """Entry of a table, (K+2,), for every interval found by `RankingSums.locate`."""
    compiled = _compiled_kernels(table)
    if compiled is not None and table.dtype in (torch.float32, torch.float64):
        found: Tensor = compiled.look_up(table, intervals)
        return found
    return table.index_select(0, intervals.int().flatten()).view(intervals.shape)


def _compiled_kernels(x: Tensor) -> ModuleType | None:
    """The numba version of what loops over scores or knots, unless it is missing or switched off."""
    if x.device.type != "cpu" or os.environ.get("PAPLOSS_COMPILED", "1") == "0":
        return None
    try:
        from paploss.loss import compiled_cpu
    except ImportError:
        return None
    return compiled_cpu


def _locate_in_chunks(
    scores: Tensor, ignored_rows: Tensor | None, knots: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """The pass over the scores in plain PyTorch, for any device."""
    # More cells would cost more to fill than they save.
    size = min(max(1 << (scores.numel() // 4).bit_length(), 1 << 10), 1 << 18)
    extent = (knots[-1] - knots[0]).clamp(min=torch.finfo(knots.dtype).tiny)
    # Cells 0 and G-1 lie outside all knots, so that scores beyond them need no comparison.
    cells_per_unit = (size - 4) / extent
    start = knots[0] - 1.5 / cells_per_unit
    zero = torch.zeros_like(start)

    def cell(x: Tensor) -> Tensor:
        # The same monotone operations for scores and knots, so cells never contradict their order.
        # NaN goes to cell 0; the sums see it all the same.
        return torch.fmax((x - start) * cells_per_unit, zero).clamp_(max=size - 1).int()

    knots_up_to = torch.bincount(cell(knots), minlength=size).cumsum(0)
    interval = _pad(knots_up_to[:-1], 1, 0).int()
    undecided = -1  # the cell holds knots: scores in it are compared one by one
    interval_of_cell = torch.where(knots_up_to > interval, undecided, interval)

    rows, classes = scores.shape
    intervals = torch.empty(rows, classes, dtype=torch.int32, device=scores.device)
    histogram = torch.zeros(2, len(left), dtype=torch.float64, device=scores.device)
    for part in _parts(scores):
        x = scores[part].to(knots.dtype).reshape(-1)
        found = interval_of_cell.index_select(0, cell(x))
        compared = (found == undecided).nonzero().squeeze(1)
        found[compared] = torch.bucketize(x[compared], knots, right=True, out_int32=True)
        if ignored_rows is not None:
            found.view(-1, classes).masked_fill_(ignored_rows[part, None], len(left) - 1)
        histogram[0] += torch.bincount(found, minlength=len(left))
        distances = x - left.index_select(0, found)
        histogram[1] += torch.bincount(found, distances, minlength=len(left))
        intervals[part] = found.view(-1, classes)
    return intervals, histogram


def _parts(scores: Tensor) -> Iterator[slice]:
    """Rows of (N, C) scores, some at a time."""
    rows, classes = scores.shape
    chunk = _CHUNK_ON_CPU if scores.device.type == "cpu" else _CHUNK_ELSEWHERE
    step = max(1, chunk // max(classes, 1))
    for begin in range(0, rows, step):
        yield slice(begin, begin + step)


def _whole_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x[k]`` as int64 multiples of ``unit[k]``, small enough that any sum of them fits.

    Running sums of these are exact, so the difference of two is as good as a sum of its own: float64
    would lose what two large sums have in common.
    """
    unit = x.abs().flatten(1).sum(1).clamp(min=1e-200).view(-1, 1, 1) / 2**61
    return (x / unit).round().long(), unit


def _pad(x: Tensor, before: int, after: int) -> Tensor:
    """Zeros around the last dimension."""
    return torch.nn.functional.pad(x, (before, after))


def _round_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of a dtype that is not below x."""
    rounded = x.to(dtype)
    return torch.where(
        rounded.double() < x, torch.nextafter(rounded, rounded.new_full((), math.inf)), rounded
    )

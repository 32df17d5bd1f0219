"""Exact sums of piecewise-linear functions over all score differences, in near-linear time.

Every ranking loss here is made of sums ``sum_j w_j f(s_j - r_i)`` for references r_i (the scores of
the positives) over all scores s_j, f being piecewise linear in ``x = clip(d, -1, 1) / 2 + 1/2``. As a
function of s_j the term is linear between knots ``r_i + (2 x_m - 1)``. So it is enough to know, for
each interval between neighbouring knots, HOW MANY scores lie in it and the SUM of their distances
from its left end: no P x N matrix, no sort of the scores, no truncation.

    knots      all P (M+1) knots, sorted: K of them make K+1 intervals, numbered 0..K
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
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from paploss.loss.piecewise_linear import PiecewiseLinear

# Scores handled at a time in plain PyTorch: what stays in a CPU's cache, and a bound on memory on a GPU.
_CHUNK_ON_CPU = 1 << 17
_CHUNK_ELSEWHERE = 1 << 26


class Histogram(NamedTuple):
    """Per interval: weight of the scores in it, and weighted sum of their distances from its left end."""

    counts: Tensor  # (K+1,) float64
    distances: Tensor  # (K+1,) float64

    def __add__(self, other: Histogram) -> Histogram:  # type: ignore[override]
        return Histogram(self.counts + other.counts, self.distances + other.distances)

    def scaled(self, factor: float) -> Histogram:
        return Histogram(self.counts * factor, self.distances * factor)

    def non_finite(self) -> Tensor:
        """0, or NaN when any score was NaN or infinite: add it to a result that must not hide that."""
        return (self.distances.sum() + self.counts.sum()) * 0


class FunctionTables:
    """Several functions of score differences side by side: T control points in all, F functions.

    Depends on the functions alone, so one is made per set of functions and used in every step.
    """

    def __init__(self, functions: Sequence[PiecewiseLinear]) -> None:
        total = sum(len(f.x) for f in functions)
        table = functions[0].x.new_zeros(3, total, len(functions))
        # (T, F): at a control point starts a segment with its level and slope; beyond the first and
        # the last one the function is constant.
        self.level, self.slope, self.edge = table
        start = 0
        for column, f in enumerate(functions):
            end = start + len(f.x) - 1
            per_score = f.slopes / 2  # x = d/2 + 1/2
            self.level[start:end, column] = f.y[:-1]
            self.slope[start:end, column] = per_score
            self.edge[start, column] = -f.y[0]
            self.edge[end, column] = f.y[-1]
            start = end + 1
        # (T,) where the window [r - 1, r + 1) of a reference, the same for all functions, opens and closes
        self.opening = functions[0].x.new_zeros(total)
        self.opening[0] = 1
        self.closing = len(functions[0].x) - 1
        self.opening[self.closing] = -1
        sizes = torch.tensor([len(f.x) for f in functions], device=functions[0].x.device)
        self.owner = torch.arange(len(functions), device=sizes.device).repeat_interleave(
            sizes
        )  # (T,)
        self.bottom = torch.stack([f.y[0] for f in functions])  # (F,)
        self.offsets = torch.cat([2 * f.x - 1 for f in functions])  # (T,) of the knots from r


class RankingSums:
    """Sums of piecewise-linear functions of score differences, for one set of references.

    Args:
        references: (P,) scores r_i to which all others are compared.
        functions: tables of the F functions f to be summed; their results are columns.

    Example:
        >>> f = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)])
        >>> sums = RankingSums(torch.tensor([0.0, 1.0]), FunctionTables([f]))
        >>> _, histogram = sums.locate(torch.tensor([[-0.5, 0.5, 9.0]]))
        >>> values, slopes = sums.values_and_slopes([histogram])
        >>> values[:, 0]  # .25 + .75 + 1 and 0 + .25 + 1
        tensor([2.0000, 1.2500], dtype=torch.float64)
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

    def locate(
        self, scores: Tensor, ignored_rows: Tensor | None = None
    ) -> tuple[Tensor, Histogram]:
        """Interval of every score, and the histogram of them all.

        Args:
            scores: (N, C), any floating dtype.
            ignored_rows: (N,) bool; scores of these rows count nowhere (interval K+1).

        Returns:
            intervals (N, C), whole numbers for `look_up`, and the histogram.
        """
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        knots = _round_up(self.knots, dtype)
        left = torch.cat([self._left, self._left[:1]])  # one more for ignored scores
        compiled = _compiled_kernels(scores)
        locate = _locate_in_chunks if compiled is None else compiled.locate
        intervals, counts, distances = locate(scores, ignored_rows, knots, left)
        return intervals, Histogram(counts[:-1], distances[:-1])

    def weigh(self, scores: Tensor, weights: Tensor) -> tuple[Tensor, Histogram]:
        """Intervals and histogram of a few weighted scores, (Q,) each, by plain comparison."""
        scores = scores.double()
        intervals = torch.bucketize(scores, self.knots, right=True)
        weighted = torch.stack([weights, weights * (scores - self._left.take(intervals))])
        table = weighted.new_zeros(2, len(self._left)).index_add_(1, intervals, weighted)
        return intervals, Histogram(*table)

    # ---------------------------------------------------------------- sums for each reference

    def values_and_slopes(self, histograms: Sequence[Histogram]) -> tuple[Tensor, Tensor]:
        """``sum_j w_j f(s_j - r_i)`` and ``sum_j w_j f'(s_j - r_i)``, each (P, F).

        Every function has its own weights w, hence a histogram of its own.
        """
        f = self._functions
        counts = torch.stack([h.counts for h in histograms])  # (F, K+1)
        moments = torch.stack([h.distances for h in histograms])
        moments += counts * (self._coordinate + self._rounding)
        moments = torch.where(self._windows > 0, moments, 0.0)
        whole, unit = _whole_numbers(torch.stack([counts, moments]))
        above = whole.flip(2).cumsum(2).flip(2)  # (2, F, K+1)
        own = (
            self._right + f.owner * above.shape[2]
        ).flatten()  # each knot reads its own function's
        above_knots = above.flatten(1).index_select(1, own).view(2, *self._right.shape)  # (2, P, T)
        counts, moments = (above_knots[:, :, :-1] - above_knots[:, :, 1:]) * unit  # within segments
        distances = moments - counts * self._coordinate.take(self._right[:, :-1])
        slopes = f.slope[:-1]
        values = torch.addmm(above[0, :, 0] * unit[0] * f.bottom, counts, f.level[:-1])
        values.addmm_(distances, slopes).addmm_(above_knots[0] * unit[0], f.edge)
        return values, counts @ slopes

    def alone(self, everything: Histogram, intervals: Tensor) -> Tensor:
        """(P,) bool: references, in known intervals, that meet no score but their own.

        Only counts decide, so it is certain where sums that ought to cancel leave rounding errors.
        """
        window = self._right[:, [0, self._functions.closing]]
        opening, closing = everything.counts.cumsum(0).take(window - 1).unbind(1)
        return (closing - opening == 1) & (self._windows.take(intervals) == 1)

    # ---------------------------------------------------------------- the transpose: sums for each score

    def transposed_slopes(self, coefficients: Tensor) -> Tensor:
        """Slope of ``sum_i c_i f(s - r_i)`` in every interval; (P, F) -> (F, K+2).

        The last entry, for ignored scores, is 0.
        """
        slopes = coefficients.T[:, :, None] * self._functions.slope.T[:, None, :]  # (F, P, T)
        whole, unit = _whole_numbers(slopes)
        # Each window closes with exactly the slope it opened: outside, the sum is exactly 0.
        bends = _pad(whole, 1, 0).diff(dim=2)
        return _pad(bends.flatten(1).index_select(1, self._order).cumsum(1) * unit[:, 0], 1, 1)

    def transposed_values(self, coefficients: Tensor, slopes: Tensor) -> Tensor:
        """``sum_i c_i f(s - r_i)`` at the left end of every interval; (P, F) -> (F, K+2).

        ``slopes`` are those of `transposed_slopes`; `at_scores` puts the two together.
        """
        bottom = coefficients.sum(0) * self._functions.bottom  # (F,)
        rise = _pad((slopes[:, 1:-2] * self._widths).cumsum(1), 2, 0)
        return _pad(rise + bottom[:, None], 0, 1)

    def at_scores(
        self, values: Tensor, slopes: Tensor, scores: Tensor, intervals: Tensor
    ) -> Tensor:
        """One function's transposed tables, (K+2,) each, evaluated at scores in known intervals."""
        distances = scores.double() - self._left.take(intervals) + self._rounding.take(intervals)
        return values.take(intervals) + slopes.take(intervals) * distances


def look_up(table: Tensor, intervals: Tensor) -> Tensor:
    """Entry of a table, (K+2,), for every interval found by `RankingSums.locate`."""
    compiled = _compiled_kernels(table)
    if compiled is not None and table.dtype in (torch.float32, torch.float64):
        found: Tensor = compiled.look_up(table, intervals)
        return found
    return table.index_select(0, intervals.int().flatten()).view(intervals.shape)


def _compiled_kernels(x: Tensor) -> ModuleType | None:
    """The numba version of the passes over all scores, unless numba is missing or switched off."""
    if x.device.type != "cpu" or os.environ.get("PAPLOSS_COMPILED", "1") == "0":
        return None
    try:
        from paploss.loss import compiled_cpu
    except ImportError:
        return None
    return compiled_cpu


def grid_size(scores: int) -> int:
    """Cells of the grid in front of the knots: more would cost more to fill than they save."""
    return min(max(1 << (scores // 8).bit_length(), 1 << 10), 1 << 17)


def _locate_in_chunks(
    scores: Tensor, ignored_rows: Tensor | None, knots: Tensor, left: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The pass over the scores in plain PyTorch, for any device."""
    size = grid_size(scores.numel())
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
    counts, distances = torch.zeros(2, len(left), dtype=torch.float64, device=scores.device)
    chunk = _CHUNK_ON_CPU if scores.device.type == "cpu" else _CHUNK_ELSEWHERE
    step = max(1, chunk // max(classes, 1))
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        x = scores[part].to(knots.dtype).reshape(-1)
        found = interval_of_cell.index_select(0, cell(x))
        compared = (found == undecided).nonzero().squeeze(1)
        found[compared] = torch.bucketize(x[compared], knots, right=True, out_int32=True)
        if ignored_rows is not None:
            found.view(-1, classes).masked_fill_(ignored_rows[part, None], len(left) - 1)
        counts += torch.bincount(found, minlength=len(left))
        distances += torch.bincount(found, x - left.index_select(0, found), minlength=len(left))
        intervals[part] = found.view(-1, classes)
    return intervals, counts, distances


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

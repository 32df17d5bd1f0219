"""The passes of `ranking_sums` over scores and knots, compiled by numba: loops without temporaries.

Used on CPU whenever numba is installed (``pip install "paploss[fast]"``); the results are those of
the plain PyTorch version, where each step is explained. The first call of all compiles for some
seconds; numba keeps the result on disk.
"""
# Numba works on types that mypy does not see.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, arg-type"

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

_SCORES_PER_THREAD = 1 << 14  # fewer are not worth a thread
_SCORES_IN_CACHE = 256  # placed before they are summed
_CONVERTED_AT_A_TIME = 1 << 24  # bound on the copy made of half-precision or strided scores


@numba.njit(nogil=True, cache=True)
def _fill_grid(knots, start, cells_per_unit, first):  # pragma: no cover - compiled
    """first[cell]: knots before the cell, n; or -1 - n where the cell holds more than one knot.

    The last entry, beyond all cells, is the number of knots.
    """
    knot = 0
    first[-1] = len(knots)
    for cell in range(len(first) - 1):
        before = knot
        while knot < len(knots) and not (knots[knot] - start) * cells_per_unit >= cell + 1:
            knot += 1
        first[cell] = before if knot <= before + 1 else -1 - before


@numba.njit(nogil=True, cache=True)
def _locate_rows(
    scores, ignored, start, cells_per_unit, first, knots, left, intervals, sums
):  # pragma: no cover - compiled
    cells = len(first) - 1
    last = len(knots) - 1  # knots end with an infinite one
    rows, classes = scores.shape
    step = 1 + _SCORES_IN_CACHE // max(classes, 1)
    count_below = 0.0
    distance_below = 0.0
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        # First where the scores lie, then the sums: known places do not wait for each other.
        for row in range(begin, end):
            if len(ignored) > 0 and ignored[row]:
                intervals[row, :] = last + 1
                continue
            for column in range(classes):
                score = scores[row, column]
                # The same operations as for the knots, so cells never contradict their order.
                cell = (score - start) * cells_per_unit
                if not cell >= 0:  # below every knot, or NaN
                    intervals[row, column] = 0
                    continue
                interval = np.int64(first[int(cell)]) if cell < cells else np.int64(last)
                if interval >= 0:  # at most one knot in the cell: no branch to mispredict
                    interval = min(interval + (score >= knots[interval]), last)
                else:
                    interval = -1 - interval
                    beyond = first[int(cell) + 1]  # knots before the next cell
                    beyond = beyond if beyond >= 0 else -1 - beyond
                    while interval < beyond:  # how many of them are not above the score?
                        middle = (interval + beyond) // 2
                        if score >= knots[middle]:
                            interval = middle + 1
                        else:
                            beyond = middle
                intervals[row, column] = interval
        for row in range(begin, end):
            for column in range(classes):
                interval = np.int64(intervals[row, column])
                if interval == 0:
                    count_below += 1
                    distance_below += scores[row, column] - left[0]
                else:
                    sums[interval, 0] += 1
                    sums[interval, 1] += scores[row, column] - left[interval]
    sums[0, 0] += count_below
    sums[0, 1] += distance_below


@numba.njit(nogil=True, cache=True, parallel=True)
def _locate_in_parallel(
    scores, ignored, start, cells_per_unit, first, knots, left, intervals, sums
):  # pragma: no cover - compiled
    """Rows in as many shares as there are tables of sums; each share fills its own."""
    shares = len(sums)
    rows = scores.shape[0]
    for share in numba.prange(shares):
        begin = rows * share // shares
        end = rows * (share + 1) // shares
        _locate_rows(
            scores[begin:end],
            ignored[begin:end],
            start,
            cells_per_unit,
            first,
            knots,
            left,
            intervals[begin:end],
            sums[share],
        )


def locate(
    scores: Tensor, ignored_rows: Tensor | None, knots: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """Interval of every score, and their histogram (see `RankingSums.locate`)."""
    rows, classes = scores.shape
    shares = max(1, min(torch.get_num_threads(), scores.numel() // _SCORES_PER_THREAD, rows))
    kernel = _locate_rows if shares == 1 else _locate_in_parallel
    # Most of the time goes into memory traffic: the short type where it suffices.
    dtype = torch.int16 if len(left) <= torch.iinfo(torch.int16).max else torch.int32
    intervals = torch.empty(rows, classes, dtype=dtype)
    sums = torch.zeros(shares, len(left), 2, dtype=torch.float64)
    if ignored_rows is None:
        ignored_rows = torch.empty(0, dtype=torch.bool)

    ends = knots.numpy()
    number = ends.dtype.type  # mixing precisions would change the cells
    # More cells would cost more to fill, and fall out of the cache, than they save.
    size = min(max(1 << (scores.numel() // 8).bit_length(), 1 << 10), 1 << 16)
    size = max(size, 1 << (2 * len(knots)).bit_length())
    first = np.empty(size + 1, dtype=np.int32)
    with np.errstate(all="ignore"):  # NaN and infinite knots end in a NaN loss, not in a warning
        # Cells 0 and G-1 lie outside all knots, so that scores beyond them need no comparison.
        extent = max(ends[-1] - ends[0], np.finfo(ends.dtype).tiny)
        cells_per_unit = number(size - 4) / number(extent)
        start = ends[0] - number(1.5) / cells_per_unit
    _fill_grid(ends, start, cells_per_unit, first)
    tables = (start, cells_per_unit, first, np.append(ends, number(np.inf)), left.numpy())

    ready = scores.dtype == knots.dtype and scores.is_contiguous()
    step = max(1, rows if ready else _CONVERTED_AT_A_TIME // max(classes, 1))
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        block = scores[part].detach().to(knots.dtype).contiguous()
        kernel(
            block.numpy(),
            ignored_rows[part].numpy(),
            *tables,
            intervals[part].numpy(),
            (sums[0] if shares == 1 else sums).numpy(),
        )
    return intervals, sums.sum(0).T


@numba.njit(nogil=True, cache=True)
def _look_up_part(table, intervals, out):  # pragma: no cover - compiled
    for index in range(len(intervals)):
        out[index] = table[intervals[index]]


@numba.njit(nogil=True, cache=True, parallel=True)
def _look_up_in_parallel(table, intervals, out, shares):  # pragma: no cover - compiled
    for share in numba.prange(shares):
        begin = len(out) * share // shares
        end = len(out) * (share + 1) // shares
        _look_up_part(table, intervals[begin:end], out[begin:end])


def look_up(table: Tensor, intervals: Tensor) -> Tensor:
    """Entry of a float table for every interval (see `ranking_sums.look_up`)."""
    out = torch.empty(intervals.shape, dtype=table.dtype)
    shares = max(1, min(torch.get_num_threads(), out.numel() // _SCORES_PER_THREAD))
    arrays = table.numpy(), intervals.numpy().reshape(-1), out.numpy().reshape(-1)
    if shares == 1:
        _look_up_part(*arrays)
    else:
        _look_up_in_parallel(*arrays, shares)
    return out


@numba.njit(nogil=True, cache=True)
def _sums(
    histograms, coordinate, rounding, windows, right, level, slope, bottom
):  # pragma: no cover - compiled
    references, knots = right.shape
    result = np.zeros((3, len(histograms), references))
    above = np.empty((len(coordinate), 2), dtype=np.int64)
    for index in range(len(histograms)):
        counts, distances = histograms[index]
        moments = np.where(windows > 0, distances + counts * (coordinate + rounding), 0.0)
        count_unit = max(np.abs(counts).sum(), 1e-200) / 2.0**61
        moment_unit = max(np.abs(moments).sum(), 1e-200) / 2.0**61
        count, moment = np.int64(0), np.int64(0)
        for interval in range(len(counts) - 1, -1, -1):
            count += np.int64(np.rint(counts[interval] / count_unit))
            moment += np.int64(np.rint(moments[interval] / moment_unit))
            above[interval, 0] = count
            above[interval, 1] = moment
        f = index if len(level) > 1 else 0
        for i in range(references):
            value = (count - above[right[i, 0], 0]) * count_unit * bottom[f, 0]
            rise = 0.0
            for m in range(knots):
                here = right[i, m]
                count_here, moment_here = above[here, 0], above[here, 1]
                if m + 1 < knots:
                    count_here -= above[right[i, m + 1], 0]
                    moment_here -= above[right[i, m + 1], 1]
                weight = count_here * count_unit
                distance = moment_here * moment_unit - weight * coordinate[here]
                value += weight * level[f, m] + distance * slope[f, m]
                rise += weight * slope[f, m]
            result[0, index, i] = value
            result[1, index, i] = rise
            inside = above[right[i, 0], 0] - above[right[i, knots - 1], 0]
            result[2, index, i] = inside * count_unit
    return result


def sums(
    histograms: list[Tensor],
    coordinate: Tensor,
    rounding: Tensor,
    windows: Tensor,
    right: Tensor,
    level: Tensor,
    slope: Tensor,
    bottom: Tensor,
) -> Tensor:
    """Values, slopes and reach as in `RankingSums.sums`, (3, F, P)."""
    arguments = (
        torch.stack(histograms),
        coordinate,
        rounding,
        windows,
        right,
        level,
        slope,
        bottom,
    )
    return torch.from_numpy(_sums(*(x.numpy() for x in arguments)))


@numba.njit(nogil=True, cache=True)
def _transposed_slopes(coefficients, slope, order):  # pragma: no cover - compiled
    functions, knots = slope.shape
    table = np.zeros((functions, len(order) + 2))
    for f in range(functions):
        total = np.abs(coefficients[f]).sum() * np.abs(slope[f]).sum()
        unit = max(total, 1e-200) / 2.0**61
        running = np.int64(0)
        for place in range(len(order)):
            i, m = order[place] // knots, order[place] % knots
            running += np.int64(np.rint(coefficients[f, i] * slope[f, m] / unit))
            if m > 0:
                running -= np.int64(np.rint(coefficients[f, i] * slope[f, m - 1] / unit))
            table[f, place + 1] = running * unit
    return table


def transposed_slopes(coefficients: Tensor, slope: Tensor, order: Tensor) -> Tensor:
    """As in `RankingSums.transposed_slopes`."""
    arrays = (coefficients.contiguous(), slope, order)
    return torch.from_numpy(_transposed_slopes(*(x.numpy() for x in arrays)))

"""LossParameters: the five functions of eq. (6) and the gradient scale, as control points or as a vector."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Point = tuple[float, float]
Points = tuple[Point, ...]

FUNCTION_NAMES = ("f1", "f2", "f3", "f4", "f5")
FILE_FORMAT = "paploss-loss"
FILE_VERSION = 1
DEFAULT_HEAD = "detector"
GRADIENT_SCALES = (0.1, 10.0)  # that theta_lambda in [0, 1] stands for

# Control points closer than this would make a vertical step, which has no slope to train with.
_SMALLEST_GAP = 1e-6


class PunishedRange(NamedTuple):
    """Box qualities for which a better box makes the loss worse (see `LossParameters.punished_ranges`)."""

    quality_from: float
    quality_to: float
    rank_error: float  # happens for positives whose N_i / D_i is above this


@dataclass(frozen=True)
class LossParameters:
    """Shape of a Parameterized AP Loss: five piecewise-linear functions and a gradient scale.

    ``functions[k]`` holds the control points of f_{k+1} in eq. (6):

    * f1, f5 of a positive's own box quality,
    * f2, f4 of score differences (numerator and denominator of the rank error),
    * f3 of the box quality of the predictions it is compared with.

    Build one with `linear`, `from_vector`, `from_control_points`, `substitution`, `load` or
    `paploss.load_preset`; the constructor itself checks what it is given.

    Example:
        >>> p = LossParameters.linear(segments=5)
        >>> len(p.to_vector()), p.gradient_scale
        (41, 1.0)
        >>> p.punished_ranges()
        []
    """

    functions: tuple[Points, ...]
    gradient_scale: float = 1.0

    def __post_init__(self) -> None:
        functions = tuple(
            tuple((float(x), float(y)) for x, y in points) for points in self.functions
        )
        if len(functions) != len(FUNCTION_NAMES):
            raise ValueError(
                f"functions: expected {len(FUNCTION_NAMES)} lists of control points "
                f"({', '.join(FUNCTION_NAMES)}), found {len(functions)}"
            )
        for name, points in zip(FUNCTION_NAMES, functions, strict=True):
            _check_points(name, points)
        if not (math.isfinite(self.gradient_scale) and self.gradient_scale > 0):
            raise ValueError(
                f"gradient_scale: expected a positive number, found {self.gradient_scale}"
            )
        object.__setattr__(self, "functions", functions)
        object.__setattr__(self, "gradient_scale", float(self.gradient_scale))

    # ---------------------------------------------------------------- building

    @classmethod
    def linear(cls, segments: int = 5, *, gradient_scale: float = 1.0) -> LossParameters:
        """f(x) = x with evenly spaced control points: where the paper's search starts."""
        _check_segments(segments)
        points = tuple((k / segments, k / segments) for k in range(segments + 1))
        return cls((points,) * 5, gradient_scale)

    @classmethod
    def from_control_points(
        cls, points: Sequence[Iterable[Sequence[float]]], gradient_scale: float = 1.0
    ) -> LossParameters:
        """From five lists of ``(x, y)`` control points, end points included."""
        functions = []
        for name, function in zip(FUNCTION_NAMES, points, strict=False):
            pairs = [tuple(point) for point in function]
            for pair in pairs:
                if len(pair) != 2:
                    raise ValueError(f"{name}: expected (x, y) pairs, found {pair}")
            functions.append(tuple((float(x), float(y)) for x, y in pairs))
        if len(points) != len(FUNCTION_NAMES):
            raise ValueError(f"points: expected 5 lists of control points, found {len(points)}")
        return cls(tuple(functions), gradient_scale)

    @classmethod
    def from_vector(
        cls,
        vector: npt.ArrayLike,
        segments: int = 5,
        *,
        shared: bool = False,
        tied: bool = False,
        gradient_scale: float | None = None,
    ) -> LossParameters:
        """From numbers in [0, 1], the form in which parameters are searched (eq. 8).

        The order is f1..f5, each as ``x1, y1, .., x_{M-1}, y_{M-1}`` fractions, then theta_lambda.

        Args:
            vector: `vector_length` numbers; 41 for the paper's five segments.
            segments: linear pieces M of each function.
            shared: one function serves all five places.
            tied: f5 is f1 and is left out of the vector; such a loss punishes no better box, unless
                f2 rises above f4.
            gradient_scale: fixed lambda, then left out of the vector.
        """
        theta = np.asarray(vector, dtype=np.float64).reshape(-1)
        expected = vector_length(
            segments, shared=shared, tied=tied, fixed_gradient_scale=gradient_scale is not None
        )
        if theta.size != expected:
            raise ValueError(
                f"vector: expected {expected} numbers for segments={segments}, found {theta.size}"
            )
        if not (np.all(theta >= 0) and np.all(theta <= 1)):
            raise ValueError(
                f"vector: expected numbers in [0, 1], found {theta[~((theta >= 0) & (theta <= 1))]}"
            )
        if gradient_scale is None:
            gradient_scale = float(10 ** (2 * theta[-1] - 1))
            theta = theta[:-1]
        pieces = theta.reshape(-1, segments - 1, 2)
        functions = tuple(points_from_fractions(piece) for piece in pieces)
        if shared:
            functions *= 5
        elif tied:
            functions += functions[:1]
        return cls(functions, gradient_scale)

    @classmethod
    def substitution(cls, name: str, *, gradient_scale: float = 1.0) -> LossParameters:
        """A hand-crafted function in all five places, as in the paper's ablation.

        ``linear``, ``square`` and ``sqrt`` are x, x^2 and x^(1/2) of the normalised input;
        ``sigmoid`` is 1 / (1 + exp(-(2x - 1))), the logistic function of the input before
        normalisation. They are tables of 32 segments that differ from the exact function by at most
        2.5e-4 (sqrt: 5e-4).
        """
        k = np.arange(33) / 32
        tables = {
            "linear": (np.array([0.0, 1.0]), np.array([0.0, 1.0])),
            "square": (k, k**2),
            "sqrt": (k**4, k**2),  # knots crowd at 0, where the root is steepest
            "sigmoid": (k, 1 / (1 + np.exp(1 - 2 * k))),
        }
        if name not in tables:
            raise ValueError(f"name: expected one of {', '.join(tables)}, found {name!r}")
        points = tuple((float(x), float(y)) for x, y in zip(*tables[name], strict=True))
        return cls((points,) * 5, gradient_scale)

    def tied(self) -> LossParameters:
        """The same loss with f5 := f1: each term becomes f1(l) (1 - N/D).

        A better box then always helps a positive whose rank error N/D is below 1; see `safe`.
        """
        return LossParameters((*self.functions[:4], self.functions[0]), self.gradient_scale)

    def safe(self) -> LossParameters:
        """`tied`, with f2 cut off where it is above f4: N/D stays below 1, a better box always helps."""
        f1, f2, f3, f4, _ = self.functions
        return LossParameters((f1, _lower_of(f2, f4), f3, f4, f1), self.gradient_scale)

    # ---------------------------------------------------------------- reading

    @property
    def segments(self) -> int:
        """Number of linear pieces M of each function; a `ValueError` if the functions differ in it."""
        counts = sorted({len(points) - 1 for points in self.functions})
        if len(counts) != 1:
            raise ValueError(f"the functions differ in their number of segments: {counts}")
        return counts[0]

    def control_points(self) -> list[list[Point]]:
        """Five lists of ``(x, y)`` pairs, end points included."""
        return [list(points) for points in self.functions]

    def to_vector(
        self, *, shared: bool = False, tied: bool = False, fixed_gradient_scale: bool = False
    ) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1] that `from_vector` turns back into these parameters."""
        for name, points in zip(FUNCTION_NAMES, self.functions, strict=True):
            if points[0][1] != 0 or points[-1][1] != 1:
                raise ValueError(
                    f"{name}: a vector describes functions from (0, 0) to (1, 1), "
                    f"this one goes from {points[0]} to {points[-1]}"
                )
        if shared and len(set(self.functions)) != 1:
            raise ValueError("shared: the five functions differ")
        if tied and self.functions[4] != self.functions[0]:
            raise ValueError("tied: f5 differs from f1")
        _check_segments(self.segments)
        kept = self.functions[: 1 if shared else 4 if tied else 5]
        fractions = np.concatenate([fractions_from_points(points) for points in kept])
        if fixed_gradient_scale:
            return fractions
        theta_lambda = (math.log10(self.gradient_scale) + 1) / 2
        if not 0 <= theta_lambda <= 1:
            raise ValueError(
                f"gradient_scale: a vector holds scales from 0.1 to 10, found {self.gradient_scale}"
            )
        return np.append(fractions, theta_lambda)

    def punished_ranges(self) -> list[PunishedRange]:
        """Where a better box makes the loss worse: qualities l, and the rank error from which on.

        A positive adds f1(l) - r f5(l) to the AP, r = N_i / D_i being its rank error. Where f5 rises
        more steeply than f1, a badly ranked positive (r above f1'/f5') is pushed away from its box.
        Only rank errors that can occur are reported: r stays below the largest ratio f2/f4. An empty
        list means that a better box never hurts. The effect of a box on other positives, through f3,
        is always to the good and left out.
        """
        f1, _, _, _, f5 = (np.array(points) for points in self.functions)
        edges = np.unique(np.concatenate([f1[:, 0], f5[:, 0]]))
        widths = np.diff(edges)
        slope1 = np.diff(np.interp(edges, f1[:, 0], f1[:, 1])) / widths
        slope5 = np.diff(np.interp(edges, f5[:, 0], f5[:, 1])) / widths
        worst = self._largest_rank_error()
        ranges: list[PunishedRange] = []
        for start, stop, rise1, rise5 in zip(edges[:-1], edges[1:], slope1, slope5, strict=True):
            # A tied f5 makes the ratio 1 up to rounding: never above the largest rank error of 1.
            if rise5 > 0 and rise1 / rise5 < worst - 1e-9:
                ranges.append(PunishedRange(float(start), float(stop), float(rise1 / rise5)))
        return ranges

    def _largest_rank_error(self) -> float:
        """Bound of N_i / D_i: the largest f2/f4 over score differences (at least 1, reached far above)."""
        f2, f4 = (np.array(self.functions[k]) for k in (1, 3))
        x = np.unique(np.concatenate([f2[:, 0], f4[:, 0]]))
        numerator = np.interp(x, f2[:, 0], f2[:, 1])
        denominator = np.interp(x, f4[:, 0], f4[:, 1])
        positive = denominator > 0
        if np.any(numerator[~positive] > 0):
            return math.inf
        # On each linear piece the ratio is monotone, so its largest value sits on a control point,
        # or is the ratio of the first slopes where both functions start from 0.
        ratios = list(numerator[positive] / denominator[positive])
        for low, high in pairwise(range(len(x))):
            if not positive[low] and positive[high]:
                ratios.append(
                    (numerator[high] - numerator[low]) / (denominator[high] - denominator[low])
                )
        return float(max(ratios))

    # ---------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a one-head loss file (json)."""
        save_heads({DEFAULT_HEAD: self}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, head: str | None = None) -> LossParameters:
        """Read a loss file; ``head`` chooses one where the file holds several."""
        return choose_head(load_heads(path), head, where=str(path))


def vector_length(
    segments: int = 5,
    *,
    shared: bool = False,
    tied: bool = False,
    fixed_gradient_scale: bool = False,
) -> int:
    """How many numbers describe a loss: 41 for five separate functions of five segments."""
    _check_segments(segments)
    if shared and tied:
        raise ValueError("shared, tied: a shared function is tied already; pass one of the two")
    functions = 1 if shared else 4 if tied else 5
    return functions * 2 * (segments - 1) + (not fixed_gradient_scale)


def save_heads(
    heads: Mapping[str, LossParameters],
    path: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a loss file with the parameters of one or several detector heads, by name."""
    content: dict[str, Any] = {"format": FILE_FORMAT, "version": FILE_VERSION}
    if about:
        content["about"] = dict(about)
    content["heads"] = {
        head: {
            "gradient_scale": parameters.gradient_scale,
            "functions": dict(zip(FUNCTION_NAMES, map(list, parameters.functions), strict=True)),
        }
        for head, parameters in heads.items()
    }
    target = Path(path)
    # Written aside and moved into place, so that a stop half-way leaves no torn file.
    temporary = target.with_name(target.name + ".partial")
    temporary.write_text(_one_function_a_line(content), encoding="utf-8")
    temporary.replace(target)


def load_heads(path: str | os.PathLike[str]) -> dict[str, LossParameters]:
    """Read every head of a loss file; a malformed file gives a `ValueError` naming file and field."""
    return parse_heads(Path(path).read_text(encoding="utf-8"), where=str(path))


def parse_heads(text: str, *, where: str) -> dict[str, LossParameters]:
    """The heads in the text of a loss file; ``where`` names its origin in errors."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not a json file: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FILE_FORMAT:
        raise ValueError(f'{where}: not a loss file: expected "format": {FILE_FORMAT!r}')
    if content.get("version") != FILE_VERSION:
        raise ValueError(
            f"{where}: version: expected {FILE_VERSION}, found {content.get('version')!r}"
        )
    heads = content.get("heads")
    if not isinstance(heads, dict) or not heads:
        raise ValueError(f"{where}: heads: expected at least one named head, found {heads!r}")
    return {str(name): _parse_head(head, f"{where}: heads.{name}") for name, head in heads.items()}


def choose_head(
    heads: Mapping[str, LossParameters], head: str | None, *, where: str
) -> LossParameters:
    """One of several heads: the named one, or the only one."""
    if head is None:
        if len(heads) > 1:
            raise ValueError(f"{where}: holds the heads {', '.join(heads)}: choose one with head=")
        return next(iter(heads.values()))
    if head not in heads:
        raise ValueError(f"{where}: head: expected one of {', '.join(heads)}, found {head!r}")
    return heads[head]


def _parse_head(head: Any, where: str) -> LossParameters:
    functions = head.get("functions") if isinstance(head, dict) else None
    if not isinstance(functions, dict):
        raise ValueError(f"{where}.functions: expected an object with f1..f5, found {functions!r}")
    if set(functions) != set(FUNCTION_NAMES):
        missing = sorted(set(FUNCTION_NAMES) - set(functions))
        unknown = sorted(set(functions) - set(FUNCTION_NAMES))
        raise ValueError(
            f"{where}.functions: expected f1..f5"
            + (f", missing {', '.join(missing)}" if missing else "")
            + (f", unknown {', '.join(unknown)}" if unknown else "")
        )
    scale = head.get("gradient_scale")
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ValueError(f"{where}.gradient_scale: expected a number, found {scale!r}")
    for name in FUNCTION_NAMES:
        for point in functions[name] if isinstance(functions[name], list) else [functions[name]]:
            if not (
                isinstance(point, list)
                and len(point) == 2
                and all(isinstance(v, int | float) and not isinstance(v, bool) for v in point)
            ):
                raise ValueError(
                    f"{where}.functions.{name}: expected [x, y] pairs of numbers, found {point!r}"
                )
    try:
        return LossParameters.from_control_points(
            [functions[name] for name in FUNCTION_NAMES], float(scale)
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _one_function_a_line(content: Mapping[str, Any]) -> str:
    """Indented json, but each list of control points on a line of its own."""
    lists: list[str] = []

    def keep_aside(value: Any) -> Any:
        if isinstance(value, list):
            lists.append(json.dumps(value))
            return f"\0{len(lists) - 1}"
        if isinstance(value, dict):
            return {key: keep_aside(item) for key, item in value.items()}
        return value

    text = json.dumps(keep_aside(dict(content)), indent=2)
    for index, line in enumerate(lists):
        text = text.replace(f'"\\u0000{index}"', line)
    return text + "\n"


def _check_segments(segments: int) -> None:
    if segments < 2:
        raise ValueError(f"segments: expected at least 2, found {segments}")


def _check_points(name: str, points: Points) -> None:
    if len(points) < 2:
        raise ValueError(f"{name}: expected at least 2 control points, found {len(points)}")
    x, y = np.array(points).T
    if not np.all(np.isfinite(points)):
        raise ValueError(f"{name}: expected finite numbers, found {list(points)}")
    if x[0] != 0 or x[-1] != 1:
        raise ValueError(f"{name}: expected x from 0 to 1, found x from {x[0]} to {x[-1]}")
    if np.any(np.diff(x) <= 0):
        raise ValueError(f"{name}: expected strictly increasing x, found {x.tolist()}")
    if np.any(np.diff(y) < 0):
        raise ValueError(f"{name}: expected y that never falls, found {y.tolist()}")
    if y[0] < 0 or y[-1] > 1:
        raise ValueError(f"{name}: expected y within [0, 1], found {y.tolist()}")


def _lower_of(one: Points, other: Points) -> Points:
    """Control points of min(one, other); the one itself if it is nowhere above."""
    a, b = np.array(one), np.array(other)
    edges = np.unique(np.concatenate([a[:, 0], b[:, 0]]))
    gap = np.interp(edges, *a.T) - np.interp(edges, *b.T)
    if np.all(gap <= 0):
        return one
    crossing = gap[:-1] * gap[1:] < 0
    between = edges[:-1] - gap[:-1] * np.diff(edges) / np.where(crossing, np.diff(gap), 1)
    x = np.unique(np.concatenate([edges, between[crossing]]))
    # Accumulated, for rounding may let it fall by a hair.
    y = np.maximum.accumulate(np.minimum(np.interp(x, *a.T), np.interp(x, *b.T)))
    return tuple((float(u), float(v)) for u, v in zip(x, y, strict=True))


def points_from_fractions(fractions: npt.NDArray[np.float64]) -> Points:
    """Control points from (M-1, 2) fractions: p_k = p_{k-1} + fraction_k (1 - p_{k-1})."""
    inner = 1 - np.cumprod(1 - fractions, axis=0)
    x = np.concatenate([[0.0], inner[:, 0], [1.0]])
    y = np.concatenate([[0.0], inner[:, 1], [1.0]])
    # Fractions at or near 0 and 1 put points on top of each other: keep them apart, in order.
    gaps = _SMALLEST_GAP * np.arange(len(x))
    x = np.maximum.accumulate(x - gaps) + gaps
    x = np.minimum(x, 1 - gaps[::-1])
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True))


def fractions_from_points(points: Points) -> npt.NDArray[np.float64]:
    table = np.array(points)
    remaining = 1 - table[:-2]  # an exhausted remainder (y already 1) leaves any fraction: take 1
    steps = np.diff(table[:-1], axis=0)
    fractions: npt.NDArray[np.float64] = np.divide(
        steps, remaining, out=np.ones_like(steps), where=remaining > 0
    )
    return np.asarray(fractions.clip(0, 1)).reshape(-1)

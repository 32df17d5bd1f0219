"""What is searched: numbers in [0, 1] with names, and the loss they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from paploss.loss.parameters import (
    FUNCTION_NAMES,
    LossParameters,
    fractions_from_points,
    points_from_fractions,
)

SCALE = "scale"  # the gradient scale, beside f1..f5


@dataclass(frozen=True)
class SearchSpace:
    """Named numbers in [0, 1] for the functions and gradient scales of all heads of a detector.

    A number is called ``head.f2.x1`` (a fraction of eq. 8) or ``head.scale`` (theta_lambda). What is
    not searched keeps the value it has in ``start``.

    Args:
        start: of every head, where the search begins.
        shared: one function in all five places; it is called f1.
        safe: only losses that never punish a better box: f5 is f1, and f2 is cut off above f4.
        fixed: any of f1..f5 and ``scale`` that are not searched.

    Example:
        >>> space = SearchSpace({"detector": LossParameters.linear()})
        >>> len(space.names), space.names[0], space.names[-1]
        (41, 'detector.f1.x1', 'detector.scale')
    """

    start: Mapping[str, LossParameters]
    shared: bool = False
    safe: bool = False
    fixed: frozenset[str] = frozenset()
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        unknown = sorted(self.fixed - {*FUNCTION_NAMES, SCALE})
        if unknown:
            raise ValueError(f"fixed: expected f1..f5 or {SCALE}, found {', '.join(unknown)}")
        if self.shared and self.safe:
            raise ValueError("shared, safe: a shared function is safe already; choose one")
        for head, parameters in self.start.items():
            if self.shared and len(set(parameters.functions)) != 1:
                raise ValueError(f"shared: the start of {head} has functions that differ")
        names = tuple(
            f"{head}.{function}.{axis}{point}" if function != SCALE else f"{head}.{SCALE}"
            for head, parameters in self.start.items()
            for function in self._searched()
            for point, axis in (
                [
                    (k, axis)
                    for k in range(1, len(parameters.functions[FUNCTION_NAMES.index(function)]) - 1)
                    for axis in "xy"
                ]
                if function != SCALE
                else [(0, "")]
            )
        )
        if not names:
            raise ValueError("fixed: nothing is left to search")
        object.__setattr__(self, "names", names)

    def _searched(self) -> list[str]:
        functions = ["f1"] if self.shared else list(FUNCTION_NAMES[: 4 if self.safe else 5])
        return [name for name in (*functions, SCALE) if name not in self.fixed]

    def values(self, heads: Mapping[str, LossParameters] | None = None) -> dict[str, float]:
        """The numbers of given parameters, by default of the start."""
        heads = self.start if heads is None else heads
        numbers: list[float] = []
        for parameters in heads.values():
            for name in self._searched():
                if name == SCALE:
                    numbers.append((math.log10(parameters.gradient_scale) + 1) / 2)
                else:
                    points = parameters.functions[FUNCTION_NAMES.index(name)]
                    numbers += fractions_from_points(points).tolist()
        outside = [n for n, v in zip(self.names, numbers, strict=True) if not 0 <= v <= 1]
        if outside:
            raise ValueError(f"start: {outside[0]} lies outside of what can be searched")
        return dict(zip(self.names, numbers, strict=True))

    def heads(self, values: Mapping[str, float]) -> dict[str, LossParameters]:
        """The loss of every head that the numbers stand for."""
        heads = {}
        for head, start in self.start.items():
            functions = list(start.functions)
            scale = start.gradient_scale
            for name in self._searched():
                if name == SCALE:
                    scale = 10 ** (2 * values[f"{head}.{SCALE}"] - 1)
                    continue
                own = f"{head}.{name}."
                numbers = [values[n] for n in self.names if n.startswith(own)]
                points = points_from_fractions(np.reshape(numbers, (-1, 2)))
                functions[FUNCTION_NAMES.index(name)] = points
            if self.shared:
                functions = functions[:1] * 5
            loss = LossParameters(tuple(functions), scale)
            heads[head] = loss.safe() if self.safe else loss
        return heads

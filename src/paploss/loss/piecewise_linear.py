"""Monotone piecewise-linear functions on [0, 1]: the f(x; theta) that replace the step functions of AP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class PiecewiseLinear:
    """A piecewise-linear function given by its control points, ready for tensors on one device.

    A point that lies exactly on a control point belongs to the segment on its right
    (``x_k <= x < x_{k+1}``, the paper's convention); ``x = 1`` belongs to the last segment.

    Args:
        points: ``(x, y)`` pairs, x strictly increasing from 0 to 1.
        device: where the tables live.

    Example:
        >>> f = PiecewiseLinear([(0.0, 0.0), (0.5, 0.2), (1.0, 1.0)])
        >>> f(torch.tensor([0.25, 0.75], dtype=torch.float64))
        tensor([0.1000, 0.6000], dtype=torch.float64)
    """

    def __init__(
        self, points: Sequence[tuple[float, float]], device: torch.device | str = "cpu"
    ) -> None:
        table = torch.tensor(list(points), dtype=torch.float64)
        slopes = table[:, 1].diff() / table[:, 0].diff()
        self.x = table[:, 0].to(device)  # (M+1,)
        self.y = table[:, 1].to(device)  # (M+1,)
        self.slopes = slopes.to(device)  # (M,)
        self._inner = self.x[1:-1].contiguous()
        self.at_zero: float = table[0, 1].item()
        half = int((table[:, 0] <= 0.5).sum()) - 1
        self.at_half: float = (
            table[half, 1] + slopes[half] * (0.5 - table[half, 0])
        ).item()  # value of two equal scores

    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and f'(x), elementwise, in float64."""
        x = x.double()
        segment = torch.bucketize(x, self._inner, right=True)
        slope = self.slopes.take(segment)
        return self.y.take(segment) + slope * (x - self.x.take(segment)), slope

    def __call__(self, x: Tensor) -> Tensor:
        """f(x), differentiable in x."""
        return self.value_and_slope(x)[0]

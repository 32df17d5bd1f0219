"""The gradient scale lambda: balances the box branch against the class branch (paper, section 3.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.scale, None


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """Return ``x`` unchanged; multiply the gradient that flows back through it by ``scale``.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> scale_gradient(x, 3.0).sum().backward()
        >>> x.grad
        tensor([3., 3.])
    """
    result: Tensor = _ScaleGradient.apply(x, scale)
    return result

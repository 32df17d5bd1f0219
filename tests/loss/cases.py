"""Generated inputs of the loss: ordinary ones and the corners where a ranking kernel may err."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from paploss import LossParameters
from paploss.loss.reference import parameterized_ap_loss_reference

KINDS = ("ordinary", "narrow", "ties", "knots hit", "1e4 apart", "around 1e4", "all positive")


@dataclass
class Case:
    logits: Tensor
    labels: Tensor
    quality: Tensor
    parameters: LossParameters
    block_denominator_gradient: bool


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    kind = draw(st.sampled_from(KINDS))
    rows = draw(st.integers(1, 60))
    classes = draw(st.sampled_from([1, 1, 2, 5]))
    segments = draw(st.sampled_from([2, 3, 5, 7]))
    name = draw(st.sampled_from(["searched"] * 5 + ["linear", "square", "sqrt", "sigmoid"]))
    contiguous = draw(st.booleans())
    block = draw(st.booleans())
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, classes) if contiguous else (classes, rows)

    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "narrow":
        logits = logits * 0.01 - 4.6  # the start of training
    elif kind == "ties":
        logits = logits.round()
    elif kind == "knots hit":
        logits = (logits * 8).round() / 8
    elif kind == "1e4 apart":
        logits = logits * 1e4
    elif kind == "around 1e4":
        logits = logits * 3 + 1e4
    logits = logits.to(dtype)
    if not contiguous:
        logits = logits.T
    lowest = 0 if kind == "all positive" else -2
    labels = torch.randint(lowest, classes, (rows,), generator=generator)
    quality = torch.rand(rows, generator=generator, dtype=torch.float64)
    if kind == "knots hit":
        quality = (quality * 8).round() / 8
    parameters = _parameters(name, kind, segments, seed)
    return Case(logits, labels, quality.to(dtype), parameters, block)


def _parameters(name: str, kind: str, segments: int, seed: int) -> LossParameters:
    if name != "searched":
        return LossParameters.substitution(name)
    random = np.random.default_rng(seed)
    if kind != "knots hit":
        return LossParameters.from_vector(
            random.uniform(0.05, 0.95, 10 * (segments - 1) + 1), segments
        )
    points = []  # on a grid of 1/16, so that score differences of n/8 meet the knots exactly
    for _ in range(5):
        x = np.sort(random.choice(np.arange(1, 16), segments - 1, replace=False)) / 16
        y = np.sort(random.uniform(size=segments - 1))
        points.append([(0.0, 0.0), *zip(x, y, strict=True), (1.0, 1.0)])
    return LossParameters.from_control_points(points)


def reference_gradients(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients of logits and quality by the dense formula in float64."""
    logits = case.logits.detach().double().requires_grad_()
    quality = case.quality.detach().double().requires_grad_()
    loss = parameterized_ap_loss_reference(
        logits,
        case.labels,
        quality,
        case.parameters,
        block_denominator_gradient=case.block_denominator_gradient,
    )
    return loss.detach(), *torch.autograd.grad(loss, (logits, quality), materialize_grads=True)

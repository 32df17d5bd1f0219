"""The kernel against the dense formula: ties, knots hit exactly, large logits, every precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paploss import LossParameters, parameterized_ap_loss
from paploss.loss.piecewise_linear import PiecewiseLinear
from tests.loss.cases import Case, cases, reference_gradients

EXAMPLES = {torch.float64: 1000, torch.float32: 1000, torch.float16: 300, torch.bfloat16: 300}
TOLERANCE = {torch.float64: 1e-12}  # of the largest gradient; 1e-6 for the others


@pytest.mark.parametrize("dtype", EXAMPLES, ids=str)
def test_equals_dense_formula(dtype: torch.dtype, kernel: str) -> None:
    @settings(max_examples=EXAMPLES[dtype], suppress_health_check=list(HealthCheck))
    @given(case=cases(dtype))
    def check(case: Case) -> None:
        expected_loss, *expected_gradients = reference_gradients(case)
        # A transposed tensor stays transposed: detach, not clone.
        logits = case.logits.detach().requires_grad_()
        quality = case.quality.detach().requires_grad_()
        loss = parameterized_ap_loss(
            logits,
            case.labels,
            quality,
            case.parameters,
            block_denominator_gradient=case.block_denominator_gradient,
        )
        gradients = torch.autograd.grad(loss, (logits, quality), materialize_grads=True)

        # A steep segment magnifies the rounding of a score difference, in the dense formula too.
        steepness = max(PiecewiseLinear(f).slopes.max().item() for f in case.parameters.functions)
        tolerance = TOLERANCE.get(dtype, 1e-6) * (
            max(1, steepness / 50) if dtype == torch.float64 else 1
        )
        assert abs(loss.item() - expected_loss.item()) <= tolerance * max(
            abs(expected_loss.item()), 1e-3
        )
        for gradient, expected in zip(gradients, expected_gradients, strict=True):
            assert gradient.dtype == dtype
            largest = expected.abs().max().item() if expected.numel() else 0.0
            # Half precision can only hold the rounded gradient.
            rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
            smallest = torch.finfo(dtype).smallest_normal if dtype.itemsize == 2 else 0
            error = (gradient.double() - expected).abs().max().item() if expected.numel() else 0.0
            assert error <= (tolerance + rounding) * largest + smallest

    check()


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), block=st.just(False))
def test_gradcheck(seed: int, block: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 2, generator=generator, dtype=torch.float64) * 0.7
    quality = torch.rand(9, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    labels = torch.randint(-2, 2, (9,), generator=generator)
    labels[0] = 0
    parameters = LossParameters.from_control_points(
        [[(0, 0), (0.37, 0.2), (0.61, 0.7), (1, 1)]] * 5
    )
    knots = torch.tensor([0.0, 0.37, 0.61, 1.0], dtype=torch.float64)
    positive = logits[labels >= 0, labels[labels >= 0]]
    inputs = (logits.flatten() - positive[:, None]) / 2 + 0.5
    margin = 1e-5  # finite differences must not step over a knot
    if ((inputs[..., None] - knots).abs().min() < margin) or (
        (quality[:, None] - knots).abs().min() < margin
    ):
        return
    torch.autograd.gradcheck(
        lambda s, q: parameterized_ap_loss(
            s, labels, q, parameters, block_denominator_gradient=block
        ),
        (logits.requires_grad_(), quality.requires_grad_()),
        eps=1e-7,
        atol=1e-6,
    )


def test_many_positives_need_no_square_matrix(kernel: str) -> None:
    """20,000 positives as one P x P float64 matrix would take 3.2 GB."""
    import resource

    positives = 20_000
    logits = torch.randn(positives + 30_000, 1, requires_grad=True)
    labels = torch.cat([torch.zeros(positives), -torch.ones(30_000)]).long()
    quality = torch.rand(len(labels))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss = parameterized_ap_loss(logits, labels, quality, LossParameters.linear())
    loss.backward()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600_000  # kB
    # A sample of positives against the formula itself.
    s = logits.detach().double().flatten()
    weight = torch.where(labels == 0, 1 - quality.double(), 1.0)
    terms = []
    for i in range(0, positives, 997):
        x = (s - s[i]).clamp(-1, 1) / 2 + 0.5
        terms.append((x @ weight - 0.5 * weight[i]) / (1 + x.sum() - 0.5))
    assert 0 < loss.item() < 1
    assert torch.stack(terms).mean() == pytest.approx(
        1 - (1 - loss.item()) / quality[:positives].mean().item(), rel=0.05
    )

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from paploss import LossParameters
from paploss.loss.piecewise_linear import PiecewiseLinear


@given(seed=st.integers(0, 2**32 - 1), segments=st.integers(2, 9))
def test_equals_interpolation(seed: int, segments: int) -> None:
    random = np.random.default_rng(seed)
    vector = random.uniform(0, 1, 2 * (segments - 1))
    points = LossParameters.from_vector(
        vector, segments, shared=True, gradient_scale=1.0
    ).functions[0]
    f = PiecewiseLinear(points)
    x = np.append(random.uniform(0, 1, 50), np.array(points)[:, 0])
    value, slope = f.value_and_slope(torch.from_numpy(x))
    # Steep segments magnify the rounding of x.
    np.testing.assert_allclose(value, np.interp(x, *np.array(points).T), atol=1e-9)
    assert (slope >= 0).all()
    assert f.at_half == np.float64(f(torch.tensor([0.5]))[0])
    assert f.at_zero == points[0][1]


def test_slope_at_a_control_point_is_that_of_its_right() -> None:
    f = PiecewiseLinear([(0.0, 0.0), (0.5, 0.2), (1.0, 1.0)])
    _, slope = f.value_and_slope(torch.tensor([0.0, 0.5, 1.0]))
    assert slope.tolist() == [0.4, 1.6, 1.6]
    x = torch.tensor([0.5], requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == np.float32(1.6)

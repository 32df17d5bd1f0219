from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou, generalized_box_iou

from paploss.loss.localization import (
    LOCALIZATION_QUALITIES,
    giou_quality,
    iou_quality,
    l1_quality,
)


def boxes(seed: int, rows: int = 20, unit: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(2, rows, 2, generator=generator, dtype=torch.float64)
    size = torch.rand(2, rows, 2, generator=generator, dtype=torch.float64) + 0.05
    first, second = torch.cat([corner, corner + size], dim=2) * unit
    return first, second


@given(seed=st.integers(0, 2**32 - 1), unit=st.sampled_from([1e-3, 1.0, 1e3]))
def test_equals_torchvision(seed: int, unit: float) -> None:
    first, second = boxes(seed, unit=unit)
    torch.testing.assert_close(iou_quality(first, second), box_iou(first, second).diagonal())
    expected = (generalized_box_iou(first, second).diagonal() + 1) / 2
    torch.testing.assert_close(giou_quality(first, second), expected)


@pytest.mark.parametrize("name", LOCALIZATION_QUALITIES)
def test_range_perfection_and_gradient(name: str) -> None:
    quality = LOCALIZATION_QUALITIES[name]
    first, second = boxes(0)
    assert quality(second, second).tolist() == pytest.approx([1.0] * 20)
    values = quality(first, second)
    assert ((values >= 0) & (values <= 1)).all()
    near = second + torch.randn_like(second) * 0.01
    torch.autograd.gradcheck(lambda b: quality(b, second), (near.requires_grad_(),))


def test_only_giou_sees_boxes_that_do_not_touch() -> None:
    predicted = torch.tensor([[0.0, 0.0, 1.0, 1.0]], requires_grad=True)
    target = torch.tensor([[5.0, 5.0, 6.0, 6.0]])
    for quality, sees in ((giou_quality, True), (iou_quality, False), (l1_quality, False)):
        (gradient,) = torch.autograd.grad(quality(predicted, target).sum(), predicted)
        assert bool(gradient.any()) is sees


def test_l1_is_measured_in_the_targets_size() -> None:
    target = torch.tensor([[0.0, 0.0, 10.0, 20.0], [0.0, 0.0, 100.0, 200.0]])
    predicted = target + torch.tensor([[1.0, 0.0, 0.0, -2.0], [10.0, 0.0, 0.0, -20.0]])
    assert l1_quality(predicted, target).tolist() == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("name", LOCALIZATION_QUALITIES)
def test_degenerate_boxes_stay_finite(name: str) -> None:
    point = torch.tensor([[3.0, 3.0, 3.0, 3.0]], requires_grad=True)
    for target in (point.detach(), torch.tensor([[0.0, 0.0, 2.0, 2.0]])):
        value = LOCALIZATION_QUALITIES[name](point, target)
        (gradient,) = torch.autograd.grad(value.sum(), point)
        assert value.isfinite().all()
        assert gradient.isfinite().all()

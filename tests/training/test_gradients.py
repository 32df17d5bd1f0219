"""The gradients of the two branches are read where they are, and left as they are."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from paploss import LossParameters
from paploss.criteria import Criteria, MatchedPredictions, build_criterion
from paploss.training.gradients import BranchGradients


def predictions() -> tuple[MatchedPredictions, torch.Tensor, torch.Tensor]:
    """What a criterion is given, and the outputs of the two branches behind it."""
    logits = torch.randn(40, 3, requires_grad=True)
    outputs = torch.rand(5, 4, requires_grad=True)
    labels = torch.full((40,), -1)
    labels[:5] = torch.tensor([0, 1, 2, 0, 1])
    corner = torch.tensor([0.0, 0.0, 2.0, 2.0])
    targets = (corner + 0.3).expand(5, 4)
    deltas = outputs * 1
    matched = MatchedPredictions(logits * 1, labels, corner + deltas, targets, deltas, targets)
    return matched, logits, outputs


def gradients(scale: float, *, watched: bool) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    parameters = LossParameters.from_control_points([[(0, 0), (1, 1)]] * 5, scale)
    criteria = Criteria(build_criterion("pap", parameters=parameters), ["detector"])
    watch = BranchGradients(criteria) if watched else None
    matched, logits, outputs = predictions()
    with watch.reading(True) if watch else nullcontext():
        sum(criteria["detector"](matched).values()).backward()
    assert logits.grad is not None
    assert outputs.grad is not None
    return watch.take() if watch else [], logits.grad, outputs.grad


def test_norms_are_those_that_reach_the_branches() -> None:
    norms, of_logits, of_boxes = gradients(1.0, watched=True)
    assert norms == pytest.approx([of_logits.norm().item(), of_boxes.norm().item()])
    _, plain_logits, plain_boxes = gradients(1.0, watched=False)
    assert torch.equal(of_logits, plain_logits)
    assert torch.equal(of_boxes, plain_boxes)


def test_the_gradient_scale_is_seen() -> None:
    once, four_times = gradients(1.0, watched=True)[0], gradients(4.0, watched=True)[0]
    assert four_times == pytest.approx([once[0], 4 * once[1]])


def test_nothing_is_read_that_is_not_wanted_nor_carried_over() -> None:
    torch.manual_seed(0)
    criteria = Criteria(build_criterion("focal+l1"), ["detector"])
    watch = BranchGradients(criteria)
    with watch.reading(False):
        sum(criteria["detector"](predictions()[0]).values()).backward()
    assert watch.take() == [0, 0]
    with watch.reading(True):
        sum(criteria["detector"](predictions()[0]).values()).backward()
    assert min(watch.take()) > 0
    assert watch.take() == [0, 0]
    with watch.reading(True), torch.no_grad():
        criteria["detector"](predictions()[0])
    assert watch.take() == [0, 0]

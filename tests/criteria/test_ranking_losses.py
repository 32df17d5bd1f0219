"""AP, aLRP and Rank & Sort Loss against plain loops over their definitions."""

from __future__ import annotations

import resource

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torchvision.ops import generalized_box_iou_loss

from paploss.criteria import (
    ALRPCriterion,
    AveragePrecisionCriterion,
    MatchedPredictions,
    RankSortCriterion,
)
from paploss.criteria.rank_sort import _sorting_part, rank_sort_loss
from paploss.criteria.ranked_positives import RankedPositives
from paploss.loss.localization import iou_quality
from paploss.loss.parameterized_ap import find_positives
from tests.criteria.cases import (
    alrp_by_loop,
    ap_by_loop,
    gradients,
    make_matched,
    matched_predictions,
    rank_sort_by_loop,
)

DTYPES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3}
EXAMPLES = {torch.float64: 200, torch.float32: 100, torch.float16: 50}


def close(found: Tensor | float, expected: Tensor | float, tolerance: float) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


def generated(dtype: torch.dtype):  # type: ignore[no-untyped-def]
    def decorate(check):  # type: ignore[no-untyped-def]
        limits = settings(max_examples=EXAMPLES[dtype], suppress_health_check=list(HealthCheck))
        return limits(given(matched=matched_predictions(dtype))(check))

    return decorate


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ap_equals_its_definition(dtype: torch.dtype, kernel: str) -> None:
    @generated(dtype)
    def check(matched: MatchedPredictions) -> None:
        expected, expected_gradient = ap_by_loop(matched)
        loss, gradient, *_ = gradients(AveragePrecisionCriterion(), matched, "ap")
        close(loss, expected, min(DTYPES[dtype], 1e-6))
        close(gradient, expected_gradient, DTYPES[dtype])
        assert gradient.dtype == dtype

    check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alrp_equals_its_definition(dtype: torch.dtype, kernel: str) -> None:
    @generated(dtype)
    def check(matched: MatchedPredictions) -> None:
        tolerance = DTYPES[dtype]
        criterion = ALRPCriterion()
        predicted = matched.predicted_boxes.detach().double().requires_grad_()
        errors = generalized_box_iou_loss(predicted, matched.target_boxes.double())
        expected, of_logits, expected_box, of_errors = alrp_by_loop(matched, errors.detach())
        (of_boxes,) = torch.autograd.grad(errors, predicted, 50 * of_errors)

        loss, gradient, *_ = gradients(criterion, matched, "alrp_classification")
        close(loss, expected, tolerance)
        close(gradient, of_logits, tolerance)
        loss, gradient, boxes, _ = gradients(criterion, matched, "alrp_box")
        close(loss, 50 * expected_box, 50 * tolerance)
        close(boxes, of_boxes, 50 * tolerance)
        assert not gradient.any()  # ranks are constants there

    check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rank_sort_equals_its_definition(dtype: torch.dtype, kernel: str) -> None:
    @generated(dtype)
    def check(matched: MatchedPredictions) -> None:
        tolerance = DTYPES[dtype]
        criterion = RankSortCriterion()
        quality = iou_quality(matched.predicted_boxes, matched.target_boxes).double()
        ranking, by_ranking, sorting, by_sorting = rank_sort_by_loop(matched, quality)
        loss, gradient, boxes, _ = gradients(criterion, matched, "ranking")
        close(loss, ranking, tolerance)
        close(gradient, by_ranking, tolerance)
        assert not boxes.any()
        loss, gradient, boxes, _ = gradients(criterion, matched, "sorting")
        close(loss, sorting, tolerance)
        close(gradient, by_sorting, tolerance)
        assert not boxes.any()  # the quality is a constant there
        loss, gradient, _, _ = gradients(criterion, matched, "box")
        close(loss, ranking + sorting, 10 * tolerance)  # self-balance
        assert not gradient.any()

    check()


def test_ap_by_hand() -> None:
    # Positive 0; negatives at 0.5 (H = .75) and far away: precision 1 / 1.75.
    matched = MatchedPredictions(
        torch.tensor([[0.0], [0.5], [-3.0]]), torch.tensor([0, -1, -1]), *torch.zeros(4, 1, 4)
    )
    loss, gradient, *_ = gradients(AveragePrecisionCriterion(), matched, "ap")
    assert loss.item() == pytest.approx(0.75 / 1.75)
    assert gradient.flatten().tolist() == pytest.approx([-0.75 / 1.75, 0.75 / 1.75, 0])


@pytest.mark.parametrize("criterion", [AveragePrecisionCriterion(), ALRPCriterion()])
def test_positives_and_negatives_balance(criterion: torch.nn.Module, kernel: str) -> None:
    """What pulls the positives up is what pushes the negatives down."""
    matched = make_matched(0, dtype=torch.float64)
    _, gradient, *_ = gradients(criterion, matched, next(iter(criterion(matched))))
    assert gradient.abs().sum() > 0
    assert gradient.sum().item() == pytest.approx(0, abs=1e-12)


def test_sorting_prefers_the_better_box() -> None:
    target = torch.tensor([[0.0, 0.0, 10.0, 10.0]] * 2)
    predicted = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0]])
    logits = torch.tensor([[0.0], [1.0], [-5.0]])  # the worse box is above
    matched = MatchedPredictions(
        logits, torch.tensor([0, 0, -1]), predicted, target, predicted * 0, target * 0
    )
    # Current: (1/2 * 0 + 1 * 1/2) / (3/2) = 1/3 for the first; target 0. Mean of two: 1/6.
    loss, gradient, *_ = gradients(RankSortCriterion(), matched, "sorting")
    assert loss.item() == pytest.approx(1 / 6)
    assert gradient.flatten().tolist() == pytest.approx([-1 / 6, 1 / 6, 0])


def test_alrp_balances_itself_after_an_epoch() -> None:
    matched = make_matched(1)
    criterion = ALRPCriterion()
    first = criterion(matched)
    assert criterion.balance.item() == 50
    criterion(make_matched(2))
    criterion.eval()
    criterion(make_matched(3))  # not training: does not count
    criterion.train()
    parts = [criterion.sums[0].item(), criterion.sums[1].item()]
    criterion.end_epoch()
    assert criterion.balance.item() == pytest.approx(sum(parts) / parts[1])
    second = criterion(matched)
    ratio = (second["alrp_box"] / first["alrp_box"]).item()
    assert ratio == pytest.approx(criterion.balance.item() / 50)
    kept = criterion.balance.item()
    criterion.end_epoch()
    criterion.end_epoch()  # an epoch without batches changes nothing
    assert criterion.balance.item() > 0
    assert kept > 1

    copy = ALRPCriterion()
    copy.load_state_dict(criterion.state_dict())
    assert copy.balance.item() == criterion.balance.item()


def test_many_positives_need_no_square_matrix(kernel: str) -> None:
    """20,000 positives as one P x P float64 matrix would take 3.2 GB."""
    positives = 20_000
    logits = torch.randn(positives + 10_000, 1, requires_grad=True)
    labels = torch.cat([torch.zeros(positives), -torch.ones(10_000)]).long()
    quality = torch.rand(positives)
    found = find_positives(logits, labels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ranking, sorting = rank_sort_loss(logits, found, quality)
    (ranking + sorting).backward()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600_000  # kB

    s, y = logits.detach().double().flatten()[:positives], quality.double()
    errors, by_score = _sorting_part(RankedPositives(logits, found, 0.5), y, 0.5)
    assert sorting.item() == pytest.approx(errors.mean().item())
    assert by_score.sum().item() == pytest.approx(0, abs=1e-9)
    for i in (0, 777, 19_999):  # a sample of positives against the definition
        above = (s - s[i] + 0.5).clamp(0, 1)
        target = above * (y >= y[i])
        expected = above @ (1 - y) / above.sum() - target @ (1 - y) / target.sum()
        assert errors[i].item() == pytest.approx(expected.item(), abs=1e-10)

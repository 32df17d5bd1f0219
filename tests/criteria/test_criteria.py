"""What all criteria have in common: empty batches, ignored rows, order, perfection, names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import generalized_box_iou_loss

import paploss.criteria
from paploss import LossParameters, ParameterizedAPLoss
from paploss.criteria import (
    CRITERIA,
    Criteria,
    Criterion,
    CrossEntropyCriterion,
    CSEAutoLossACriterion,
    FocalCriterion,
    MatchedPredictions,
    build_criteria,
    build_criterion,
)
from paploss.loss.localization import iou_quality
from tests.criteria.cases import gradients, make_matched, with_gradients

RANKING = ("pap", "ap+l1", "alrp", "rs")


@pytest.fixture(params=CRITERIA)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def matched_for(criterion: Criterion, seed: int = 0, **options: object) -> MatchedPredictions:
    return make_matched(seed, background=criterion.score == "softmax", **options)  # type: ignore[arg-type]


def rows_of(matched: MatchedPredictions, rows: Tensor) -> MatchedPredictions:
    """Some rows in some order, with the boxes of the positives among them."""
    number = torch.full_like(matched.labels, -1)
    number[matched.labels >= 0] = torch.arange(len(matched.predicted_boxes))
    chosen = number[rows][matched.labels[rows] >= 0]
    return MatchedPredictions(
        matched.logits[rows], matched.labels[rows], *(x[chosen] for x in matched[2:])
    )


def test_names_and_kinds() -> None:
    assert set(CRITERIA) == {
        *("pap", "focal+l1", "focal+giou", "focal+l1+giou", "ce+l1", "ce+giou"),
        *("ap+l1", "alrp", "rs", "cse-autoloss-a"),
    }
    built = {name: build_criterion(name) for name in CRITERIA}
    assert tuple(name for name in CRITERIA if built[name].ranking) == RANKING
    softmax = {name for name in CRITERIA if built[name].score == "softmax"}
    assert softmax == {"ce+l1", "ce+giou", "cse-autoloss-a"}


def test_public_names() -> None:
    assert sorted(paploss.criteria.__all__) == [
        "ALRPCriterion",
        "AveragePrecisionCriterion",
        "CRITERIA",
        "CSEAutoLossACriterion",
        "Criteria",
        "Criterion",
        "CrossEntropyCriterion",
        "FocalCriterion",
        "MatchedPredictions",
        "ParameterizedAPCriterion",
        "RankSortCriterion",
        "build_criteria",
        "build_criterion",
    ]
    assert all(hasattr(paploss.criteria, name) for name in paploss.criteria.__all__)


def test_wrong_use_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected one of pap, focal\+l1.*found 'bce'"):
        build_criterion("bce")
    with pytest.raises(ValueError, match="parameters: only pap"):
        build_criterion("rs", parameters=LossParameters.linear())
    with pytest.raises(ValueError, match="box_loss: expected one of l1, giou"):
        FocalCriterion("l2")
    with pytest.raises(ValueError, match="localization"):
        build_criterion("pap", localization="diou")


def test_what_does_not_fit_together_is_named(name: str) -> None:
    criterion = build_criterion(name)
    matched = matched_for(criterion)
    with pytest.raises(ValueError, match=r"target_boxes: expected .* one row a positive"):
        criterion(matched._replace(target_boxes=matched.target_boxes[1:]))
    with pytest.raises(ValueError, match=r"labels: expected classes 0..2"):
        criterion(matched._replace(labels=matched.labels.clamp(min=3)))
    with pytest.raises(ValueError, match="logits"):
        criterion(matched._replace(logits=matched.logits.flatten()))


@pytest.mark.parametrize("rows", [0, 6])
@pytest.mark.parametrize("label", [-1, -2])
def test_no_positives(name: str, rows: int, label: int, kernel: str) -> None:
    criterion = build_criterion(name)
    matched = matched_for(criterion, rows=rows)
    matched = matched._replace(labels=torch.full((rows,), label))
    matched = with_gradients(MatchedPredictions(*matched[:2], *torch.zeros(4, 0, 4)))
    losses = criterion(matched)
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    assert matched.logits.grad is not None
    assert matched.logits.grad.isfinite().all()
    assert (matched.predicted_boxes.grad is not None) or (matched.box_deltas.grad is not None)
    only_negatives = losses.pop("focal", None), losses.pop("cross_entropy", None)
    assert all(loss.item() == 0 for loss in losses.values())
    for loss in only_negatives:
        assert loss is None or (loss.item() > 0) == (rows > 0 and label == -1)
    if criterion.ranking or label == -2:
        assert not matched.logits.grad.any()


def test_ignored_rows_count_nowhere(name: str, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = matched_for(criterion)
    kept = (matched.labels != -2).nonzero().squeeze(1)
    loss, of_logits, of_boxes, of_deltas = gradients(criterion, matched)
    alone = gradients(criterion, rows_of(matched, kept))
    torch.testing.assert_close(loss, alone[0])
    torch.testing.assert_close(of_logits[kept], alone[1])
    torch.testing.assert_close(of_boxes, alone[2])
    torch.testing.assert_close(of_deltas, alone[3])
    assert not of_logits[matched.labels == -2].any()


def test_order_does_not_matter(name: str, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = matched_for(criterion, dtype=torch.float64)
    order = torch.randperm(len(matched.labels))
    loss, of_logits, *_ = gradients(criterion, matched)
    permuted, of_permuted, *_ = gradients(criterion, rows_of(matched, order))
    assert permuted.item() == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(of_permuted, of_logits[order], rtol=1e-6, atol=1e-9)


def test_perfection_is_the_minimum(name: str, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = matched_for(criterion)
    imperfect = sum(loss.item() for loss in criterion(matched).values())
    logits = torch.full_like(matched.logits, -20.0)
    positive = (matched.labels >= 0).nonzero().squeeze(1)
    if criterion.score == "softmax":
        logits[:, -1] = 20
        logits[positive, -1] = -20
    logits[positive, matched.labels[positive]] = 20
    perfect = MatchedPredictions(
        logits, matched.labels, matched.target_boxes, matched.target_boxes, *torch.zeros(2, 0)
    )
    perfect = perfect._replace(
        box_deltas=matched.target_deltas, target_deltas=matched.target_deltas
    )
    losses = {key: loss.item() for key, loss in criterion(perfect).items()}
    if name == "cse-autoloss-a":  # its box loss is -2 / e at its best
        target = matched.target_boxes
        area = (target[:, 2] - target[:, 0]) * (target[:, 3] - target[:, 1])
        rows = (matched.labels != -2).sum().item()
        assert losses.pop("box") == pytest.approx((10 * -2 / area).sum().item() / rows, abs=1e-6)
    assert sum(losses.values()) == pytest.approx(0, abs=1e-4)
    assert imperfect > 0.1
    _, *gradient = gradients(criterion, perfect)
    assert all(part.isfinite().all() for part in gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision(name: str, dtype: torch.dtype, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = matched_for(criterion, dtype=dtype)
    same = matched._replace(logits=matched.logits.double())
    loss, of_logits, *_ = gradients(criterion, matched)
    expected, of_same, *_ = gradients(criterion, same)
    assert of_logits.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    tolerance = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(of_logits.double(), of_same, rtol=tolerance, atol=tolerance)


def test_state_dict_round_trip(name: str) -> None:
    criterion = build_criterion(name)
    matched = matched_for(criterion)
    criterion(matched)
    criterion.end_epoch()
    copy = build_criterion(name)
    copy.load_state_dict(criterion.state_dict())
    for key, loss in criterion(matched).items():
        assert copy(matched)[key].item() == loss.item()


@pytest.mark.parametrize("name", RANKING)
def test_only_differences_of_scores_matter(name: str, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = make_matched(4, dtype=torch.float64)
    shifted = matched._replace(logits=matched.logits + 7)
    names = [key for key in criterion(matched) if (name, key) != ("rs", "box")]
    # The box loss of Rank & Sort is weighted by probabilities.
    assert gradients(criterion, shifted, *names)[0].item() == pytest.approx(
        gradients(criterion, matched, *names)[0].item(), rel=1e-6
    )


@pytest.mark.parametrize("name", RANKING)
def test_numbers_that_are_none_show(name: str, kernel: str) -> None:
    criterion = build_criterion(name).eval()
    matched = make_matched(0)
    logits = matched.logits.clone()
    logits[(matched.labels == -1).nonzero()[0], 0] = torch.nan
    losses = criterion(matched._replace(logits=logits))
    assert torch.stack(list(losses.values())).sum().isnan()


@pytest.mark.parametrize("name", RANKING)
def test_descent_ranks_and_fits(name: str) -> None:
    """Gradient descent on free scores and boxes puts the positives on top and the boxes right."""
    criterion = build_criterion(name)
    matched = with_gradients(make_matched(5, rows=60))
    size = 40.0  # boxes in units of their size, so that one step fits scores and boxes
    free = (matched.predicted_boxes.detach() / size).requires_grad_()
    optimizer = torch.optim.Adam([matched.logits, free], lr=0.03)
    start = iou_quality(free.detach() * size, matched.target_boxes).mean()
    for _ in range(150):
        predicted = free * size
        deltas = (predicted - matched.target_boxes) / size
        losses = criterion(matched._replace(predicted_boxes=predicted, box_deltas=deltas))
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    scores = matched.logits.detach()
    positive = (matched.labels >= 0).nonzero().squeeze(1)
    own = scores[positive, matched.labels[positive]]
    others = scores[matched.labels == -1]
    assert own.min() > others.max()
    end = iou_quality(free.detach() * size, matched.target_boxes).mean()
    assert end > start


# -------------------------------------------------------------------- one by one


def test_pap_is_the_loss_itself() -> None:
    parameters = LossParameters.substitution("square")
    parameters = LossParameters(parameters.functions, gradient_scale=3.0)
    matched = make_matched(6)
    loss, of_logits, of_boxes, _ = gradients(build_criterion("pap", parameters=parameters), matched)
    positive = matched.labels >= 0
    predicted, target = torch.rand(2, len(matched.labels), 4)
    predicted[positive], target[positive] = matched.predicted_boxes, matched.target_boxes
    logits, predicted = matched.logits.clone().requires_grad_(), predicted.requires_grad_()
    expected = ParameterizedAPLoss(parameters)(logits, matched.labels, predicted, target)
    by_logits, by_boxes = torch.autograd.grad(expected, (logits, predicted))
    assert loss.item() == expected.item()
    assert torch.equal(of_logits, by_logits)
    torch.testing.assert_close(of_boxes, by_boxes[positive])


def test_focal_without_focus_is_half_the_cross_entropy() -> None:
    matched = make_matched(7)
    losses = FocalCriterion(alpha=0.5, gamma=0.0)(matched)
    kept = matched.labels != -2
    positive = (matched.labels >= 0).nonzero().squeeze(1)
    targets = torch.zeros_like(matched.logits)
    targets[positive, matched.labels[positive]] = 1
    expected = functional.binary_cross_entropy_with_logits(
        matched.logits[kept], targets[kept], reduction="sum"
    )
    assert losses["focal"].item() == pytest.approx(expected.item() / 2 / len(positive))


def test_box_losses_and_their_weights() -> None:
    for family in ("focal", "ap", "ce"):
        matched = make_matched(8, background=family == "ce")
        l1 = (matched.box_deltas - matched.target_deltas).abs().sum()
        giou = generalized_box_iou_loss(matched.predicted_boxes, matched.target_boxes).sum()
        # Cross entropy comes with sampling: all rows count, and GIoU weighs 10.
        count = (matched.labels != -2).sum() if family == "ce" else len(matched.box_deltas)
        usual = 10 if family == "ce" else 2
        cases = [("l1", l1 / count, 1), ("giou", usual * giou / count, usual)]
        for box, expected, weight in cases[: 1 if family == "ap" else 2]:
            name = f"{family}+{box}"
            assert build_criterion(name)(matched)["box"].item() == pytest.approx(expected.item())
            heavy = build_criterion(name, box_weight=7.0)(matched)["box"].item()
            assert heavy == pytest.approx(7 * expected.item() / weight)


def test_the_box_weight_of_pap_is_a_factor_of_its_scale() -> None:
    gradients = []
    for weight in (None, 3.0):
        matched = make_matched(8)
        boxes = matched.predicted_boxes.detach().requires_grad_()
        criterion = build_criterion("pap", box_weight=weight)
        torch.autograd.backward(criterion(matched._replace(predicted_boxes=boxes))["pap"])
        gradients.append(boxes.grad)
    assert gradients[0].abs().sum() > 0
    torch.testing.assert_close(gradients[1], 3 * gradients[0])


def test_deformable_detrs_loss_has_two_box_losses() -> None:
    matched = make_matched(8)
    both = build_criterion("focal+l1+giou")(matched)
    l1, giou = (build_criterion(f"focal+{box}")(matched) for box in ("l1", "giou"))
    assert both["box"].item() == pytest.approx((5 * l1["box"] + giou["box"]).item())
    assert both["focal"].item() == pytest.approx(2 * l1["focal"].item())
    halved = build_criterion("focal+l1+giou", box_weight=0.5)(matched)
    assert halved["box"].item() == pytest.approx(both["box"].item() / 2)


def test_one_criterion_for_each_head() -> None:
    heads = {"rpn": LossParameters.linear(), "rcnn": LossParameters.substitution("square")}
    criteria = build_criteria("pap", ("rpn", "rcnn"), parameters=heads)
    matched = make_matched(3)
    for head, parameters in heads.items():
        alone = build_criterion("pap", parameters=parameters)(matched)["pap"]
        assert criteria[head](matched)["pap"].item() == alone.item()
    assert criteria.ranking
    assert criteria.score == "sigmoid"
    shared = build_criteria("pap", ("rpn", "rcnn"), parameters={"detector": heads["rcnn"]})
    assert shared["rpn"](matched)["pap"].item() == criteria["rcnn"](matched)["pap"].item()
    with pytest.raises(ValueError, match="the loss has the heads rpn, rcnn, the detector detector"):
        build_criteria("pap", ("detector",), parameters=heads)


@pytest.mark.parametrize("name", ["alrp", "rs"])
def test_proposals_weigh_a_fifth_as_in_their_papers(name: str) -> None:
    criteria = build_criteria(name, ("rpn", "rcnn"))
    matched = make_matched(3)
    of_proposals, of_regions = (sum(criteria[h](matched).values()) for h in ("rpn", "rcnn"))
    assert of_proposals.item() == pytest.approx(0.2 * of_regions.item())


def test_heads_learn_from_epochs_on_their_own() -> None:
    criteria = build_criteria("alrp", ("rpn", "rcnn"))
    criteria["rcnn"](make_matched(3))
    criteria.end_epoch()
    assert criteria["rpn"].balance == 50
    assert criteria["rcnn"].balance != 50


def test_heads_that_do_not_fit_are_named() -> None:
    focal, entropy = build_criterion("focal+l1"), build_criterion("ce+l1")
    with pytest.raises(ValueError, match=r"each head \(rpn, rcnn\), found rpn"):
        Criteria({"rpn": focal}, ("rpn", "rcnn"))
    assert Criteria({"rpn": focal, "rcnn": entropy}, ("rpn", "rcnn")).score == "softmax", "the last"
    with pytest.raises(ValueError, match="expected a Criterion or a dict of them, found str"):
        Criteria("focal+l1", ("detector",))


def test_cross_entropy_is_pytorchs() -> None:
    matched = make_matched(9, background=True)
    kept = matched.labels != -2
    targets = torch.where(matched.labels < 0, 3, matched.labels)
    expected = functional.cross_entropy(matched.logits[kept], targets[kept])
    loss = CrossEntropyCriterion()(matched)["cross_entropy"]
    assert loss.item() == pytest.approx(expected.item())


def test_cse_autoloss_by_hand() -> None:
    predicted = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    target = torch.tensor([[0.0, 5.0, 10.0, 15.0]])  # i = 50, u = e = 150
    logits = torch.zeros(2, 3)
    matched = MatchedPredictions(
        logits, torch.tensor([1, -1]), predicted, target, predicted, target
    )
    losses = CSEAutoLossACriterion()(matched)
    box = 1 - 50 / 150 + (150 - 50 - 2) / 150
    assert losses["box"].item() == pytest.approx(10 * box / 2)
    weight = 1 + torch.tensor(1 / 3).sin().item()
    entropy = torch.tensor(3.0).log().item()
    assert losses["cross_entropy"].item() == pytest.approx((weight + 1) * entropy / 2)


@pytest.mark.parametrize("name", ["alrp", "rs", "focal+giou", "cse-autoloss-a"])
def test_points_instead_of_boxes(name: str) -> None:
    criterion = build_criterion(name)
    matched = matched_for(criterion)
    points = matched.predicted_boxes[:, :2].repeat(1, 2)
    for target in (points, matched.target_boxes):
        loss, *parts = gradients(
            criterion, matched._replace(predicted_boxes=points, target_boxes=target)
        )
        assert loss.isfinite()
        assert all(part.isfinite().all() for part in parts)


def test_autocast_changes_nothing(name: str) -> None:
    criterion = build_criterion(name).eval()
    matched = matched_for(criterion)
    expected = gradients(criterion, matched)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(criterion, matched)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_bad_batch_does_not_spoil_the_balance() -> None:
    criterion = build_criterion("alrp")
    matched = make_matched(0)
    criterion(matched)
    criterion(matched._replace(logits=matched.logits * torch.nan))
    criterion.end_epoch()
    assert 1 < float(criterion.balance) < 50  # type: ignore[arg-type]

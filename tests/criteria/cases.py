"""Matched predictions to try criteria on, and the ranking losses as plain loops over definitions."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from paploss.criteria import Criterion, MatchedPredictions

KINDS = ("ordinary", "narrow", "ties", "1e4 apart", "around 1e4", "all positive", "well ranked")


def boxes_for(labels: Tensor, generator: torch.Generator, dtype: torch.dtype) -> list[Tensor]:
    """Predicted boxes, target boxes, deltas, target deltas of the positives."""
    count = int((labels >= 0).sum())

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    corner = random(count, 2) * 50
    target = torch.cat([corner, corner + 10 + 40 * random(count, 2)], dim=1)
    predicted = target + 6 * (random(count, 4) - 0.5)
    deltas = 0.1 * (predicted - target)
    return [x.to(dtype) for x in (predicted, target, deltas, torch.zeros_like(deltas))]


def make_matched(
    seed: int,
    rows: int = 40,
    classes: int = 3,
    *,
    kind: str = "ordinary",
    dtype: torch.dtype = torch.float32,
    background: bool = False,
) -> MatchedPredictions:
    """Random predictions; with `background` there is one more column of logits, for a softmax."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(
        0 if kind == "all positive" else -2, classes, (rows,), generator=generator
    )
    columns = classes + 1 if background else classes
    logits = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    if kind == "narrow":
        logits = logits * 0.01 - 4.6
    elif kind == "ties":
        logits = (logits * 2).round() / 2
    elif kind == "1e4 apart":
        logits = logits * 1e4
    elif kind == "around 1e4":
        logits = logits + 1e4
    elif kind == "well ranked":
        positive = (labels >= 0).nonzero().squeeze(1)
        logits[positive, labels[positive]] += 3
    boxes = boxes_for(labels, generator, dtype if dtype.itemsize > 2 else torch.float32)
    return MatchedPredictions(logits.to(dtype), labels, *boxes)


@st.composite
def matched_predictions(draw: st.DrawFn, dtype: torch.dtype) -> MatchedPredictions:
    matched = make_matched(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from([1, 1, 2, 4])),
        kind=draw(st.sampled_from(KINDS)),
        dtype=dtype,
    )
    if draw(st.booleans()) and len(matched.predicted_boxes) > 1:  # ties of box quality, too
        half = (len(matched.predicted_boxes) + 1) // 2
        repeated = [torch.cat([x[:half], x[:half]])[: len(x)] for x in matched[2:]]
        matched = MatchedPredictions(*matched[:2], *repeated)
    return matched


def with_gradients(matched: MatchedPredictions) -> MatchedPredictions:
    """The same numbers as fresh leaves of a graph."""
    logits, labels, predicted, target, deltas, target_deltas = (x.detach() for x in matched)
    return MatchedPredictions(
        logits.requires_grad_(),
        labels,
        predicted.requires_grad_(),
        target,
        deltas.requires_grad_(),
        target_deltas,
    )


def gradients(
    criterion: Criterion, matched: MatchedPredictions, *names: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum of the named losses (all by default), and its gradients by logits, boxes, deltas."""
    matched = with_gradients(matched)
    losses = criterion(matched)
    total = torch.stack([losses[name].double() for name in names or losses]).sum()
    leaves = (matched.logits, matched.predicted_boxes, matched.box_deltas)
    return total.detach(), *torch.autograd.grad(
        total, leaves, allow_unused=True, materialize_grads=True
    )


# -------------------------------------------------------------------- definitions, as plain loops


def soft_step(difference: Tensor, margin: float) -> Tensor:
    return (difference / (2 * margin) + 0.5).clamp(0, 1)


def split_scores(matched: MatchedPredictions) -> tuple[Tensor, Tensor, Tensor]:
    """Positive scores, and which scores of (N, C) are positive and negative."""
    is_positive = torch.zeros(matched.logits.shape, dtype=torch.bool)
    positive = (matched.labels >= 0).nonzero().squeeze(1)
    is_positive[positive, matched.labels[positive]] = True
    is_negative = ~is_positive & (matched.labels != -2)[:, None]
    return matched.logits[is_positive].double(), is_positive, is_negative


def assemble(
    is_positive: Tensor, is_negative: Tensor, of_positives: Tensor, of_negatives: Tensor
) -> Tensor:
    gradient = torch.zeros(is_positive.shape, dtype=torch.float64)
    gradient[is_positive] = of_positives / max(1, len(of_positives))
    gradient[is_negative] = of_negatives / max(1, len(of_positives))
    return gradient


def ap_by_loop(matched: MatchedPredictions) -> tuple[float, Tensor]:
    """AP loss and the gradient of the logits, one positive after the other in ascending order."""
    scores, is_positive, is_negative = split_scores(matched)
    negatives = matched.logits[is_negative].double()
    of_positives, of_negatives = torch.zeros_like(scores), torch.zeros_like(negatives)
    total, highest = 0.0, 0.0
    for i in scores.argsort().tolist():
        others = soft_step(scores - scores[i], 1.0)
        others[i] = 1
        above = soft_step(negatives - scores[i], 1.0)
        rank = others.sum() + above.sum()
        precision = (others.sum() / rank).item()
        if precision >= highest:
            highest = precision
            of_negatives += above / rank
        else:
            of_negatives += above / rank * (1 - highest) / (1 - precision)
        of_positives[i] = -(1 - highest)
        total += 1 - highest
    return total / max(1, len(scores)), assemble(
        is_positive, is_negative, of_positives, of_negatives
    )


def alrp_by_loop(
    matched: MatchedPredictions, box_errors: Tensor
) -> tuple[float, Tensor, float, Tensor]:
    """Classification part and gradient of the logits; box part and gradient of the box errors."""
    scores, is_positive, is_negative = split_scores(matched)
    negatives = matched.logits[is_negative].double()
    of_positives, of_negatives = torch.zeros_like(scores), torch.zeros_like(negatives)
    by_errors = torch.zeros_like(scores)
    classification, box = 0.0, 0.0
    for i in range(len(scores)):
        others = soft_step(scores - scores[i], 1.0)
        others[i] = 0
        above = soft_step(negatives - scores[i], 1.0)
        false_positives = above.sum()
        rank = 1 + others.sum() + false_positives
        classification += (false_positives / rank).item()
        if false_positives > 1e-5:
            of_positives[i] = -(false_positives + (others * box_errors).sum()) / rank
            of_negatives += -of_positives[i] * above / false_positives
        for j in range(len(scores)):  # of equal scores the earlier one is the higher
            if scores[j] > scores[i] or (scores[j] == scores[i] and j <= i):
                box += (box_errors[j] / rank).item()
                by_errors[j] += 1 / rank
    count = max(1, len(scores))
    gradient = assemble(is_positive, is_negative, of_positives, of_negatives)
    return classification / count, gradient, box / count, by_errors / count


def rank_sort_by_loop(
    matched: MatchedPredictions, quality: Tensor
) -> tuple[float, Tensor, float, Tensor]:
    """Ranking part and sorting part, each with its gradient of the logits."""
    scores, is_positive, is_negative = split_scores(matched)
    negatives = matched.logits[is_negative].double()
    of_positives, of_negatives = torch.zeros_like(scores), torch.zeros_like(negatives)
    by_sorting = torch.zeros_like(scores)
    ranking, sorting = 0.0, 0.0
    for i in range(len(scores)):
        others = soft_step(scores - scores[i], 0.5)  # i itself: 1/2
        above = soft_step(negatives - scores[i], 0.5)
        false_positives = above.sum()
        error = false_positives / (others.sum() + false_positives)
        ranking += error.item()
        if false_positives > 1e-10:
            of_positives[i] -= error
            of_negatives += error * above / false_positives

        target = others * (quality >= quality[i])
        error = (others * (1 - quality)).sum() / others.sum()
        error = error - (target * (1 - quality)).sum() / target.sum()
        sorting += error.item()
        missorted = others * (quality < quality[i])
        if missorted.sum() > 1e-10:
            by_sorting[i] -= error
            by_sorting += error * missorted / missorted.sum()
    count = max(1, len(scores))
    nothing = torch.zeros_like(of_negatives)
    return (
        ranking / count,
        assemble(is_positive, is_negative, of_positives, of_negatives),
        sorting / count,
        assemble(is_positive, is_negative, by_sorting, nothing),
    )

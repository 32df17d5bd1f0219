from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from paploss.evaluation import (
    Calibration,
    coco_metrics,
    expected_calibration_error,
    fit_calibration,
    mark_correct,
)
from tests.evaluation.cases import Case, cases, real_data
from tests.evaluation.test_coco import pycocotools_evaluation
from tests.evaluation.test_voc import HERE, NOWHERE, problem


def sample(scale: float, shift: float, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits whose true probability of being right is sigmoid(scale * logit + shift)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=generator) * 1.5 / scale - shift / scale
    chance = torch.rand(count, generator=generator)
    return logits, chance < torch.sigmoid(scale * logits + shift)


@given(
    logit=st.floats(-60, 20, width=32),
    scale=st.floats(0.5, 4),
    shift=st.floats(-10, 10),
)
def test_neighbouring_scores_keep_their_order(logit: float, scale: float, shift: float) -> None:
    """Strictly, for float32 scores next to each other, wherever the probability is not all but 1."""
    below = torch.tensor(logit)
    above = torch.nextafter(below, torch.tensor(torch.inf))
    # Closer to zero than this, neighbours differ by less than rounding of the shift can show.
    if abs(logit) < 1e-3 or scale * logit + shift > 20:
        above = below + 1e-3
    low, high = Calibration(scale, shift)(torch.stack([below, above])).tolist()
    assert low <= high
    if scale * logit + shift < 25:
        assert low < high


@settings(max_examples=50)
@given(logit=st.floats(-30, 20), scale=st.floats(0.1, 4), count=st.integers(1, 40))
def test_equal_scores_stay_equal(logit: float, scale: float, count: int) -> None:
    """Wherever they stand: a bare torch.sigmoid rounds differently at the end of a tensor."""
    logits = torch.full((count,), logit, dtype=torch.float64)
    assert len(Calibration(scale, 0.1)(logits).unique()) == 1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, requires_grad=True)
    found = Calibration(2.0, -1.0)(logits)
    assert found.shape == shape
    torch.testing.assert_close(found, torch.sigmoid(2 * logits.detach().double() - 1))


@settings(max_examples=50)
@given(
    scale=st.floats(0.05, 20),
    shift=st.floats(-5, 5),
    count=st.integers(20, 500),
    seed=st.integers(0, 10**6),
)
def test_equal_to_scipy(scale: float, shift: float, count: int, seed: int) -> None:
    logits, correct = sample(scale, shift, count, seed)
    positives = int(correct.sum())
    if positives in (0, count):
        assert fit_calibration(logits, correct) == Calibration()
        return
    x = logits.double().numpy()
    high, low = (positives + 1) / (positives + 2), 1 / (count - positives + 2)
    target = np.where(correct.numpy(), high, low)
    mean, spread = x.mean(), x.std()

    def objective(line: np.ndarray) -> tuple[float, np.ndarray]:
        z = line[0] * (x - mean) / spread + line[1]
        error = 1 / (1 + np.exp(-z)) - target
        gradient = np.array([error @ ((x - mean) / spread), error.sum()]) / count
        return float((np.logaddexp(0, z) - target * z).mean()), gradient

    bounds = [(1e-3, None), (None, None)]
    options = {"ftol": 1e-15, "gtol": 1e-10}
    best = minimize(objective, [1, 0], jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    found = fit_calibration(logits, correct)
    line = np.array([found.scale * spread, found.shift + found.scale * mean])
    assert objective(line)[0] <= best.fun + 1e-12
    np.testing.assert_allclose(line, best.x, rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(scale=st.floats(0.1, 8), shift=st.floats(-4, 4), seed=st.integers(0, 1000))
def test_the_true_map_is_found_and_the_error_falls(scale: float, shift: float, seed: int) -> None:
    logits, correct = sample(scale, shift, 20_000, seed)
    found = fit_calibration(logits, correct)
    assert found.scale == pytest.approx(scale, rel=0.1)
    assert found.shift == pytest.approx(shift, rel=0.1, abs=0.1)
    held_out, held_out_correct = sample(scale, shift, 20_000, seed + 1)
    after = expected_calibration_error(found(held_out), held_out_correct)
    before = expected_calibration_error(held_out.sigmoid(), held_out_correct)
    assert after < 0.02
    if abs(shift) > 0.5:
        assert after < before


@settings(max_examples=25)
@given(case=cases())
def test_calibrated_scores_have_the_same_metrics(case: Case) -> None:
    ground_truth, detections = case
    detections = [{**record, "score": 6 * record["score"] - 9} for record in detections]
    marks = mark_correct(ground_truth, detections)
    logits = torch.tensor([record["score"] for record in detections], dtype=torch.float64)
    kept = ~torch.from_numpy(marks.ignored)
    calibration = fit_calibration(logits[kept], torch.from_numpy(marks.correct)[kept])
    calibrated = [
        {**record, "score": score}
        for record, score in zip(detections, calibration(logits).tolist(), strict=True)
    ]
    assert coco_metrics(ground_truth, calibrated) == coco_metrics(ground_truth, detections)


@pytest.mark.parametrize("correct", [[], [True] * 4, [False] * 4])
def test_nothing_to_fit_is_the_identity(correct: list[bool]) -> None:
    assert fit_calibration(torch.arange(float(len(correct))), correct) == Calibration(1.0, 0.0)


def test_a_map_never_falls_even_where_scores_mislead() -> None:
    logits = torch.linspace(-3, 3, 200)
    found = fit_calibration(logits, logits < 0)
    assert 0 < found.scale < 0.01
    probabilities = found(logits)
    assert (probabilities.diff() > 0).all()
    assert float(probabilities.mean()) == pytest.approx(0.5, abs=0.01)


def test_equal_separable_and_far_away_scores() -> None:
    level = fit_calibration(torch.full((10,), 7.0), torch.arange(10) < 3)
    assert level.scale == 1
    assert float(level(torch.tensor(7.0))) == pytest.approx(0.3, abs=0.05)
    x = torch.linspace(-1, 1, 100)
    separable = fit_calibration(x, x > 0)
    assert 1 < separable.scale < 1000
    for factor, offset in ((1e-6, 0.0), (1e6, 0.0), (1.0, 1e4), (1e30, 0.0)):
        logits, correct = sample(2.0, 1.0, 500, seed=3)
        near, far = (fit_calibration(z, correct) for z in (logits, logits * factor + offset))
        torch.testing.assert_close(
            far(logits.double() * factor + offset), near(logits), atol=1e-3, rtol=1e-2
        )


def test_error_by_hand() -> None:
    # bins [0, 1/2) and [1/2, 1]: |0.2 + 0.4 - 1| and |0.8 - 1| over three
    found = expected_calibration_error([0.2, 0.4, 0.8], [False, True, True], bins=2)
    assert found == pytest.approx((0.4 + 0.2) / 3)
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0
    assert expected_calibration_error([], []) == 0


def test_crowds_are_marked_apart() -> None:
    case = problem([HERE, NOWHERE], [(3, HERE), (2, HERE), (1, NOWHERE), (0, NOWHERE)], (1,))
    marks = mark_correct(*case)
    assert marks.correct.tolist() == [True, False, False, False]
    assert marks.ignored.tolist() == [False, False, True, True]


@settings(max_examples=60)
@given(case=cases(), threshold=st.sampled_from([0.5, 0.75]))
def test_marks_equal_to_pycocotools(case: Case, threshold: float) -> None:
    ground_truth, detections = case
    marks = mark_correct(ground_truth, detections, iou=threshold)
    correct, ignored, seen = np.zeros((3, len(detections)), dtype=bool)
    evaluator = pycocotools_evaluation(ground_truth, detections)
    row = int(np.flatnonzero(np.isclose(evaluator.params.iouThrs, threshold))[0])
    for image in evaluator.evalImgs:
        if image and image["aRng"] == evaluator.params.areaRng[0]:
            chosen = np.array(image["dtIds"], dtype=int) - 1
            seen[chosen] = True  # the first 100 of an image and class
            ignored[chosen] = image["dtIgnore"][row]
            correct[chosen] = (image["dtMatches"][row] > 0) & ~image["dtIgnore"][row]
    np.testing.assert_array_equal(marks.correct[seen], correct[seen])
    np.testing.assert_array_equal(marks.ignored[seen], ignored[seen])


def test_real_detections_get_better_calibrated() -> None:
    folder = real_data("coco_eval_fixture")
    ground_truth = json.loads((folder / "instances_val2014_100.json").read_text())
    detections = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    marks = mark_correct(ground_truth, detections)
    kept = ~marks.ignored
    scores = torch.tensor([record["score"] for record in detections], dtype=torch.float64)
    logits = scores.logit(eps=1e-6)[torch.from_numpy(kept)]
    calibrated = fit_calibration(logits, marks.correct[kept])(logits)
    before = expected_calibration_error(logits.sigmoid(), marks.correct[kept])
    assert expected_calibration_error(calibrated, marks.correct[kept]) < 0.1 < before


def test_errors() -> None:
    with pytest.raises(ValueError, match="scale: expected a positive number, found 0"):
        Calibration(scale=0.0)
    with pytest.raises(ValueError, match="shift: expected a finite number, found nan"):
        Calibration(shift=float("nan"))
    with pytest.raises(ValueError, match="correct: expected as many as logits, 2, found 1"):
        fit_calibration([0.0, 1.0], [True])
    with pytest.raises(ValueError, match="logits: expected finite numbers"):
        fit_calibration([0.0, float("nan")], [True, False])
    with pytest.raises(ValueError, match=r"logits: expected shape \(N,\), found \(1, 2\)"):
        fit_calibration(torch.zeros(1, 2), [True])
    with pytest.raises(ValueError, match="bins: expected at least 1, found 0"):
        expected_calibration_error([0.5], [True], bins=0)
    with pytest.raises(ValueError, match="probabilities: expected numbers within"):
        expected_calibration_error([1.5], [True])
    with pytest.raises(ValueError, match="correct: expected as many as probabilities"):
        expected_calibration_error([0.5], [])
    with pytest.raises(ValueError, match="iou: expected a number in"):
        mark_correct(*problem([], []), iou=0.0)


def test_a_calibration_is_two_numbers_in_json() -> None:
    calibration = Calibration(scale=1.5, shift=-0.25)
    assert Calibration(**json.loads(json.dumps(asdict(calibration)))) == calibration

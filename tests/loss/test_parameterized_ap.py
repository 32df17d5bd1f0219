"""How the loss behaves for its users: meaning, empty batches, bad input, precision, compilers, ranks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paploss import LossParameters, ParameterizedAPLoss, load_preset, parameterized_ap_loss
from paploss.loss.reference import parameterized_ap_loss_reference

PARAMETERS = load_preset("retinanet-r50-fpn-coco-tied")


def batch(rows: int = 50, classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    labels = torch.randint(-2, classes, (rows,))
    labels[:3] = torch.tensor([0, -1, -2])
    return torch.randn(rows, classes), labels, torch.rand(rows)


def test_hand_computed() -> None:
    # f(x) = x; positive 0.5, negatives 0.5 + 0.4 (x = .7) and far below (x = 0); l = 0.8:
    # N = .7, D = 1.7, PAP = .8 - .7/1.7 * .8
    logits = torch.tensor([[0.5], [0.9], [-7.0]])
    loss = parameterized_ap_loss(
        logits,
        torch.tensor([0, -1, -1]),
        torch.tensor([0.8, 0.3, 0.1]),
        LossParameters.linear(),
    )
    assert loss.item() == pytest.approx(1 - (0.8 - 0.7 / 1.7 * 0.8))


def test_perfect_ranking_and_boxes_is_zero(kernel: str) -> None:
    logits = torch.full((6, 2), -9.0)
    logits[0, 1] = logits[1, 0] = 9.0
    labels = torch.tensor([1, 0, -1, -1, -1, -2])
    assert parameterized_ap_loss(logits, labels, torch.ones(6), PARAMETERS).item() == 0


def test_permutation_changes_nothing(kernel: str) -> None:
    logits, labels, quality = batch()
    order = torch.randperm(len(labels))
    first = parameterized_ap_loss(logits, labels, quality, PARAMETERS)
    second = parameterized_ap_loss(logits[order], labels[order], quality[order], PARAMETERS)
    assert first.item() == pytest.approx(second.item(), rel=1e-6)


def test_only_score_differences_matter(kernel: str) -> None:
    logits, labels, quality = batch()
    first = parameterized_ap_loss(logits.double(), labels, quality, PARAMETERS)
    second = parameterized_ap_loss(logits.double() + 5, labels, quality, PARAMETERS)
    assert first.item() == pytest.approx(second.item(), rel=1e-12)


def test_ignored_rows_leave_the_batch(kernel: str) -> None:
    logits, labels, quality = batch()
    kept = labels != -2
    logits.requires_grad_()
    loss = parameterized_ap_loss(logits, labels, quality, PARAMETERS)
    loss.backward()
    alone = parameterized_ap_loss(logits[kept], labels[kept], quality[kept], PARAMETERS)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-7)
    assert logits.grad is not None
    assert (logits.grad[~kept] == 0).all()
    assert (logits.grad[kept] != 0).any()


@pytest.mark.parametrize("rows", [0, 5])
def test_no_positives_keeps_the_graph(rows: int) -> None:
    logits = torch.randn(rows, 3, requires_grad=True)
    boxes = torch.rand(rows, 4, requires_grad=True)
    labels = torch.full((rows,), -1)
    loss = ParameterizedAPLoss(PARAMETERS)(logits, labels, boxes, torch.rand(rows, 4))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert boxes.grad is not None
    assert (logits.grad == 0).all()
    assert (boxes.grad == 0).all()
    quality = torch.rand(rows, requires_grad=True)
    parameterized_ap_loss(logits, labels, quality, PARAMETERS).backward()
    assert quality.grad is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["positive", "background"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_non_finite_logits_are_never_hidden(
    value: float, where: str, dtype: torch.dtype, kernel: str
) -> None:
    logits, labels, quality = batch()
    logits = logits.to(dtype)
    row = int((labels == 0).nonzero()[0] if where == "positive" else (labels == -1).nonzero()[0])
    logits[row, 0] = value
    logits.requires_grad_()
    loss = parameterized_ap_loss(logits, labels, quality, PARAMETERS)
    assert loss.isnan()
    loss.backward()
    with pytest.raises(ValueError, match=r"logits: expected finite numbers, found 1 NaN"):
        parameterized_ap_loss(logits, labels, quality, PARAMETERS, check=True)


def test_non_finite_logits_of_ignored_rows_do_not_matter(kernel: str) -> None:
    logits, labels, quality = batch()
    expected = parameterized_ap_loss(logits, labels, quality, PARAMETERS)
    logits[labels == -2] = float("nan")
    assert parameterized_ap_loss(logits, labels, quality, PARAMETERS).item() == expected.item()


def test_bad_input_names_the_argument() -> None:
    logits, labels, quality = batch()
    bad = [
        (r"logits: .*\(N, C\).*\(50,\)", (logits[:, 0], labels, quality)),
        (r"logits: .*floating-point.*int64", (logits.long(), labels, quality)),
        (r"labels: .*shape \(50,\).*\(49,\)", (logits, labels[1:], quality)),
        (r"labels: .*int64.*int32", (logits, labels.int(), quality)),
        (r"labels: expected classes 0..2.*found 3", (logits, labels + 1, quality)),
        (r"labels: .*found -3", (logits, labels - 1, quality)),
        (r"quality: .*shape \(50,\).*\(49,\)", (logits, labels, quality[1:])),
        (r"quality: expected numbers in \[0, 1\].*found", (logits, labels, quality + 1)),
    ]
    for message, arguments in bad:
        with pytest.raises(ValueError, match=message):
            parameterized_ap_loss(*arguments, PARAMETERS)
    boxes = torch.rand(50, 4)
    loss = ParameterizedAPLoss(PARAMETERS)
    with pytest.raises(ValueError, match=r"predicted_boxes: .*\(50, 4\).*\(50, 3\)"):
        loss(logits, labels, boxes[:, :3], boxes)
    with pytest.raises(ValueError, match=r"target_boxes: .*\(50, 4\).*\(2, 4\)"):
        loss(logits, labels, boxes, boxes[:2])
    with pytest.raises(ValueError, match="localization: expected one of giou, iou, l1"):
        ParameterizedAPLoss(PARAMETERS, "diou")


@pytest.mark.parametrize("localization", ["giou", "iou", "l1"])
def test_gradient_scale_acts_on_boxes_only(localization: str) -> None:
    corner = torch.rand(50, 2) * 50
    targets = torch.cat([corner, corner + 20 + torch.rand(50, 2) * 20], 1)
    predicted = targets + torch.randn(50, 4)
    logits, labels, _ = batch()
    gradients = {}
    for scale in (1.0, 4.0):
        parameters = LossParameters(PARAMETERS.functions, scale)
        s, b = logits.clone().requires_grad_(), predicted.clone().requires_grad_()
        loss = ParameterizedAPLoss(parameters, localization)(s, labels, b, targets)
        gradients[scale] = (loss.detach(), *torch.autograd.grad(loss, (s, b)))
    assert gradients[1.0][0] == gradients[4.0][0]
    assert torch.equal(gradients[1.0][1], gradients[4.0][1])
    assert gradients[1.0][2].abs().sum() > 0
    torch.testing.assert_close(gradients[4.0][2], 4 * gradients[1.0][2])
    assert (gradients[1.0][2][labels < 0] == 0).all()


def test_module_equals_function() -> None:
    from torchvision.ops import generalized_box_iou

    logits, labels, _ = batch()
    corner = torch.rand(50, 2) * 50
    targets = torch.cat([corner, corner + 20], 1)
    predicted = targets + torch.randn(50, 4) * 3
    quality = (generalized_box_iou(predicted, targets).diagonal() + 1) / 2
    expected = parameterized_ap_loss_reference(logits, labels, quality, PARAMETERS)
    loss = ParameterizedAPLoss(PARAMETERS)(logits, labels, predicted, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_better_box_never_hurts_when_tied() -> None:
    logits, labels, quality = batch()
    quality.requires_grad_()
    (gradient,) = torch.autograd.grad(
        parameterized_ap_loss(logits, labels, quality, PARAMETERS), quality
    )
    assert (gradient[labels >= 0] <= 0).all()
    free = load_preset("retinanet-r50-fpn-coco")
    logits[labels >= 0] -= 3  # badly ranked positives
    quality = torch.full_like(quality, 0.3, requires_grad=True)
    (gradient,) = torch.autograd.grad(parameterized_ap_loss(logits, labels, quality, free), quality)
    assert (gradient > 0).any(), "the published parameters punish better boxes here"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_float32(dtype: torch.dtype, kernel: str) -> None:
    linear = torch.nn.Linear(8, 3)
    features, labels = torch.randn(50, 8), batch()[1]
    boxes = torch.rand(50, 4).cumsum(1)
    with torch.autocast("cpu", dtype=dtype):
        logits = linear(features)
        assert logits.dtype == dtype
        loss = ParameterizedAPLoss(PARAMETERS)(logits, labels, boxes, boxes + 0.01)
    assert loss.dtype == torch.float32
    expected = ParameterizedAPLoss(PARAMETERS)(logits.float(), labels, boxes, boxes + 0.01)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.abs().sum() > 0


@pytest.mark.filterwarnings("default")  # the compiler warns in passing
def test_torch_compile_gives_the_same(kernel: str) -> None:
    logits, labels, quality = batch()

    def step(logits: Tensor, quality: Tensor) -> Tensor:
        return parameterized_ap_loss(logits * 2, labels, quality.sqrt(), PARAMETERS)

    # The backend that needs no C++ compiler: the loss itself is never traced.
    compiled = torch.compile(step, backend="aot_eager")
    for function in (step, compiled):
        logits.grad = None
        loss = function(logits.requires_grad_(), quality)
        loss.backward()
        if function is step:
            expected = loss.detach(), logits.grad
    assert torch.equal(loss, expected[0])
    torch.testing.assert_close(logits.grad, expected[1])


def _train_on_rank(rank: int, world: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    torch.manual_seed(10 + rank)
    features, (_, labels, quality) = torch.randn(50, 8), batch()
    parameterized_ap_loss(model(features), labels, quality, PARAMETERS).backward()
    torch.save(model.module.weight.grad, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_each_rank_ranks_its_own_batch(tmp_path: Path) -> None:
    """With DDP the gradient is the mean of the ranks' own losses, as in the paper."""
    torch.multiprocessing.spawn(_train_on_rank, (2, str(tmp_path)), nprocs=2)
    expected = []
    for rank in range(2):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 3)
        torch.manual_seed(10 + rank)
        features, (_, labels, quality) = torch.randn(50, 8), batch()
        loss = parameterized_ap_loss(model(features), labels, quality, PARAMETERS)
        expected.append(torch.autograd.grad(loss, model.weight)[0])
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(got, (expected[0] + expected[1]) / 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gives_the_same() -> None:
    logits, labels, quality = batch(5000, 8)
    results = []
    for device in ("cpu", "cuda"):
        s = logits.detach().to(device).requires_grad_()
        loss = parameterized_ap_loss(s, labels.to(device), quality.to(device), PARAMETERS)
        results.append((loss.cpu(), torch.autograd.grad(loss, s)[0].cpu()))
    torch.testing.assert_close(results[0], results[1])


def test_runs_a_training_step_twice_through_one_graph() -> None:
    logits, labels, quality = batch()
    logits.requires_grad_()
    loss = parameterized_ap_loss(logits, labels, quality, PARAMETERS)
    first, second = (
        torch.autograd.grad(loss, logits, retain_graph=keep)[0] for keep in (True, False)
    )
    assert torch.equal(first, second)


def test_threads_do_not_change_the_result() -> None:
    logits, labels, quality = batch(40_000, 4)
    results = []
    threads = torch.get_num_threads()
    try:
        for number, rows in itertools.product((1, 2), (logits, logits.double().float())):
            torch.set_num_threads(number)
            results.append(parameterized_ap_loss(rows, labels, quality, PARAMETERS).item())
    finally:
        torch.set_num_threads(threads)
    assert max(results) - min(results) < 1e-7

"""Training from the command line's point of view: it learns, it continues, it says what went wrong."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from paploss.detectors.inference import detect
from paploss.evaluation.coco import evaluate_coco, load_detections
from paploss.training import loop
from paploss.training.checkpoint import load_checkpoint, save_checkpoint
from paploss.training.config import load_config
from paploss.training.run import RunDirectory
from paploss.training.trained import load_detector

SMALL = {
    "data.images": 48,
    "data.evaluation_images": 16,
    "batch_size": 8,
    "epochs": 2,
    "evaluate_every": 1,
    "optimizer.warmup_steps": 3,
    "checkpoint_steps": 2,
}


def train_small(run: Path, **settings: Any) -> dict[str, Any]:
    return loop.train(load_config(None, SMALL | settings), RunDirectory(run))


def figures(result: dict[str, Any]) -> str:
    return json.dumps({key: result[key] for key in ("evaluation", "test")})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run = tmp_path_factory.mktemp("runs") / "finished"
    return run, train_small(run)


def test_a_run_leaves_what_it_promises(finished: tuple[Path, dict[str, Any]]) -> None:
    run, result = finished
    assert json.loads((run / "evaluation.json").read_text()) == result
    assert {"AP", "AP50", "APs"} <= set(result["test"]["metrics"])
    assert list((run / "tensorboard").rglob("events*"))
    rows = (run / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("step,epoch,loss")
    logged = next(row for row in csv.DictReader(rows) if row["loss"])
    assert float(logged["class_gradient"]) > 0
    assert float(logged["box_gradient"]) > 0
    test = loop.load_splits(load_config(None, SMALL).data).test
    assert test is not None
    kept = evaluate_coco(test.ground_truth(), load_detections(run / "detections.json"))
    assert kept.metrics["AP"] == pytest.approx(result["test"]["metrics"]["AP"], abs=1e-3)
    for name in ("last", "best"):
        content = load_checkpoint(run / f"checkpoints/{name}.pt")
        assert content["class_names"]
        assert "calibration" in content


def test_the_same_command_after_the_end_changes_nothing(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    run, result = finished
    assert figures(train_small(run)) == figures(result)


def test_another_seed_gives_another_result_and_the_same_seed_the_same(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    first = load_checkpoint(finished[0] / "checkpoints/last.pt")["model"]
    train_small(tmp_path / "same")
    same = load_checkpoint(tmp_path / "same/checkpoints/last.pt")["model"]
    assert all(torch.equal(first[key], same[key]) for key in first)
    train_small(tmp_path / "other", seed=1)
    other = load_checkpoint(tmp_path / "other/checkpoints/last.pt")["model"]
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_killed_at_random_moments_it_ends_as_if_undisturbed(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """SIGKILL, same command again, until it is through: same figures, same weights, no double rows."""
    run = tmp_path / "killed"
    settings = [f"--set={key}={value}" for key, value in SMALL.items()]
    command = [sys.executable, "-m", "paploss", "train", f"--run={run}", *settings]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    moments = random.Random(0)
    checkpoint = run / "checkpoints/last.pt"
    killed = 0
    for _ in range(4):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        # At least one checkpoint further each time, then at any moment.
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            if process.poll() is not None:  # where this test waits for a core, it may be through
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.6))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    assert killed
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    undisturbed, result = finished
    assert figures(json.loads((run / "evaluation.json").read_text())) == figures(result)
    expected = load_checkpoint(undisturbed / "checkpoints/last.pt")["model"]
    got = load_checkpoint(run / "checkpoints/last.pt")["model"]
    assert all(torch.equal(expected[key], got[key]) for key in expected)
    steps = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()]
    whole = [line.split(",")[0] for line in (undisturbed / "metrics.csv").read_text().splitlines()]
    assert steps == whole


def test_resume_from_every_checkpoint_is_bit_equal(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop after each checkpoint in turn, in process; the rest of the run gives the same weights."""

    class StopError(Exception):
        pass

    saves = 0

    def stop_after_save(self: Any) -> None:
        nonlocal saves
        original(self)
        saves += 1
        raise StopError

    original = loop._Training._save
    run = tmp_path / "stopped"
    monkeypatch.setattr(loop._Training, "_save", stop_after_save)
    for _ in range(20):
        try:
            result = train_small(run)
        except StopError:
            continue
        break
    assert saves >= 5
    assert figures(result) == figures(finished[1])


def test_collapse_and_nan_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(loop.TrainingCollapsedError, match=r"the loss is (nan|inf) around step"):
        train_small(tmp_path / "nan", **{"optimizer.learning_rate": 1e30,
                                         "optimizer.clip_gradient": None, "epochs": 4})  # fmt: skip
    watch = loop.CollapseWatch()
    for _ in range(50):
        watch.see(torch.tensor([0.3, 1.0]))
    watch.see(torch.tensor([1.0, 0.9]), last=True)  # just in time
    for _ in range(50):
        watch.see(torch.tensor([0.3, 1.0]))
    with pytest.raises(loop.TrainingCollapsedError, match="has been 1 for 51 steps at step 102"):
        watch.see(torch.tensor([0.3, 1.0]), last=True)


def test_a_changed_configuration_is_refused(finished: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"seed: 0 there, 7 now"):
        train_small(finished[0], seed=7)


def test_two_processes_do_not_share_a_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with run.locked(), pytest.raises(ValueError, match="another process is working on this run"):
        train_small(run.path)
    with run.locked():  # it was let go
        pass


def test_broken_checkpoints_are_named(tmp_path: Path) -> None:
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"junk\.pt: not a checkpoint"):
        load_checkpoint(tmp_path / "junk.pt")
    with pytest.raises(ValueError, match=r"none\.pt: no such checkpoint"):
        load_checkpoint(tmp_path / "none.pt")
    torch.save({"format": 99}, tmp_path / "new.pt")
    with pytest.raises(ValueError, match=r"new\.pt: expected a paploss checkpoint .* found 99"):
        load_checkpoint(tmp_path / "new.pt")
    save_checkpoint(tmp_path / "a" / "b.pt", {"x": torch.ones(1)})
    assert load_checkpoint(tmp_path / "a" / "b.pt")["x"] == 1


def test_calibrated_scores_keep_their_order(finished: tuple[Path, dict[str, Any]]) -> None:
    from PIL import Image

    trained = load_detector(str(finished[0] / "checkpoints/last.pt"))
    boxes, labels, probabilities = trained.predict(Image.new("RGB", (128, 128), "gray"))
    assert len(boxes) == len(labels) == len(probabilities) == 100
    assert (probabilities.diff() <= 0).all()


def test_calibration_changes_no_ap(finished: tuple[Path, dict[str, Any]]) -> None:
    """The checkpoint's calibration leaves every figure as it was, and makes scores more reliable."""
    trained = load_detector(finished[0] / "checkpoints/last.pt")
    splits = loop.load_splits(trained.config.data)
    detections = detect(
        trained.model, loop.evaluation_batches(splits.evaluation, 8, 0), trained.device
    )
    scores = torch.tensor([found["score"] for found in detections], dtype=torch.float64)
    probabilities = trained.calibration(scores.logit()).tolist()
    calibrated = [
        found | {"score": score} for found, score in zip(detections, probabilities, strict=True)
    ]
    truth = splits.evaluation.ground_truth()
    assert evaluate_coco(truth, calibrated).to_dict() == evaluate_coco(truth, detections).to_dict()
    error = finished[1]["calibration"]
    assert error["expected_error_after"] < error["expected_error_before"]


def test_half_precision(tmp_path: Path) -> None:
    result = train_small(tmp_path / "bf16", precision="bf16", epochs=1)
    assert result["steps"] == 6


def test_a_split_for_evaluation_is_cut_from_the_training_images() -> None:
    config = load_config(None, {"data.evaluation_split": None, "data.images": 50}).data
    first, again = loop.load_splits(config), loop.load_splits(config)
    assert (len(first.train), len(first.evaluation)) == (45, 5)
    ids = [[r.image_id for r in s.records] for s in (first.train, first.evaluation)]
    assert not set(ids[0]) & set(ids[1])
    assert ids[1] == [r.image_id for r in again.evaluation.records]


def test_losses_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only pap has parameters, the loss is rs"):
        train_small(tmp_path / "a", **{"loss.name": "rs", "loss.parameters": "x"})
    with pytest.raises(ValueError, match="RetinaNet takes losses of one sigmoid score"):
        train_small(tmp_path / "b", **{"loss.name": "ce+l1"})


def test_learning_rate_schedules() -> None:
    steps = load_config(
        None,
        {"optimizer.schedule": "steps", "optimizer.steps": [2, 3], "optimizer.warmup_steps": 4},
    ).optimizer
    factor = loop.learning_rate_factor(steps, 10, 40)
    assert [factor(s) for s in (0, 1, 4, 19, 20, 30)] == pytest.approx([0.2, 0.4, 1, 1, 0.1, 0.01])
    cosine = load_config(None, {"optimizer.warmup_steps": 0}).optimizer
    factor = loop.learning_rate_factor(cosine, 10, 40)
    assert [factor(s) for s in (0, 20, 40)] == pytest.approx([1, 0.5, 0])

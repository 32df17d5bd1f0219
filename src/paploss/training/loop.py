"""The training loop: accelerate for devices and processes, everything else in plain sight."""

from __future__ import annotations

import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from paploss.criteria import Criteria, build_criteria
from paploss.data.dataset import DetectionDataset
from paploss.data.detect import load_dataset
from paploss.data.transforms import collate, training_transform
from paploss.detectors import DetectorConfig, build_detector
from paploss.detectors.anchor_fit import describe_misfits
from paploss.detectors.inference import detect
from paploss.evaluation.calibration import (
    Calibration,
    expected_calibration_error,
    fit_calibration,
    mark_correct,
)
from paploss.evaluation.coco import CocoEvaluation, evaluate_coco
from paploss.loss.parameters import LossParameters, load_heads
from paploss.presets import list_presets, load_preset_heads
from paploss.training.batches import steps_per_epoch, training_batches
from paploss.training.checkpoint import load_checkpoint, save_checkpoint
from paploss.training.config import DataConfig, LossConfig, OptimizerConfig, TrainConfig
from paploss.training.gradients import BRANCHES, BranchGradients
from paploss.training.run import RunDirectory

LOG_EVERY = 10  # steps; also how often losses are brought to the host
COLLAPSE_STEPS = 50


class TrainingCollapsedError(ValueError):
    """The loss is NaN, or has not left 1 for many steps: this run will not recover."""


@dataclass
class Progress:
    """What a display may want to know after a step or an evaluation."""

    step: int
    steps: int
    loss: float | None = None
    average_precision: float | None = None
    images_per_second: float | None = None


@dataclass
class Splits:
    """The data of a run; evaluation is what choices are made on, test is not looked at before the end."""

    train: DetectionDataset
    evaluation: DetectionDataset
    test: DetectionDataset | None
    class_names: list[str] = field(default_factory=list)


def load_splits(config: DataConfig) -> Splits:
    """Read the splits; without a split for evaluation, cut one from the training split by seed."""

    def load(split: str, images: int) -> DetectionDataset:
        size = config.size if isinstance(config.size, int) else None
        return load_dataset(config.path, split, images=images, size=size, seed=config.seed)

    train = load(config.train_split, config.images)
    if config.evaluation_split is None:
        train, evaluation = train.split(1 - config.evaluation_fraction, config.seed)
    else:
        evaluation = load(config.evaluation_split, config.evaluation_images)
    test = load(config.test_split, config.evaluation_images) if config.test_split else None
    train.transform = training_transform(config.augmentation, config.size)
    return Splits(train, evaluation, test, train.class_names)


def load_parameters(name: str) -> dict[str, LossParameters]:
    """Loss parameters of every head: of a preset by name, or of a loss file."""
    return load_preset_heads(name) if name in list_presets() else load_heads(name)


def make_criteria(
    config: LossConfig,
    detector: DetectorConfig,
    parameters: Mapping[str, LossParameters] | None = None,
) -> Criteria:
    """The criteria of a configuration, one for each head of the detector.

    Args:
        config: of the loss.
        detector: whose heads they are for.
        parameters: of pap for each head, instead of those in the configuration.
    """
    options: dict[str, Any] = {}
    if config.name == "pap":
        options["parameters"] = parameters or load_parameters(
            config.parameters or detector.default_preset
        )
        options["localization"] = config.localization
        options["block_denominator_gradient"] = config.block_denominator_gradient
    elif config.parameters is not None:
        raise ValueError(f"loss.parameters: only pap has parameters, the loss is {config.name}")
    criteria = build_criteria(config.name, detector.heads, box_weight=config.box_weight, **options)
    if unknown := config.heads.keys() - set(detector.heads):
        raise ValueError(
            f"loss.heads: the {detector.name} has the heads {', '.join(detector.heads)}, "
            f"found {', '.join(sorted(unknown))}"
        )
    own = {head: make_criteria(loss, detector)[head] for head, loss in config.heads.items()}
    return Criteria({**criteria, **own}, detector.heads)


def learning_rate_factor(config: OptimizerConfig, steps_an_epoch: int, steps: int) -> Any:
    """Factor of the learning rate by step: linear warm-up, then cosine, steps or constant."""

    def factor(step: int) -> float:
        warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
        if config.schedule == "cosine":
            return warmup * 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1)))
        if config.schedule == "steps":
            return warmup * 0.1 ** sum(step >= epoch * steps_an_epoch for epoch in config.steps)
        return warmup

    return factor


def targets_on(
    device: torch.device, images: list[Tensor], targets: list[dict[str, Tensor]]
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """A batch on a device, with boxes and labels of what is to be found: no crowds."""
    return [image.to(device, non_blocking=True) for image in images], [
        {
            "boxes": target["boxes"][~target["crowd"]].as_subclass(Tensor).to(device),
            "labels": target["labels"][~target["crowd"]].to(device),
        }
        for target in targets
    ]


class CollapseWatch:
    """Looks at the losses every few steps, and raises when one is NaN or has sat at 1 for too long.

    Args:
        step: the last step before this one.
    """

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self._unseen: list[Tensor] = []
        self._stuck: list[int] = []  # steps for which each loss has been 1

    def see(self, losses: Tensor, *, last: bool = False) -> None:
        """Take the named losses of a step, (n,); they are read together, to spare the device."""
        self.step += 1
        self._unseen.append(losses)
        if len(self._unseen) == LOG_EVERY or last:
            for row in torch.stack(self._unseen).tolist():
                self._check(row)
            self._unseen = []

    def _check(self, losses: list[float]) -> None:
        for loss in losses:
            if not math.isfinite(loss):
                raise TrainingCollapsedError(
                    f"the loss is {loss} around step {self.step}: lower the learning rate"
                )
        self._stuck = [
            before + 1 if abs(loss - 1) <= 1e-6 else 0
            for loss, before in zip_longest(losses, self._stuck, fillvalue=0)
        ]
        if max(self._stuck) > COLLAPSE_STEPS:
            raise TrainingCollapsedError(
                f"the loss has been 1 for {max(self._stuck)} steps at step {self.step}: "
                "no positive is ranked any more"
            )


def make_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW; biases and norms are not decayed, the backbone may learn more slowly."""
    modules = dict(model.named_modules())
    # A pyramid's body, or all of the backbone where there is no pyramid.
    bodies = [name for name in modules if name.endswith("backbone.body")] or [
        name for name in modules if name.endswith("backbone")
    ]
    backbone = {
        id(parameter)
        for name in bodies
        for parameter in modules[name].parameters()
        if config.backbone_factor != 1
    }
    groups = []
    for factor in (1.0, config.backbone_factor) if backbone else (1.0,):
        members = [
            parameter
            for parameter in model.parameters()
            if parameter.requires_grad and (id(parameter) in backbone) == (factor != 1)
        ]
        for decay, weights in ((config.weight_decay, True), (0.0, False)):
            chosen = [parameter for parameter in members if (parameter.dim() > 1) == weights]
            groups.append(
                {"params": chosen, "weight_decay": decay, "lr": config.learning_rate * factor}
            )
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.learning_rate)


def evaluation_batches(
    dataset: Any, batch_size: int, workers: int, rank: int = 0, ranks: int = 1
) -> DataLoader[Any]:
    """Images as they are, in order, every ``ranks``-th for one process."""
    part = dataset.subset(range(rank, len(dataset), ranks))
    part = part.with_transform(v2.ToDtype(torch.float32, scale=True))
    return DataLoader(part, batch_size=batch_size, num_workers=workers, collate_fn=collate)


def train(
    config: TrainConfig,
    run: RunDirectory,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Train a detector, or go on where a stopped run was; returns what ``evaluation.json`` holds.

    Args:
        config: the whole configuration; a run directory with another one is refused.
        run: where everything is written.
        on_progress: called after every logged step and every evaluation.
    """
    trackers = ["tensorboard"] + ["wandb"] * bool(importlib.util.find_spec("wandb"))
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    accelerator = Accelerator(
        mixed_precision=config.precision, log_with=trackers, project_dir=str(run.path)
    )
    with run.locked() if accelerator.is_main_process else nullcontext():
        return _Training(config, run, on_progress, accelerator).run_to_the_end()


class _Training:
    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        on_progress: Callable[[Progress], None],
        accelerator: Accelerator,
    ) -> None:
        self.config, self.run, self.on_progress = config, run, on_progress
        self.accelerator = accelerator
        if self.accelerator.is_main_process:
            run.open(config)
        self.accelerator.wait_for_everyone()
        self.splits = load_splits(config.data)
        if self.accelerator.is_main_process:
            for misfit in describe_misfits(config.detector, self.splits.train):
                warnings.warn(misfit, stacklevel=3)
        self.criteria = make_criteria(config.loss, config.detector)
        self.gradients = BranchGradients(self.criteria)
        torch.manual_seed(config.seed)  # of the fresh weights
        model = build_detector(config.detector, len(self.splits.class_names), self.criteria)
        ranks = self.accelerator.num_processes
        self.steps_an_epoch = steps_per_epoch(len(self.splits.train), config.batch_size * ranks)
        self.steps = self.steps_an_epoch * config.epochs
        self.optimizer = make_optimizer(config.optimizer, model)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, learning_rate_factor(config.optimizer, self.steps_an_epoch, self.steps)
        )
        self.step, self.best, self.seconds = 0, -1.0, 0.0
        if run.last.exists():
            self._restore(model, load_checkpoint(run.last))
        self.model = self.accelerator.prepare_model(model)
        self.optimizer = self.accelerator.prepare_optimizer(self.optimizer)
        if self.accelerator.is_main_process:
            run.forget_after(self.step)
        self.accelerator.init_trackers(
            "tensorboard", init_kwargs={"tensorboard": {"purge_step": self.step}}
        )

    # ---------------------------------------------------------------- state

    def _content(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            "class_names": self.splits.class_names,
            "model": self.accelerator.unwrap_model(self.model).state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.last_epoch,
            "step": self.step,
            "best": self.best,
            "seconds": self.seconds,
        }

    def _save(self) -> None:
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            save_checkpoint(self.run.last, self._content())

    def _restore(self, model: nn.Module, content: dict[str, Any]) -> None:
        model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.schedule.last_epoch = content["schedule"]
        self.step, self.best, self.seconds = content["step"], content["best"], content["seconds"]

    # ---------------------------------------------------------------- training

    def run_to_the_end(self) -> dict[str, Any]:
        config, accelerator = self.config, self.accelerator
        batches = training_batches(
            self.splits.train,
            batch_size=config.batch_size,
            seed=config.seed,
            first_step=self.step,
            steps=self.steps,
            workers=config.data.workers,
            rank=accelerator.process_index,
            ranks=accelerator.num_processes,
        )
        self.model.train()
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        watch = CollapseWatch(self.step)
        since = time.perf_counter()
        for images, targets in batches:
            is_logged = (self.step + 1) % LOG_EVERY == 0 or self.step + 1 == self.steps
            with self.gradients.reading(is_logged):
                step_losses, norm = self._train_step(images, targets)
            losses.append(step_losses)
            watch.see(step_losses, last=self.step + 1 == self.steps)
            norms.append(norm)
            self.step += 1
            epoch_ends = self.step % self.steps_an_epoch == 0
            if epoch_ends:
                self.criteria.end_epoch()
            if is_logged:
                values = torch.stack(losses)
                now = time.perf_counter()
                self.seconds += now - since
                speed = len(values) * config.batch_size * accelerator.num_processes / (now - since)
                self._log_step(values.sum(1).mean().item(), torch.stack(norms).mean().item(), speed)
                losses, norms, since = [], [], now
            evaluate = (
                epoch_ends and (self.step // self.steps_an_epoch) % config.evaluate_every == 0
            )
            if evaluate and self.step < self.steps:
                self._evaluate_and_keep_best()
                since = time.perf_counter()
            if epoch_ends or self.step % config.checkpoint_steps == 0:
                self._save()
        return self._finish()

    def _train_step(
        self, images: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Losses (n,), and the norm () of the gradient."""
        device = self.accelerator.device
        torch.manual_seed(self.config.seed * 1_000_003 + self.step)  # the same after a restart
        with self.accelerator.autocast():
            losses = torch.stack(
                [
                    value.float()
                    for value in self.model(*targets_on(device, images, targets)).values()
                ]
            )
        self.optimizer.zero_grad()
        self.accelerator.backward(losses.sum())
        clip = self.config.optimizer.clip_gradient
        norm = self.accelerator.clip_grad_norm_(
            self.model.parameters(), math.inf if clip is None else clip
        )
        self.optimizer.step()
        self.schedule.step()
        return losses.detach(), losses.new_zeros(()) if norm is None else norm

    def _log_step(self, loss: float, norm: float, speed: float) -> None:
        scaler = self.accelerator.scaler
        factor = 1.0 if scaler is None else scaler.get_scale()  # of a loss in half precision
        branches = [value / factor for value in self.gradients.take()]
        row = {
            "step": self.step,
            "epoch": self.step / self.steps_an_epoch,
            "loss": loss,
            "learning_rate": self.schedule.get_last_lr()[0],
            "gradient_norm": norm,
            **{f"{name}_gradient": value for name, value in zip(BRANCHES, branches, strict=True)},
            "images_per_second": speed,
            "seconds": self.seconds,
        }
        if self.accelerator.is_main_process:
            self.run.log(row)
        self.accelerator.log({k: v for k, v in row.items() if k != "step"}, step=self.step)
        self.on_progress(Progress(self.step, self.steps, loss=loss, images_per_second=speed))

    # ---------------------------------------------------------------- evaluation

    def _detections(self, dataset: DetectionDataset) -> list[dict[str, Any]]:
        accelerator = self.accelerator
        batches = evaluation_batches(
            dataset,
            self.config.batch_size,
            self.config.data.workers,
            accelerator.process_index,
            accelerator.num_processes,
        )
        model = accelerator.unwrap_model(self.model)
        found: list[dict[str, Any]] = gather_object(detect(model, batches, accelerator.device))
        return found

    def _evaluate_and_keep_best(self) -> tuple[CocoEvaluation, list[dict[str, Any]]]:
        """Evaluation and detections of the evaluation split."""
        detections = self._detections(self.splits.evaluation)
        evaluation = evaluate_coco(self.splits.evaluation.ground_truth(), detections)
        metrics = evaluation.metrics
        if self.accelerator.is_main_process:
            self.run.log({"step": self.step, "epoch": self.step / self.steps_an_epoch, **metrics})
        self.accelerator.log({f"evaluation/{k}": v for k, v in metrics.items()}, step=self.step)
        if metrics["AP"] > self.best:
            self.best = metrics["AP"]
            if self.accelerator.is_main_process:
                save_checkpoint(self.run.best, self._content())
        self.on_progress(Progress(self.step, self.steps, average_precision=metrics["AP"]))
        return evaluation, detections

    def _finish(self) -> dict[str, Any]:
        """Evaluate the final model, calibrate its scores, write what is known."""
        if self.run.evaluation.exists():  # it had come to its end before
            before: dict[str, Any] = json.loads(self.run.evaluation.read_text(encoding="utf-8"))
            return before
        if self.accelerator.is_main_process:
            self.run.forget_after(self.step, evaluated_again=True)
        evaluation, detections = self._evaluate_and_keep_best()
        truth = self.splits.evaluation.ground_truth()
        result: dict[str, Any] = {
            "loss": self.config.loss.name,
            "seed": self.config.seed,
            "steps": self.steps,
            "seconds": self.seconds,
            "evaluation": evaluation.to_dict(),
        }
        calibration = Calibration()
        if self.criteria.ranking:
            calibration = calibrate(truth, detections)
            result["calibration"] = asdict(calibration) | reliability(
                calibration, truth, detections
            )
        if self.splits.test is not None:
            truth, detections = self.splits.test.ground_truth(), self._detections(self.splits.test)
            result["test"] = evaluate_coco(truth, detections).to_dict()
            if self.criteria.ranking:
                result["calibration"]["test"] = reliability(calibration, truth, detections)
        if self.accelerator.is_main_process:
            for path in (self.run.last, self.run.best):
                content = self._content() if path == self.run.last else load_checkpoint(path)
                content.pop("format", None)
                save_checkpoint(path, content | {"calibration": asdict(calibration)})
            self.run.write_detections(detections)
            self.run.write_evaluation(result)
        self.accelerator.end_training()
        return result


def calibrate(ground_truth: dict[str, Any], detections: list[dict[str, Any]]) -> Calibration:
    """One rising map from scores to probabilities for all classes."""
    scores, correct = _judged(ground_truth, detections)
    return fit_calibration(scores.logit(eps=1e-15), correct)


def reliability(
    calibration: Calibration, ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> dict[str, float]:
    """Expected calibration error of the scores as they are, and of the calibrated ones."""
    scores, correct = _judged(ground_truth, detections)
    calibrated = calibration(scores.logit(eps=1e-15))
    return {
        "expected_error_before": expected_calibration_error(scores, correct),
        "expected_error_after": expected_calibration_error(calibrated, correct),
    }


def _judged(ground_truth: dict[str, Any], detections: list[dict[str, Any]]) -> tuple[Tensor, Any]:
    """Scores of the detections that count, and which of them are right; (n,) each."""
    correct, ignored = mark_correct(ground_truth, detections)
    scores = torch.tensor([found["score"] for found in detections], dtype=torch.float64)
    return scores[~ignored], correct[~ignored]

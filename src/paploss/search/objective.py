"""A trial: train a detector for a short while with a loss, and see how well it detects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from paploss.detectors import build_detector
from paploss.detectors.inference import detect
from paploss.evaluation.coco import evaluate_coco
from paploss.loss.parameters import LossParameters
from paploss.search.config import SearchConfig
from paploss.training.batches import steps_per_epoch, training_batches
from paploss.training.loop import (
    CollapseWatch,
    TrainingCollapsedError,
    evaluation_batches,
    learning_rate_factor,
    load_splits,
    make_criteria,
    make_optimizer,
    targets_on,
)


@dataclass(frozen=True)
class Outcome:
    """What became of a trial. A reward is an AP in [0, 1], and 0 unless the trial came to its end."""

    reward: float
    state: Literal["complete", "collapsed", "pruned", "failed"]
    seconds: float
    message: str = ""


class ProxyTask:
    """The short training of a search, with data loaded once and used for every trial of a process.

    All trials begin with the same weights and see the same images in the same order.
    """

    def __init__(self, config: SearchConfig) -> None:
        self.train = config.proxy.train_config(config.train)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        splits = load_splits(self.train.data)
        seed = self.train.data.seed
        self.images, self.evaluation = splits.train, splits.evaluation
        if config.proxy.fraction < 1:
            self.images, _ = splits.train.split(config.proxy.fraction, seed)
        if config.proxy.evaluation_fraction < 1:
            self.evaluation, _ = splits.evaluation.split(config.proxy.evaluation_fraction, seed)
        self.truth = self.evaluation.ground_truth()
        self.classes = len(splits.class_names)

    def run(self, trial: Any, keep_going: Callable[[float], bool] | None = None) -> Outcome:
        """Train with a loss and evaluate.

        Args:
            trial: has ``heads``, the loss of each, and ``seed``, of the order of images and of
                augmentation: that of the configuration if None.
            keep_going: asked half-way with the AP so far; the trial ends if it says no.
        """
        start = time.perf_counter()
        try:
            seed = self.train.seed if trial.seed is None else trial.seed
            reward, done = self._train(trial.heads, seed, keep_going)
        except TrainingCollapsedError as error:
            return Outcome(0.0, "collapsed", time.perf_counter() - start, str(error))
        state: Literal["complete", "pruned"] = "complete" if done else "pruned"
        return Outcome(reward, state, time.perf_counter() - start)

    def _train(
        self,
        heads: Mapping[str, LossParameters],
        seed: int,
        keep_going: Callable[[float], bool] | None,
    ) -> tuple[float, bool]:
        config = self.train
        criteria = make_criteria(config.loss, config.detector, heads)
        torch.manual_seed(config.seed)  # the same fresh weights for every trial
        model = build_detector(config.detector, self.classes, criteria).to(self.device).train()
        per_epoch = steps_per_epoch(len(self.images), config.batch_size)
        steps = per_epoch * config.epochs
        optimizer = make_optimizer(config.optimizer, model)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, learning_rate_factor(config.optimizer, per_epoch, steps)
        )
        watch = CollapseWatch()
        batches = training_batches(
            self.images,
            batch_size=config.batch_size,
            seed=seed,
            first_step=0,
            steps=steps,
            workers=config.data.workers,
        )
        for step, (images, targets) in enumerate(batches, 1):
            losses = model(*targets_on(self.device, images, targets))
            stacked = torch.stack([value.float() for value in losses.values()])
            optimizer.zero_grad()
            torch.autograd.backward(stacked.sum())
            if config.optimizer.clip_gradient is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_gradient)
            optimizer.step()
            schedule.step()
            watch.see(stacked.detach(), last=step == steps)
            if keep_going is not None and step == steps // 2 and not keep_going(self._ap(model)):
                return 0.0, False
        return self._ap(model), True

    def _ap(self, model: Any) -> float:
        batches = evaluation_batches(
            self.evaluation, self.train.batch_size, self.train.data.workers
        )
        return float(evaluate_coco(self.truth, detect(model, batches, self.device)).metrics["AP"])

"""Which images a step sees and how they are augmented, as a function of seed and step alone.

A run that continues at step k therefore sees exactly what an undisturbed one would have seen, with
any number of loading processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from paploss.data.transforms import collate

_Key = tuple[int, int]  # epoch and index of an image


class _Batches(Sampler[list[_Key]]):
    """Batches of one process from a first step on, over all epochs; each epoch in an order of its own."""

    def __init__(
        self,
        images: int,
        batch_size: int,
        seed: int,
        first_step: int,
        steps: int,
        rank: int,
        ranks: int,
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.first_step, self.steps = first_step, steps
        self.rank, self.ranks = rank, ranks

    def __len__(self) -> int:
        return self.steps - self.first_step

    def __iter__(self) -> Iterator[list[_Key]]:
        of_all = self.batch_size * self.ranks
        per_epoch = steps_per_epoch(self.images, of_all)
        for step in range(self.first_step, self.steps):
            epoch, position = divmod(step, per_epoch)
            order = np.random.default_rng((self.seed, epoch)).permutation(self.images)
            begin = position * of_all + self.rank * self.batch_size
            yield [(epoch, int(index)) for index in order[begin : begin + self.batch_size]]


class _Seeded(Dataset[Any]):
    """A data set whose random augmentation depends on seed, epoch and image only."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __getitem__(self, key: _Key) -> Any:
        state = np.random.SeedSequence((self.seed, *key)).generate_state(1)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which also queues a call for each kind of device: 1 ms an image.
            torch.default_generator.manual_seed(int(state[0]))
            return self.dataset[key[1]]


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Full batches only, but at least one."""
    return max(1, images // batch_size)


def training_batches(
    dataset: Any,
    *,
    batch_size: int,
    seed: int,
    first_step: int,
    steps: int,
    workers: int,
    rank: int = 0,
    ranks: int = 1,
) -> DataLoader[Any]:
    """Batches ``first_step .. steps - 1`` of a run, for one of several processes."""
    batches = _Batches(len(dataset), batch_size, seed, first_step, steps, rank, ranks)
    return DataLoader(
        _Seeded(dataset, seed), batch_sampler=batches, num_workers=workers, collate_fn=collate
    )

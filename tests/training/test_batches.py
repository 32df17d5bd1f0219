from __future__ import annotations

from typing import Any

import torch

from paploss.training.batches import _Batches, steps_per_epoch, training_batches


class Noise:
    """A data set whose items are random, as augmented ones are."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        return torch.rand(3), {"index": torch.tensor(index)}


def batches(first_step: int = 0, **options: Any) -> list[tuple[list[float], list[int]]]:
    settings = {"batch_size": 4, "seed": 3, "steps": 12, "workers": 0} | options
    loader = training_batches(Noise(), first_step=first_step, **settings)
    return [
        ([float(image.sum()) for image in images], [int(t["index"]) for t in targets])
        for images, targets in loader
    ]


def test_a_later_start_sees_what_an_undisturbed_run_sees() -> None:
    whole = batches()
    assert len(whole) == 12
    for start in (1, 5, 7, 11):
        assert batches(start) == whole[start:]


def test_loading_processes_change_nothing() -> None:
    assert batches(workers=2) == batches()


def test_every_epoch_sees_every_image_once_in_an_order_of_its_own() -> None:
    whole = batches()
    epochs = [[i for _, indices in whole[k : k + 5] for i in indices] for k in (0, 5)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    first, second = (dict(zip(e, s, strict=True)) for e, s in _sums_by_image(whole))
    assert all(first[i] != second[i] for i in range(20)), "augmentation differs between epochs"


def _sums_by_image(
    whole: list[tuple[list[float], list[int]]],
) -> list[tuple[list[int], list[float]]]:
    return [
        (
            [i for _, indices in whole[k : k + 5] for i in indices],
            [s for sums, _ in whole[k : k + 5] for s in sums],
        )
        for k in (0, 5)
    ]


def test_two_processes_share_the_batch_of_one() -> None:
    """Two ranks with half the batch each see, together, the images of one with the whole batch."""
    one = list(_Batches(20, 8, 3, 0, 6, 0, 1))
    ranks = [list(_Batches(20, 4, 3, 0, 6, rank, 2)) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*ranks, strict=True)] == [sorted(b) for b in one]


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(20, 8) == 2
    assert steps_per_epoch(5, 8) == 1

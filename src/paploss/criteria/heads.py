"""Criteria of all heads of a detector: most have one, Faster R-CNN has two."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Literal

from torch import nn

from paploss.criteria.criterion import Criterion


class Criteria(nn.ModuleDict):
    """One criterion a head, by the head's name; the last head's scores are those of the detections.

    Args:
        criteria: a criterion for every head, or one of which every head gets a copy.
        heads: names of the detector's heads.
    """

    def __init__(
        self, criteria: Criterion | Mapping[str, Criterion] | nn.ModuleDict, heads: Iterable[str]
    ) -> None:
        heads = tuple(heads)
        if isinstance(criteria, Criterion):
            criteria = {head: copy.deepcopy(criteria) for head in heads}
        if not isinstance(criteria, Mapping | nn.ModuleDict):
            raise ValueError(
                f"criterion: expected a Criterion or a dict of them, found {type(criteria).__name__}"
            )
        if set(criteria.keys()) != set(heads):
            raise ValueError(
                f"criterion: expected one for each head ({', '.join(heads)}), "
                f"found {', '.join(criteria.keys()) or 'none'}"
            )
        super().__init__({head: criteria[head] for head in heads})

    def __getitem__(self, head: str) -> Criterion:
        criterion = super().__getitem__(head)
        assert isinstance(criterion, Criterion)
        return criterion

    def criteria(self) -> list[Criterion]:
        return [self[head] for head in self]

    @property
    def score(self) -> Literal["sigmoid", "softmax"]:
        """Which score the last head trains."""
        return self.criteria()[-1].score

    @property
    def ranking(self) -> bool:
        """True if only differences of the final scores mean something."""
        return self.criteria()[-1].ranking

    def end_epoch(self) -> None:
        """To be called after every epoch of training."""
        for criterion in self.criteria():
            criterion.end_epoch()

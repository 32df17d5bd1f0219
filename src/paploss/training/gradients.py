"""How strongly a loss pulls at each of a detector's two branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paploss.criteria import Criteria, MatchedPredictions

BRANCHES = ("class", "box")


class BranchGradients:
    """Norms of the gradients that reach the class scores and the outputs of the box branch.

    They are read where every loss meets every detector, so they mean the same for all of them, and
    the gradient scale of a loss is seen at once. Reading changes no gradient.

    Args:
        criteria: of the model that is trained.
    """

    def __init__(self, criteria: Criteria) -> None:
        self._norms: dict[str, list[Tensor]] = {branch: [] for branch in BRANCHES}
        self._reading = False
        for criterion in criteria.criteria():
            criterion.register_forward_pre_hook(self._watch)

    @contextmanager
    def reading(self, wanted: bool) -> Iterator[None]:
        """Read in the forward and backward pass within, if wanted: it is a pass over all scores."""
        self._reading = wanted
        yield
        self._reading = False

    def _watch(self, criterion: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._reading:
            return
        matched: MatchedPredictions = inputs[0]
        for branch, output in zip(BRANCHES, (matched.logits, matched.box_deltas), strict=True):
            if output.requires_grad:
                output.register_hook(self._reader(branch))  # type: ignore[no-untyped-call]

    def _reader(self, branch: str) -> Callable[[Tensor], None]:
        def read(gradient: Tensor) -> None:
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
            self._norms[branch].append(norm)

        return read

    def take(self) -> list[float]:
        """The norms of both branches since they were last taken, of all heads and layers together."""
        norms = [
            torch.linalg.vector_norm(torch.stack(norms)).item() if norms else 0.0
            for norms in self._norms.values()
        ]
        for read in self._norms.values():
            read.clear()
        return norms

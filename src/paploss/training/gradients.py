"""How strongly a loss pulls at each of a detector's two branches."""

from __future__ import annotations

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
        self._squares: dict[str, list[Tensor]] = {branch: [] for branch in BRANCHES}
        for criterion in criteria.criteria():
            criterion.register_forward_pre_hook(self._watch)

    def _watch(self, criterion: nn.Module, inputs: tuple[Any, ...]) -> None:
        matched: MatchedPredictions = inputs[0]
        for branch, output in zip(BRANCHES, (matched.logits, matched.box_deltas), strict=True):
            if output.requires_grad:
                output.register_hook(self._reader(branch))  # type: ignore[no-untyped-call]

    def _reader(self, branch: str) -> Any:
        def read(gradient: Tensor) -> None:
            self._squares[branch].append(gradient.detach().float().square().sum())

        return read

    def take(self) -> Tensor:
        """Norms (2,) since they were last taken, of all heads and layers together."""
        norms = [
            torch.stack(squares).sum().sqrt() if squares else torch.zeros(())
            for squares in self._squares.values()
        ]
        for squares in self._squares.values():
            squares.clear()
        return torch.stack([norm.to(norms[0].device) for norm in norms])

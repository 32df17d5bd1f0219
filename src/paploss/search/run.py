"""A search from beginning to end, in one run directory: search, train again, compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paploss.search.config import SearchConfig
from paploss.search.executors import MakeTask, proxy_task
from paploss.search.final import compare, final_trainings, run_final_trainings
from paploss.search.study import Search, SearchProgress, make_space
from paploss.training.run import RunDirectory


def run_search(
    config: SearchConfig,
    directory: Path,
    *,
    on_trial: Callable[[SearchProgress], None] = lambda progress: None,
    on_training: Callable[[float, float], None] = lambda epochs, of_epochs: None,
    make_task: MakeTask = proxy_task,
) -> dict[str, Any]:
    """Find a loss, train with it and with its rivals, and compare them; the same call continues.

    Args:
        config: a search in ``directory`` goes on only with the same one; but there may be more
            rounds, other machines, and other losses to compare with.
        directory: of ``config.yaml``, ``study.db``, ``best.loss.json``, ``final/`` and
            ``comparison.json``.
        on_trial: called when a trial has finished.
        on_training: called during the final trainings with epochs done and epochs in all.
        make_task: what gives a loss its reward.

    Returns:
        What ``comparison.json`` holds, with the answer of the search.
    """
    make_space(config)  # a wrong start is refused before it is written down
    run = RunDirectory(directory)
    with run.locked():
        run.open(config, may_change=_may_change)
        search = Search(config, directory, on_trial, make_task=make_task)
        found = search.run()
        trainings = final_trainings(config, directory, found)
        wrong = run_final_trainings(config, trainings, on_training)
        comparison = compare(directory, trainings, wrong)
    return {
        "trial": found.trial,
        "reward": found.reward,
        "problems": search.problems(),
        **comparison,
    }


def _may_change(setting: str, there: Any, now: Any) -> bool:
    if setting == "sampler.rounds":
        return bool(now > there)
    return setting.partition(".")[0] in ("executor", "finalists", "final")

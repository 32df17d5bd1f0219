"""Trials as tasks of a Ray cluster: many machines, each with paploss installed and the data in place."""

from __future__ import annotations

import os
import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import ray

from paploss.search.config import SearchConfig
from paploss.search.executors import Asking, Finished, Job, MakeTask, TimeLimit, Unable
from paploss.search.objective import Outcome


def _run(
    make_task: MakeTask, config: str, job: Job, threads: int, timeout: float | None
) -> Outcome | Unable:
    """In a worker of the cluster; the function keeps the task, data included, for the next trial."""
    import torch

    torch.set_num_threads(threads)
    try:
        task = make_task(config)
    except Exception as error:
        return Unable(f"{type(error).__name__}: {error} (on {platform.node()})")
    if timeout is None:
        return task.run(job)
    # The clock starts here: the driver knows neither how long a trial queued nor how long data load.
    running = ThreadPoolExecutor(1).submit(task.run, job)
    if wait([running], timeout).done:
        return running.result()
    # The hung thread goes with its process; Ray repeats what else may have begun there by then.
    threading.Timer(1.0, os._exit, [1]).start()
    return Outcome(0.0, "failed", timeout, f"no result after {timeout:g} s")


class RayExecutor:
    """One Ray task a trial, with its demands of CPUs and GPUs.

    Ray itself runs a task again whose worker or node has died. What still fails finishes as failed.

    Args:
        config: ``executor.workers`` trials run at once; with 0, as many as the cluster has room for.
    """

    def __init__(self, config: SearchConfig, make_task: MakeTask) -> None:
        settings = config.executor
        if not ray.is_initialized():
            ray.init(address=settings.ray_address, log_to_driver=False, include_dashboard=False)
        self._config, self._make_task = config.model_dump_json(), make_task
        self._limit = TimeLimit(settings.timeout)
        self._threads = settings.threads or max(1, int(settings.cpus))
        self._task = ray.remote(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=3, max_calls=0
        )(_run)
        self._running: dict[Any, tuple[Job, float]] = {}
        self._settings = settings
        self._has_begun = False  # any job

    @property
    def capacity(self) -> int:
        """Machines that join the cluster later are used as well."""
        return self._settings.workers or _room(self._settings.cpus, self._settings.gpus)

    def submit(self, job: Job) -> None:
        reference = self._task.remote(
            self._make_task, self._config, job, self._threads, self._limit.seconds
        )
        self._running[reference] = job, time.monotonic()

    def events(self, timeout: float) -> list[Asking | Finished]:
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._finish(reference) for reference in ready]

    def _finish(self, reference: Any) -> Finished:
        job, started = self._running.pop(reference)
        try:
            outcome: Outcome | Unable = ray.get(reference)
        except Exception as error:  # of the cluster, or of the trial itself
            message = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
            outcome = Outcome(0.0, "failed", time.monotonic() - started, message)
        if isinstance(outcome, Unable):
            if not self._has_begun:
                raise ChildProcessError(f"no worker can begin: {outcome.message}")
            outcome = Outcome(0.0, "failed", time.monotonic() - started, outcome.message)
        elif outcome.state != "failed":
            self._has_begun = True
            self._limit.see(outcome.seconds)
        return Finished(job.key, outcome)

    def answer(self, key: int, keep_going: bool) -> None:
        raise RuntimeError("a task of Ray asks nobody")

    def close(self) -> None:
        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running.clear()


def _room(cpus: float, gpus: float) -> int:
    """How many trials the cluster can run at once."""
    resources = ray.cluster_resources()
    room = resources.get("CPU", 0) / cpus
    if gpus:
        room = min(room, resources.get("GPU", 0) / gpus)
    return max(1, int(room))

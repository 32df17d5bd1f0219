"""Trials as tasks of a Ray cluster: many machines, each with paploss installed and the data in place."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import RayError

from paploss.search.config import SearchConfig
from paploss.search.executors import Asking, Finished, Job, MakeTask
from paploss.search.objective import Outcome


def _run(make_task: MakeTask, config: str, job: Job, threads: int) -> Outcome:
    """In a worker of the cluster; the function keeps the task, data included, for the next trial."""
    import torch

    torch.set_num_threads(threads)
    return make_task(config).run(job)


class RayExecutor:
    """One Ray task a trial, with its demands of CPUs and GPUs.

    Ray itself runs a task again whose worker or node has died. What still fails, or takes too long,
    finishes as failed.

    Args:
        config: ``executor.workers`` trials run at once; with 0, as many as the cluster has room for.
    """

    def __init__(self, config: SearchConfig, make_task: MakeTask) -> None:
        settings = config.executor
        if not ray.is_initialized():
            ray.init(address=settings.ray_address, log_to_driver=False, include_dashboard=False)
        self._config, self._make_task = config.model_dump_json(), make_task
        self._timeout = settings.timeout
        self._threads = settings.threads or max(1, int(settings.cpus))
        self._task = ray.remote(
            num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=3, max_calls=0
        )(_run)
        self._running: dict[Any, tuple[Job, float]] = {}
        self.capacity = settings.workers or _room(settings.cpus, settings.gpus)

    def submit(self, job: Job) -> None:
        reference = self._task.remote(self._make_task, self._config, job, self._threads)
        self._running[reference] = job, time.monotonic()

    def events(self, timeout: float) -> list[Asking | Finished]:
        if not self._running:
            return []
        if self._timeout is not None:
            timeout = min(timeout, self._timeout)
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        events: list[Asking | Finished] = [self._finish(reference) for reference in ready]
        for reference, (job, started) in list(self._running.items()):
            if self._timeout is not None and time.monotonic() - started >= self._timeout:
                ray.cancel(reference, force=True)
                del self._running[reference]
                message = f"no result after {self._timeout:g} s"
                events.append(Finished(job.key, Outcome(0.0, "failed", self._timeout, message)))
        return events

    def _finish(self, reference: Any) -> Finished:
        job, started = self._running.pop(reference)
        try:
            outcome: Outcome = ray.get(reference)
        except (RayError, Exception) as error:  # of the cluster, or of the trial itself
            message = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
            outcome = Outcome(0.0, "failed", time.monotonic() - started, message)
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

"""Where trials run: in this process, in processes of this machine, or on a Ray cluster.

An executor takes jobs and tells events: a job asks half-way whether it may go on, and it finishes.
Whatever happens to a job, even the death of its process, it finishes with an `Outcome`. Only where no
process could begin a job at all is it an error, for then the fault is not a job's.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import torch

from paploss.loss.parameters import LossParameters
from paploss.search.config import ExecutorConfig, SearchConfig
from paploss.search.objective import Outcome, ProxyTask


class Job(Protocol):
    """Something to run; a task of the same family knows how."""

    @property
    def key(self) -> int: ...


class Trial(NamedTuple):
    """A loss whose reward is asked for."""

    key: int
    heads: dict[str, LossParameters]
    seed: int | None = None  # that of the configuration if None


class Started(NamedTuple):
    """A job has begun: its process is up and the data are loaded."""

    key: int


class Unable(NamedTuple):
    """A process cannot load what jobs need."""

    message: str


class Asking(NamedTuple):
    """A job has an AP half-way and waits for `Executor.answer`."""

    key: int
    ap: float


class Finished(NamedTuple):
    """A job is done."""

    key: int
    outcome: Outcome


class Executor(Protocol):
    """Runs jobs; all calls come from one thread."""

    @property
    def capacity(self) -> int:
        """Jobs that run at once."""
        ...

    def submit(self, job: Job) -> None: ...

    def events(self, timeout: float) -> list[Asking | Finished]:
        """What has happened; waits for the first event at most so many seconds."""
        ...

    def answer(self, key: int, keep_going: bool) -> None: ...

    def close(self) -> None: ...


KeepGoing = Callable[[float], bool]


class Task(Protocol):
    """What runs jobs in a process: `ProxyTask` for trials."""

    def run(self, job: Any, keep_going: KeepGoing | None = None) -> Outcome: ...


MakeTask = Callable[[str], Task]  # from a configuration as json; a function of a module


@lru_cache(maxsize=1)
def proxy_task(config: str) -> Task:
    """The task of a configuration, loaded once in a process."""
    return ProxyTask(SearchConfig.model_validate_json(config))


def make_executor(config: SearchConfig, make_task: MakeTask = proxy_task) -> Executor:
    """The executor of a configuration."""
    if config.executor.name == "ray":
        from paploss.search.ray_executor import RayExecutor

        return RayExecutor(config, make_task)
    if config.executor.workers == 0:
        return InProcessExecutor(config, make_task)
    return LocalExecutor(config, make_task)


def run_all(
    jobs: Iterable[Job],
    executor: Executor,
    *,
    may_go_on: Callable[[int, float], bool] = lambda key, ap: True,
    on_waiting: Callable[[], None] = lambda: None,
    patience: float = 60.0,
) -> Iterator[tuple[int, Outcome]]:
    """Run jobs, as many at once as there is room for; one that fails is tried once more.

    Args:
        jobs: to run.
        executor: where.
        may_go_on: answers a job that asks half-way: of its key and AP.
        on_waiting: called at least every ``patience`` seconds.
        patience: in seconds.
    """
    waiting, running = deque(jobs), dict[int, Job]()
    first_failure: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < executor.capacity:
            job = waiting.popleft()
            running[job.key] = job
            executor.submit(job)
        for event in executor.events(timeout=patience):
            if isinstance(event, Asking):
                executor.answer(event.key, may_go_on(event.key, event.ap))
                continue
            job = running.pop(event.key)
            if event.outcome.state == "failed" and event.key not in first_failure:
                first_failure[event.key] = event.outcome.message
                waiting.appendleft(job)
                continue
            outcome = event.outcome
            if event.key in first_failure:
                told = dict.fromkeys((first_failure[event.key], outcome.message))
                message = "; ".join(part for part in ("tried twice", *told) if part)
                outcome = replace(outcome, message=message)
            yield event.key, outcome
        on_waiting()


class InProcessExecutor:
    """Runs a job when it is submitted; without pruning, for nobody could answer."""

    capacity = 1

    def __init__(self, config: SearchConfig, make_task: MakeTask) -> None:
        self._task = make_task(config.model_dump_json())
        self._done: list[Asking | Finished] = []

    def submit(self, job: Job) -> None:
        self._done.append(Finished(job.key, self._task.run(job)))

    def events(self, timeout: float) -> list[Asking | Finished]:
        done, self._done = self._done, []
        return done

    def answer(self, key: int, keep_going: bool) -> None:
        raise RuntimeError("a job in this process asks nobody")

    def close(self) -> None:
        pass


class TimeLimit:
    """When a job counts as hung: as configured, else after ten times the longest one so far.

    Args:
        seconds: as configured.
    """

    def __init__(self, seconds: float | None) -> None:
        self._given, self._longest = seconds, 0.0

    def see(self, seconds: float) -> None:
        """A job has taken so long."""
        self._longest = max(self._longest, seconds)

    @property
    def seconds(self) -> float | None:
        """None until a first job has shown how long they take."""
        if self._given is None and self._longest:
            return max(10 * self._longest, 600.0)
        return self._given


@dataclass
class _Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    submitted: float = 0.0
    started: float = math.inf  # the clock does not run while the data are loaded


class LocalExecutor:
    """Processes of this machine, each with its share of threads and, in turn, a GPU.

    A process that dies or takes too long is replaced, and its job finishes as failed.
    """

    def __init__(self, config: SearchConfig, make_task: MakeTask) -> None:
        self._settings, self._prune = config.executor, config.proxy.prune
        self._limit = TimeLimit(config.executor.timeout)
        self._config, self._make_task = config.model_dump_json(), make_task
        self.capacity = config.executor.workers
        self._workers: list[_Worker | None] = [None] * self.capacity
        self._has_begun = False  # any job

    def submit(self, job: Job) -> None:
        place = next(
            k for k, worker in enumerate(self._workers) if worker is None or worker.job is None
        )
        worker = self._workers[place]
        if worker is None:
            worker = self._workers[place] = self._start(place)
        worker.job, worker.submitted, worker.started = job, time.monotonic(), math.inf
        with contextlib.suppress(OSError):  # a process that died idle is found by its sentinel
            worker.connection.send(job)

    def _start(self, place: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self._settings.threads or max(1, (os.cpu_count() or 1) // self.capacity)
        task = self._make_task, self._config, self._prune
        process = context.Process(
            target=_serve, args=(theirs, task, threads, place, os.getpid()), daemon=True
        )
        with _environment(OMP_NUM_THREADS=str(threads)):  # read when torch is imported
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def events(self, timeout: float) -> list[Asking | Finished]:
        busy = [w for w in self._workers if w is not None and w.job is not None]
        limit = self._limit.seconds
        if limit is not None and busy:
            first = min(worker.started for worker in busy)
            timeout = max(0.0, min(timeout, first + limit - time.monotonic()))
        waiting: list[Any] = [w.connection for w in busy] + [w.process.sentinel for w in busy]
        ready = set(wait(waiting, timeout)) if waiting else set()
        events = [event for worker in busy for event in self._events_of(worker, ready)]
        if limit is not None:
            for worker in busy:
                if worker.job is not None and time.monotonic() - worker.started >= limit:
                    events.append(self._bury(worker, f"no result after {limit:g} s"))
        return events

    def _events_of(self, worker: _Worker, ready: set[Any]) -> list[Asking | Finished]:
        events: list[Asking | Finished] = []
        unable = None
        try:
            while worker.connection in ready and worker.connection.poll():
                event: Started | Unable | Asking | Finished = worker.connection.recv()
                if isinstance(event, Started):
                    worker.started, self._has_begun = time.monotonic(), True
                    continue
                if isinstance(event, Unable):
                    unable = event.message
                    break
                events.append(event)
                if isinstance(event, Finished):
                    worker.job = None
                    self._limit.see(event.outcome.seconds)
        except (EOFError, OSError):
            pass
        if unable is not None:
            events.append(self._cannot_begin(worker, unable))
        elif worker.job is not None and not worker.process.is_alive():
            cause = _cause_of_death(worker.process.exitcode)
            begun = worker.started < math.inf
            events.append(self._bury(worker, cause) if begun else self._cannot_begin(worker, cause))
        return events

    def _cannot_begin(self, worker: _Worker, message: str) -> Finished:
        buried = self._bury(worker, message)
        if not self._has_begun:
            hint = (
                ' (a program must search below `if __name__ == "__main__":`, for workers import it)'
            )
            crashed = worker.process.exitcode == 1
            raise ChildProcessError(f"no worker can begin: {message}{hint if crashed else ''}")
        return buried

    def _bury(self, worker: _Worker, message: str) -> Finished:
        assert worker.job is not None
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        self._workers[self._workers.index(worker)] = None
        seconds = time.monotonic() - worker.submitted
        return Finished(worker.job.key, Outcome(0.0, "failed", seconds, message))

    def answer(self, key: int, keep_going: bool) -> None:
        for worker in self._workers:
            if worker is not None and worker.job is not None and worker.job.key == key:
                with contextlib.suppress(OSError):
                    worker.connection.send(keep_going)

    def close(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.process.kill()
                worker.process.join()
        self._workers = [None] * self.capacity


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return "the process was killed, perhaps for want of memory"
    return f"the process ended with exit code {exit_code}"


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(
    connection: Connection,
    task: tuple[MakeTask, str, bool],
    threads: int,
    place: int,
    driver: int,
) -> None:
    """A worker's life: jobs come, events go, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    make_task, config, prune = task
    loaded: Task | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: Job = connection.recv()
            start = time.perf_counter()
            try:
                loaded = loaded or make_task(config)
            except Exception as error:
                connection.send(Unable(f"{type(error).__name__}: {error}"))
                return
            connection.send(Started(job.key))
            try:

                def keep_going(ap: float, key: int = job.key) -> bool:
                    connection.send(Asking(key, ap))
                    return bool(connection.recv())

                outcome = loaded.run(job, keep_going if prune else None)
            except Exception as error:  # whatever a trial does, the search goes on
                seconds = time.perf_counter() - start
                outcome = Outcome(0.0, "failed", seconds, f"{type(error).__name__}: {error}")
            connection.send(Finished(job.key, outcome))


def _end_with(driver: int) -> None:
    """End this process soon after the driver's; a killed driver cannot do it."""
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)


def check_executor(config: ExecutorConfig, prune: bool) -> None:
    """Refuse what an executor cannot do."""
    if prune and (config.name == "ray" or config.workers == 0):
        raise ValueError("proxy.prune: only local workers can be asked half-way")

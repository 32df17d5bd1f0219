"""Trials as tasks of a Ray cluster, whose machines come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paploss.search.study import Search, SearchProgress
from tests.search import tasks
from tests.search.test_study import configure, policies, search, trials

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that runs no trials, and two nodes of one CPU."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.add_node(num_cpus=1)
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.filterwarnings("ignore")  # of Ray's own files and sockets
def test_a_node_that_goes_away_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    def remove() -> None:
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    def on_progress(progress: SearchProgress) -> None:
        if progress.trials == 3:  # half a second later both nodes are busy with a trial of a second
            threading.Timer(0.5, remove).start()

    settings = configure(
        executor__name="ray",
        executor__ray_address=cluster.address,
        executor__workers=0,
        sampler__rounds=3,
    )
    made = Search(settings, tmp_path / "ray", on_progress, make_task=tasks.long)
    made.run()
    undisturbed = search(tmp_path / "here", sampler__rounds=3)
    assert len(cluster.worker_nodes) == 1
    assert trials(made) == trials(undisturbed)
    assert policies(made) == policies(undisturbed)
    assert all(trial.user_attrs["outcome"]["message"] == "" for trial in made.study.get_trials())


@pytest.mark.filterwarnings("ignore")
def test_trials_that_raise_or_hang_end_as_failed(cluster: Any, tmp_path: Path) -> None:
    for fault, message in (("memory", "no room for 1e9 anchors"), ("hang", "no result after 3 s")):
        data = tmp_path / fault
        data.mkdir()
        # Every time: Ray itself may repeat a trial whose worker goes with the hung one before it.
        (data / "fault.json").write_text(f'{{"fault": "{fault}", "times": 100}}')
        made = search(
            tmp_path / f"run-{fault}",
            tasks.faulty,
            train__data={"path": str(data)},
            sampler__rounds=1,
            executor__name="ray",
            executor__ray_address=cluster.address,
            executor__timeout=3.0,
        )
        outcomes = [trial.user_attrs["outcome"] for trial in made.study.get_trials()]
        failed = [outcome for outcome in outcomes if outcome["state"] == "failed"]
        assert len(failed) == 1, outcomes
        assert message in failed[0]["message"]


@pytest.mark.filterwarnings("ignore")
def test_data_that_is_not_there_is_an_error_with_the_name_of_the_machine(
    cluster: Any, tmp_path: Path
) -> None:
    with pytest.raises(ChildProcessError, match=r"begin: FileNotFoundError: no such data \(on \w"):
        search(
            tmp_path,
            tasks.not_there,
            executor__name="ray",
            executor__ray_address=cluster.address,
        )

"""The search as a whole, on objectives that take no time: it ends, it continues, it says what failed."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from paploss import LossParameters, load_preset
from paploss.loss.parameters import load_heads
from paploss.search.config import SearchConfig
from paploss.search.executors import TimeLimit
from paploss.search.study import Search, SearchProgress, make_space
from tests.search import tasks


def configure(**settings: Any) -> SearchConfig:
    content: dict[str, Any] = {
        "sampler": {"rounds": 4, "samples": 4},
        "executor": {"workers": 0},
    }
    for key, value in settings.items():
        section, _, name = key.partition("__")
        content.setdefault(section, {})[name] = value
    return SearchConfig.model_validate(content)


def search(directory: Path, make_task: Any = tasks.quick, **settings: Any) -> Search:
    made = Search(configure(**settings), directory, make_task=make_task)
    made.run()
    return made


def trials(made: Search) -> list[tuple[dict[str, float], float | None]]:
    return [(trial.params, trial.value) for trial in made.study.get_trials()]


def policies(made: Search) -> dict[str, Any]:
    attributes = made.study._storage.get_study_system_attrs(made.study._study_id)
    return {name: value for name, value in attributes.items() if name.startswith("ppo2")}


def test_the_best_loss_is_written(tmp_path: Path) -> None:
    seen: list[SearchProgress] = []
    made = Search(configure(), tmp_path, seen.append, make_task=tasks.quick)
    found = made.run()
    rewards = [value for _, value in trials(made)]
    assert len(rewards) == 16
    assert load_heads(tmp_path / "best.loss.json") == found.heads
    assert tasks.quality(found.heads) == max(rewards) == found.reward
    assert [progress.trials for progress in seen] == list(range(1, 17))
    assert seen[-1].best == max(rewards)
    assert seen[-1].round_mean == pytest.approx(sum(rewards[12:]) / 4)


def test_the_same_command_after_the_end_runs_nothing(tmp_path: Path) -> None:
    before = trials(search(tmp_path))
    assert trials(search(tmp_path, make_task=nothing_to_run)) == before


def nothing_to_run(config: str) -> tasks.Quick:
    class Never(tasks.Quick):
        def run(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("nothing is left to run")

    return Never()


def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    alone = search(tmp_path / "alone")
    together = search(tmp_path / "together", executor__workers=2)
    assert trials(alone) == trials(together)
    assert policies(alone) == policies(together)


def test_more_rounds_continue_a_search(tmp_path: Path) -> None:
    first = trials(search(tmp_path))
    extended = search(tmp_path, sampler__rounds=6)
    assert trials(extended)[:16] == first
    assert len(trials(extended)) == 24


@pytest.mark.parametrize("sampler", ["ppo2", "random", "tpe", "cmaes", "gp"])
def test_every_sampler_continues_as_it_would_have(sampler: str, tmp_path: Path) -> None:
    settings = {"sampler__name": sampler, "sampler__samples": 4, "sampler__rounds": 6}
    whole = search(tmp_path / "whole", **settings)
    stopped = Search(configure(**settings), tmp_path / "stopped", make_task=tasks.quick)
    stopped.on_progress = stop_after(10)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert trials(search(tmp_path / "stopped", **settings)) == trials(whole)


def stop_after(count: int) -> Any:
    def on_progress(progress: SearchProgress) -> None:
        if progress.trials == count:
            raise KeyboardInterrupt

    return on_progress


SCRIPT = """
import sys
from pathlib import Path
from tests.search import tasks
from tests.search.test_study import search
if __name__ == "__main__":
    search(Path(sys.argv[1]), tasks.short, executor__workers=2)
"""


def test_workers_that_cannot_begin_are_an_error_and_no_trial_is_lost(tmp_path: Path) -> None:
    with pytest.raises(
        ChildProcessError, match="no worker can begin: FileNotFoundError: no such data"
    ):
        search(tmp_path / "load", tasks.not_there, executor__workers=2)
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    root = Path(__file__).parents[2]
    command = [sys.executable, str(unguarded), str(tmp_path / "script")]
    environment = os.environ | {"PYTHONPATH": str(root)}
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "ChildProcessError: no worker can begin: the process"
    )
    assert "__main__" in ended.stderr.splitlines()[-1]
    for directory in ("load", "script"):
        assert count_finished(tmp_path / directory / "study.db") == 0
    assert trials(search(tmp_path / "load")) == trials(search(tmp_path / "undisturbed"))


def count_finished(database: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            query = "SELECT count(*) FROM trials WHERE state = 'COMPLETE'"
            return int(connection.execute(query).fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def test_killed_at_random_moments_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    undisturbed = search(tmp_path / "undisturbed")
    random.seed(0)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")]
    for finished in range(10):  # trials that have finished when the driver is killed, or one more
        driver = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 120
        while count_finished(tmp_path / "killed/study.db") < finished:
            assert driver.poll() is None, "it ended too early to be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(random.uniform(0, 0.3))
        driver.kill()
        driver.wait()
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    continued = Search(configure(), tmp_path / "killed", make_task=tasks.quick)
    assert trials(continued) == trials(undisturbed)
    assert policies(continued) == policies(undisturbed)
    assert load_heads(tmp_path / "killed/best.loss.json") == load_heads(
        tmp_path / "undisturbed/best.loss.json"
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("die", "the process was killed"),
        ("hang", "no result after 3 s"),
        ("memory", "MemoryError: no room for 1e9 anchors"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_trial_that_goes_wrong_is_repeated_once(
    fault: str, message: str, times: int, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "fault.json").write_text(json.dumps({"fault": fault, "times": times}))
    made = search(
        tmp_path / "run",
        tasks.faulty,
        train__data={"path": str(data)},
        executor__workers=2,
        executor__timeout=3.0 if fault == "hang" else None,
        sampler__rounds=2,
    )
    outcomes = [trial.user_attrs["outcome"] for trial in made.study.get_trials()]
    assert len(outcomes) == 8
    failed = [outcome for outcome in outcomes if outcome["state"] == "failed"]
    assert len(failed) == (times == 2)
    assert all(message in outcome["message"] for outcome in failed)
    assert len(made.problems()) == 1
    assert "tried twice" in made.problems()[0]
    assert message in made.problems()[0]
    rewards = sorted(value for _, value in trials(made))
    assert (rewards[0] == 0) == (times == 2)
    assert rewards[1] > 0


def test_the_time_limit_follows_from_what_trials_take() -> None:
    limit = TimeLimit(None)
    assert limit.seconds is None
    limit.see(20)
    assert limit.seconds == 600
    limit.see(100)
    assert limit.seconds == 1000
    given = TimeLimit(5.0)
    given.see(100)
    assert given.seconds == 5


def test_a_collapsed_trial_is_a_reward_of_zero(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "fault.json").write_text(json.dumps({"fault": "collapse", "times": 1}))
    made = search(tmp_path / "run", tasks.faulty, train__data={"path": str(data)})
    first = made.study.get_trials()[0]
    assert (first.value, first.user_attrs["outcome"]["state"]) == (0.0, "collapsed")
    assert first.state == optuna.trial.TrialState.COMPLETE


def test_hopeless_trials_are_pruned(tmp_path: Path) -> None:
    made = search(tmp_path, executor__workers=1, proxy__prune=True, sampler__rounds=6)
    states = [trial.state for trial in made.study.get_trials()]
    assert optuna.trial.TrialState.PRUNED in states[4:]
    assert optuna.trial.TrialState.PRUNED not in states[:4]
    with pytest.raises(ValueError, match="only local workers can be asked"):
        Search(configure(proxy__prune=True), tmp_path / "other")


def test_finalists_are_judged_with_more_seeds(tmp_path: Path) -> None:
    seen: list[SearchProgress] = []
    settings = configure(finalists__count=2, finalists__seeds=3)
    made = Search(settings, tmp_path, seen.append, make_task=tasks.quick)
    made.run()
    shown = [(progress.finalists, progress.of_finalists) for progress in seen[-5:]]
    assert shown == [(0, 0), (1, 4), (2, 4), (3, 4), (4, 4)], "of each its first seed was its trial"
    assert seen[-1].best_finalist > seen[-1].best
    repeats = made.study.user_attrs["repeats"]
    assert len(repeats) == 6
    best = made.study.best_trial
    name = f"trial {best.number}, seed 2, 1 epochs of 1"
    assert repeats[name] == pytest.approx(best.value + 0.02)


def test_finalists_may_be_trained_for_longer(tmp_path: Path) -> None:
    settings = {"finalists__count": 3, "finalists__epochs": 5, "proxy__fraction": 0.5}
    made = search(tmp_path, tasks.reversed_by_epochs, **settings)
    trials = sorted(made.study.get_trials(), key=lambda trial: -trial.value)
    third = trials[2].number
    assert made.run().trial == third, "of the best three by the proxy, the best of the longer one"
    repeats = made.study.user_attrs["repeats"]
    assert {f"trial {t.number}, seed 0, 5 epochs of 1" for t in trials[:3]} <= set(repeats)
    config = configure(finalists__epochs=5, proxy__warmup_steps=3, proxy__evaluation_fraction=0.1)
    longer = config.finalists.proxy(config.proxy)
    assert (longer.warmup_steps, longer.evaluation_fraction) == (None, 1.0)


def test_the_scale_is_found_again_by_longer_trainings(tmp_path: Path) -> None:
    settings = {"finalists__count": 1, "finalists__epochs": 5, "space__init": "linear"}
    made = search(tmp_path, tasks.wants_scale_by_epochs, **settings)
    scale = made.run().heads["detector"].gradient_scale
    assert 4 / 2**0.5 <= scale <= 4 * 2**0.5
    drawn = made.space.heads(made.study.best_trial.params)["detector"].gradient_scale
    assert np.log2(scale / drawn) % 1 == pytest.approx(0), "by factors of two"
    about = json.loads((tmp_path / "best.loss.json").read_text())["about"]["source"]
    answer = f"trial {made.study.best_trial.number} with scale x {scale / drawn:g}"
    assert about.rpartition(", ")[2] == answer, "what the report calls the answer"
    fixed = search(
        tmp_path / "fixed", tasks.wants_scale_by_epochs, space__fixed=["scale"], **settings
    )
    assert fixed.run().heads["detector"].gradient_scale == 1


def test_two_heads_and_a_warm_start(tmp_path: Path) -> None:
    config = configure(
        train__detector={"name": "faster-rcnn"},
        space__init="faster-rcnn-r50-fpn-coco",
        sampler__sigma=1e-4,
    )
    made = Search(config, tmp_path, make_task=tasks.quick)
    assert len(made.space.names) == 82
    made.run()
    rpn = load_heads(tmp_path / "best.loss.json")["rpn"]
    assert rpn.gradient_scale == pytest.approx(1.695, rel=0.01), "it began at the preset"
    with pytest.raises(ValueError, match="holds the heads rpn, rcnn, the detector has detector"):
        Search(configure(space__init="faster-rcnn-r50-fpn-coco"), tmp_path / "b")


def test_where_a_search_begins() -> None:
    tied = load_preset("retinanet-r50-fpn-coco-tied")
    assert make_space(configure()).start == {"detector": tied}, "the detector's preset"
    faster_rcnn = configure(train__detector={"name": "faster-rcnn"})
    assert set(make_space(faster_rcnn).start) == {"rpn", "rcnn"}
    linear = configure(space__init="linear")
    assert make_space(linear).start == {"detector": LossParameters.linear()}
    assert make_space(configure(space__shared=True)) == make_space(
        configure(space__shared=True, space__init="linear")
    )
    three = make_space(configure(space__segments=3, space__safe=True))
    assert len(three.names) == 4 * 4 + 1
    assert three.start == {"detector": LossParameters.linear(3)}
    with pytest.raises(ValueError, match=r"space.segments: .*-tied has its own; found 3"):
        make_space(configure(space__segments=3, space__init="retinanet-r50-fpn-coco-tied"))
    with pytest.raises(
        ValueError, match=r"train.loss.heads: .* for every head, found .* for detector"
    ):
        make_space(configure(train__loss={"heads": {"detector": "focal+l1"}}))
    with pytest.raises(ValueError, match=r"space.init: expected linear, .* found 'liniar'"):
        make_space(configure(space__init="liniar"))


def test_a_start_at_a_good_loss_is_narrower() -> None:
    assert configure(space__init="linear").sampler.sigma == 0.2
    near = configure()
    assert near.sampler.sigma == 0.1
    assert SearchConfig.model_validate_json(near.model_dump_json()) == near, "halved once only"
    assert configure(sampler__sigma=0.3).sampler.sigma == 0.3


def test_what_is_found_has_to_beat_the_usual_loss_and_the_start() -> None:
    assert configure().final.against == ["focal+l1", "retinanet-r50-fpn-coco-tied"]
    assert configure(space__init="linear").final.against == ["focal+l1"]
    assert configure(final__against=[]).final.against == []


def test_a_store_of_many_searches_keeps_them_apart(tmp_path: Path) -> None:
    settings = configure(sampler__rounds=1)
    settings.storage = f"sqlite:///{tmp_path}/shared.db"
    first = Search(settings, tmp_path / "a/run", make_task=tasks.quick)
    first.run()
    Search(settings, tmp_path / "a/run", make_task=tasks.quick).run()
    assert len(first.study.get_trials()) == 4
    with pytest.raises(ValueError, match=r"the study 'run' belongs to the run .*a/run, not to"):
        Search(settings, tmp_path / "b/run", make_task=tasks.quick)
    Search(settings, tmp_path / "b/other", make_task=tasks.quick).run()

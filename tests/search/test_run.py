"""A search from beginning to end: config kept, best loss trained, compared, continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paploss.loss.parameters import load_heads
from paploss.search.config import SearchConfig, load_search_config
from paploss.search.run import run_search
from paploss.training.run import RunDirectory
from tests.search import tasks

TRAIN: dict[str, Any] = {
    "data": {"images": 16, "evaluation_images": 8},
    "batch_size": 8,
    "epochs": 1,
}


def configure(**sections: Any) -> SearchConfig:
    content = {
        "train": TRAIN,
        "sampler": {"rounds": 2, "samples": 3},
        "executor": {"workers": 0},
        "final": {"against": ["focal+l1", "retinanet-r50-fpn-coco"]},
    }
    return SearchConfig.model_validate(content | sections)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("search") / "run"
    return directory, run_search(configure(), directory, make_task=tasks.quick)


def test_the_found_loss_is_trained_next_to_its_rivals(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    directory, result = finished
    assert list(result["losses"]) == ["searched", "focal+l1", "retinanet-r50-fpn-coco"]
    assert result["split"] == "test"
    searched = directory / result["losses"]["searched"]["runs"][0]
    loss = yaml.safe_load((searched / "config.yaml").read_text())["loss"]
    assert load_heads(loss["parameters"]) == load_heads(directory / "best.loss.json")
    figures = json.loads((searched / "evaluation.json").read_text())["test"]["metrics"]
    assert result["losses"]["searched"]["AP"]["values"] == [figures["AP"]]
    assert json.loads((directory / "comparison.json").read_text()).items() <= result.items()


def test_a_finished_search_gives_its_answer_again(finished: tuple[Path, dict[str, Any]]) -> None:
    directory, result = finished
    before = sorted((p, p.stat().st_mtime_ns) for p in directory.glob("final/*/evaluation.json"))
    assert run_search(configure(), directory, make_task=tasks.quick) == result
    after = sorted((p, p.stat().st_mtime_ns) for p in directory.glob("final/*/evaluation.json"))
    assert before == after


def test_more_rounds_may_find_another_loss_and_train_it(tmp_path: Path) -> None:
    first = run_search(configure(final={"against": []}), tmp_path, make_task=tasks.quick)
    longer = configure(sampler={"rounds": 12, "samples": 3}, final={"against": []})
    second = run_search(longer, tmp_path, make_task=tasks.quick)
    assert second["reward"] > first["reward"]
    assert second["trial"] != first["trial"]
    assert second["losses"]["searched"]["runs"] == [f"final/trial-{second['trial']}-seed0"]
    assert (tmp_path / f"final/trial-{first['trial']}.loss.json").exists()
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["sampler"]["rounds"] == 12


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sampler": {"rounds": 1, "samples": 3}}, "sampler.rounds: 2 there, 1 now"),
        ({"proxy": {"seed": 5}}, "proxy.seed: 0 there, 5 now"),
        ({"train": TRAIN | {"batch_size": 4}}, "train.batch_size: 8 there, 4 now"),
    ],
)
def test_another_search_is_refused(
    change: dict[str, Any], named: str, finished: tuple[Path, dict[str, Any]]
) -> None:
    with pytest.raises(ValueError, match=named):
        run_search(configure(**change), finished[0], make_task=tasks.quick)


def test_one_driver_at_a_time(finished: tuple[Path, dict[str, Any]]) -> None:
    with (
        RunDirectory(finished[0]).locked(),
        pytest.raises(ValueError, match="another process is working on this run"),
    ):
        run_search(configure(), finished[0], make_task=tasks.quick)


def test_a_final_training_that_collapses_is_a_row_of_the_table(tmp_path: Path) -> None:
    train = TRAIN | {"optimizer": {"learning_rate": 1e30, "warmup_steps": 0}, "epochs": 3}
    result = run_search(
        configure(train=train, final={"against": []}), tmp_path, make_task=tasks.quick
    )
    assert "collapsed: the loss is nan" in result["losses"]["searched"]["problems"][0]
    assert "AP" not in result["losses"]["searched"]


def test_a_file_of_a_training_can_be_searched(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("epochs: 3\ndetector: {name: faster-rcnn}\n")
    config = load_search_config(file, {"sampler.rounds": 2, "proxy.epochs": 2})
    assert (config.train.epochs, config.train.detector.name) == (3, "faster-rcnn")
    assert (config.sampler.rounds, config.proxy.epochs) == (2, 2)
    file.write_text("train: {epochs: 3}\nsampler: {rounds: 0}\n")
    with pytest.raises(ValueError, match=r"train\.yaml: sampler\.rounds: .* found 0"):
        load_search_config(file)


def test_a_wrong_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found 'liniar'"):
        run_search(configure(space={"init": "liniar"}), tmp_path / "run", make_task=tasks.quick)
    assert not (tmp_path / "run").exists()

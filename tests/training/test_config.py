from __future__ import annotations

from pathlib import Path

import pytest

from paploss import LossParameters
from paploss.criteria.alrp import ALRPCriterion
from paploss.criteria.pap import ParameterizedAPCriterion
from paploss.detectors import detector_config
from paploss.presets import load_preset
from paploss.search.config import SearchConfig, load_search_config
from paploss.training.config import LossConfig, TrainConfig, load_config
from paploss.training.loop import make_criteria
from paploss.training.run import RunDirectory

CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path: Path) -> None:
    search = load_search_config(path)  # which takes a training's file, too
    assert SearchConfig.model_validate(search.model_dump()) == search
    if not path.stem.endswith("-search"):
        config = load_config(path)
        assert config == search.train
        assert TrainConfig.model_validate(config.model_dump()) == config


def test_the_papers_recipe() -> None:
    config = load_config(CONFIGS / "coco-retinanet-r50.yaml")
    assert config.optimizer.learning_rate == 0.016
    assert config.optimizer.steps == [60, 80]
    assert config.epochs == 100
    assert config.batch_size == 8  # times 8 processes
    assert (config.detector.short_side, config.detector.long_side) == (500, 833)
    assert config.data.augmentation == "paper"


def test_size_fills_in_what_is_not_given() -> None:
    config = load_config(None, {"detector.size": "r50", "detector.channels": 128})
    assert config.detector.backbone == "resnet50"
    assert config.detector.channels == 128


def test_overrides(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("loss: pap\nepochs: 3\n")
    config = load_config(file, {"loss.parameters": "x.json", "optimizer.learning_rate": 0.1})
    assert config.loss.name == "pap"
    assert config.loss.parameters == "x.json"
    assert config.epochs == 3
    assert config.optimizer.learning_rate == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: many", r"c\.yaml: epochs: .*integer.*found 'many'"),
        ("epochs: 0", r"c\.yaml: epochs: .*greater than or equal to 1, found 0"),
        ("epoch: 3", r"c\.yaml: epoch: Extra inputs are not permitted"),
        ("detector: {name: yolo}", r"c\.yaml: detector: expected one of retinanet, faster.*'yolo'"),
        ("[1, 2]", r"c\.yaml: expected sections"),
        ("a: [", r"c\.yaml: not a yaml file"),
        ("data: !!python/object/apply:os.system [echo]", r"c\.yaml: not a yaml file"),
    ],
)
def test_bad_files_name_the_field(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(file)


def test_a_run_directory_refuses_another_configuration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.open(load_config(None, {"epochs": 3}))
    run.open(load_config(None, {"epochs": 3}))
    with pytest.raises(ValueError, match=r"another configuration \(epochs: 3 there, 4 now\)"):
        run.open(load_config(None, {"epochs": 4}))


def test_metrics_of_steps_that_run_again_are_dropped(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in (10, 20, 30):
        run.log({"step": step, "loss": step / 10})
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("4")  # cut short by a stop
    run.forget_after(20)
    run.log({"step": 30, "loss": 9})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "10", "20", "30"]
    assert lines[-1].split(",")[2] == "9"


def test_options_of_pap_reach_its_criteria() -> None:
    loss = LossConfig(localization="iou", block_denominator_gradient=False)
    made = make_criteria(loss, detector_config(name="faster-rcnn"))
    for head in ("rpn", "rcnn"):
        assert made[head].loss.localization == "iou"
        assert not made[head].loss.block_denominator_gradient
    one = LossParameters.linear()
    criteria = make_criteria(loss, detector_config(), {"detector": one})
    assert criteria["detector"].loss.parameters_of_loss == one


def test_a_head_may_have_a_loss_of_its_own() -> None:
    of_proposals = {"loss.heads.rpn.name": "alrp", "loss.heads.rpn.box_weight": 3}
    config = load_config(None, {"detector.name": "faster-rcnn"} | of_proposals)
    criteria = make_criteria(config.loss, config.detector)
    assert isinstance(criteria["rpn"], ALRPCriterion)
    assert (criteria["rpn"].box_weight, criteria["rpn"].weight) == (3, 0.2)
    assert isinstance(criteria["rcnn"], ParameterizedAPCriterion)
    with pytest.raises(
        ValueError, match=r"loss.heads: the retinanet has the heads detector, found rpn"
    ):
        make_criteria(config.loss, detector_config())
    with pytest.raises(
        ValueError, match=r"loss.heads.rpn.name: expected one of pap, .*, found 'foo'"
    ):
        load_config(None, {"detector.name": "faster-rcnn", "loss.heads.rpn.name": "foo"})


def test_a_preset_or_a_file_alone_is_a_loss(tmp_path: Path) -> None:
    """As ``paploss train --loss`` takes it; further settings of the loss stay."""
    preset = "retinanet-r50-fpn-coco-tied"
    own = tmp_path / "own.loss.json"
    load_preset(preset).save(own)
    for name in (preset, str(own)):
        file = tmp_path / "config.yaml"
        file.write_text(f"loss: {name}\n")
        assert load_config(file).loss == LossConfig(name="pap", parameters=name)
        weighted = load_config(file, {"loss.box_weight": 2}).loss
        assert weighted == LossConfig(name="pap", parameters=name, box_weight=2)
        make_criteria(weighted, detector_config())
    with pytest.raises(ValueError, match=r"loss.name: expected one of pap, .*, found 'foo'"):
        load_config(None, {"loss": "foo"})

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paploss.cli import demo
from paploss.cli.app import app, run

runner = CliRunner()


def test_presets_lists_them_all() -> None:
    result = runner.invoke(app, ["presets"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "retinanet-r50-fpn-coco-tied" in result.output
    assert "l 0.00-0.55 if N/D > 0.15" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_presets_draws_one() -> None:
    result = runner.invoke(app, ["presets", "faster-rcnn-r50-fpn-coco"])
    assert result.exit_code == 0
    for text in (
        "rpn",
        "rcnn",
        "AP 42.0, reported by the paper",
        "NeurIPS 2021",
        "where N/D > 0.06",
    ):
        assert text in result.output
    tied = runner.invoke(app, ["presets", "faster-rcnn-r50-fpn-coco-tied"])
    assert tied.output.count("A better box never makes this loss worse.") == 2


def test_presets_to_png(tmp_path: Path) -> None:
    path = tmp_path / "functions.png"
    result = runner.invoke(app, ["presets", "retinanet-r50-fpn-coco", "--png", str(path)])
    assert result.exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        ["presets", "yolo"],
        ["presets", "--png", "x.png"],
        ["train", "--detector", "yolo"],
        ["search", "--sampler", "luck"],
        ["fly"],
    ],
)
def test_bad_use_exits_with_2(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_demo_searches_trains_and_compares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train = demo.CONFIG["train"] | {"epochs": 1, "data": {"images": 24, "evaluation_images": 8}}
    small = demo.CONFIG | {"train": train, "sampler": {"rounds": 1, "samples": 2}}
    monkeypatch.setattr(demo, "CONFIG", small)
    result = runner.invoke(app, ["demo", "--workers=0", f"--run={tmp_path}"])
    assert result.exit_code == 0, result.output
    for loss in ("searched", demo.PRESET, "focal+giou", "focal+l1"):
        assert loss in result.output
    assert max(map(len, result.output.splitlines()[:-1])) <= 80


def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [
        "paploss",
        "presets",
        "retinanet-r50-fpn-coco",
        "--png",
        str(tmp_path / "no/x.png"),
    ]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "error:" in lines[0]
    assert "no/x.png" in lines[0]
    monkeypatch.setattr("sys.argv", ["paploss", "--debug", *arguments[1:]])
    with pytest.raises(FileNotFoundError):
        run()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.invoke(app, ["--version"]).output == "paploss 0.1.0\n"


def test_a_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("paploss.detectors.d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    directory = f"--run={tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", ["paploss", "train", "--detector=deformable-detr", directory])
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 1
    assert "transformers is missing: pip install 'paploss[detr]'" in capsys.readouterr().err

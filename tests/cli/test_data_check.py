from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paploss.cli.data import app
from tests.data.writers import (
    coco_image,
    coco_object,
    voc_object,
    write_coco,
    write_image,
    write_voc,
)

runner = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    objects = (
        voc_object("[red]cat")
        + voc_object("[red]cat", (1, 1, 60, 48), difficult=1)
        + voc_object("a dog of whom there is far too much to say in one line of eighty characters")
        + voc_object("[red]cat", (5, 5, 5, 5))
    )
    write_voc(tmp_path, "a", objects, split="train")
    write_voc(tmp_path, "b", "", split="train")
    write_voc(tmp_path, "c", voc_object("[red]cat"), split="val")
    write_voc(tmp_path, "d", "", split="val")
    write_image(tmp_path / "JPEGImages" / "d.png", 32, 32)
    return tmp_path


def test_tables_and_faults(data: Path) -> None:
    result = runner.invoke(app, ["check", str(data)], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    lines = result.output.splitlines()
    rows = {" ".join(line.split()[:-2]): line.split()[-2:] for line in lines if line.split()[2:]}
    assert rows["images without boxes"] == ["1", "1"]
    assert rows["small"] == ["2", "1"]
    assert rows["medium"] == ["1", "0"]
    assert rows["crowd or difficult"] == ["1", "0"]
    assert rows["dropped boxes"] == ["1", "0"]
    assert rows["[red]cat"] == ["2", "1"]
    assert "train: 1 fault" in result.output
    assert f"{data / 'Annotations' / 'a.xml'}:10: [red]cat: box (4, 4, 4, 4)" in result.output
    assert "expected 64 x 48 pixels as annotated, found 32 x 32" in result.output
    assert all(len(line) <= 80 for line in lines if str(data) not in line)


def test_json(data: Path) -> None:
    result = runner.invoke(app, ["check", str(data), "--json"])
    assert result.exit_code == 0
    content = json.loads(result.output)
    assert content["splits"]["train"]["counts"]["boxes"] == 3
    assert content["splits"]["train"]["counts"]["images"] == 2
    assert content["splits"]["train"]["classes"]["[red]cat"] == 2
    assert content["splits"]["train"]["faults"][0]["line"] == 10
    assert content["unreadable"] == {}


def test_no_faults(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png")
    path = write_coco(tmp_path / "x.json", [coco_image(1)], [coco_object(1, 1, 3)])
    result = runner.invoke(app, ["check", str(path)])
    assert result.exit_code == 0
    assert "No faults." in result.output


def test_what_cannot_be_read(tmp_path: Path) -> None:
    result = runner.invoke(app, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert "no data set found" in str(result.exception)
    write_image(tmp_path / "train" / "1.png")
    write_coco(tmp_path / "train" / "_annotations.coco.json", [coco_image(1)], [])
    (tmp_path / "valid").mkdir()
    (tmp_path / "valid" / "_annotations.coco.json").write_text("[oops]")
    result = runner.invoke(app, ["check", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "val cannot be read:" in result.output
    (tmp_path / "train" / "_annotations.coco.json").write_text("[oops]")
    result = runner.invoke(app, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert "not a json file" in str(result.exception)

"""The terminal: lines that fit 80 columns, quiet and json output, shell completion."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from paploss.cli.app import app
from paploss.cli.progress import training_progress
from paploss.cli.search import print_comparison, search_progress
from paploss.search.study import SearchProgress
from paploss.training.loop import Progress


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal)


def lines(of: Console) -> list[str]:
    assert isinstance(of.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", of.file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text)]


def row(**figures: Any) -> dict[str, Any]:
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    known = {name: {"mean": 0.4512, "spread": 0.0123, "values": []} for name in names}
    return {"seeds": [0, 1, 2], "problems": [], "runs": [], **known, **figures}


def test_the_comparison_fits_and_tells_what_went_wrong() -> None:
    shown = console(terminal=False)
    collapsed = {"seeds": [0], "runs": [], "problems": ["collapsed: the loss is nan " + "x" * 90]}
    losses = {"searched": row(), "faster-rcnn-r50-fpn-coco-tied": row(), "focal+l1": collapsed}
    print_comparison(shown, {"split": "test", "losses": losses})
    text = lines(shown)
    assert max(map(len, text)) <= 80
    assert re.search(r"^searched +45\.1 ± 1\.2( +45\.1){5}$", "\n".join(text), re.MULTILINE)
    assert re.search(r"^focal\+l1 +-$", "\n".join(text), re.MULTILINE)
    assert any(line.startswith("focal+l1: collapsed: the loss is nan") for line in text)


def test_progress_fits_and_has_an_end() -> None:
    shown = console(terminal=True)
    with search_progress(shown, quiet=False) as (on_trial, on_training):
        state = SearchProgress(40, 40, 312, 320, 0.451, 0.402, 13, 12, 36000.0)
        on_trial(state)
    with search_progress(shown, quiet=False) as (on_trial, on_training):
        on_trial(replace(state, finalists=3, of_finalists=10, best_finalist=0.4932))
    with search_progress(shown, quiet=False) as (on_trial, on_training):
        on_training(0.0, 48.0)
        on_training(3.0, 48.0)
    with training_progress(shown, quiet=False) as on_step:
        on_step(Progress(90_000, 90_000, loss=0.123, images_per_second=1234.5))
        on_step(Progress(90_000, 90_000, average_precision=0.4123))
    text = lines(shown)
    assert max(map(len, text)) <= 80
    joined = "\n".join(text)
    assert "round 40/40 best 45.1 mean 40.2 collapsed 13 failed 12 10h00 left" in joined
    assert "training 3/10 best 49.3 10h00 left" in joined
    assert "epoch 3/48 1 min left" in joined
    assert "loss 0.123 img/s 1234 AP 41.2" in joined


def test_quiet_and_json_leave_the_result_alone(tmp_path: Path) -> None:
    small = ["--epochs=1", "--batch-size=8", "--set=data.images=8"]
    command = ["train", *small, "--set=data.evaluation_images=4", f"--run={tmp_path}"]
    quiet = CliRunner().invoke(app, [*command, "--quiet"])
    assert quiet.exit_code == 0, quiet.output
    assert quiet.output.startswith("evaluation\n")
    assert "step" not in quiet.output
    assert (tmp_path / "report.html").exists()
    as_json = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "evaluation.json").read_text())
    assert as_json.stderr == ""
    loud = CliRunner().invoke(app, command)
    assert "report.html" in loud.output.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("paploss re", {"report"}),
        ("paploss train --detector r", {"retinanet"}),
        ("paploss train --loss focal", {"focal+l1", "focal+giou", "focal+l1+giou"}),
        ("paploss presets faster-rcnn-r50-fpn-coco-", {"faster-rcnn-r50-fpn-coco-tied"}),
    ],
)
def test_the_shell_completes(words: str, offered: set[str]) -> None:
    place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "paploss"],
        env=os.environ | place | {"_PAPLOSS_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert set(done.stdout.split()) == offered, done.stderr

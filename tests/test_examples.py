"""Every example runs as a user runs it, with its small defaults."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# What a user sees in the end, and what an example needs beyond paploss.
PRINTED = {
    "own_loop": (r"epoch 3: loss 0\.\d+", None),
    "torchvision_model": (r"step 4: pap 0\.\d+\ndetections in an image: \d+", None),
    "transformers_trainer": (r"'train_loss': '?[12]\.\d+", "transformers"),
    "lightning_module": (r"step 4: loss 0\.\d+", "lightning"),
    "search_folder": (
        r"searched: test AP \d.*\nfocal\+l1: test AP \d.*\nretinanet.*-tied: test AP \d.*\nthe loss: ",
        "optuna",
    ),
}


def test_all_examples_are_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_example(name: str, tmp_path: Path) -> None:
    printed, needs = PRINTED[name]
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    result = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(printed, result.stdout), result.stdout

"""Training, evaluation, prediction and several processes, as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from paploss.cli.app import app
from paploss.data.detect import load_dataset

runner = CliRunner()
SMALL = [
    "--epochs=1",
    "--batch-size=8",
    "--set=data.images=32",
    "--set=data.evaluation_images=12",
]


DETECTORS = {
    "retinanet": "focal+giou",
    "faster-rcnn": "ce+l1",
    "deformable-detr": "focal+l1+giou",
}


@pytest.fixture(scope="module", params=DETECTORS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / str(request.param)
    result = runner.invoke(app, ["train", *options(path), f"--run={path}"])
    assert result.exit_code == 0, result.output
    assert "AP50" in result.output
    return path


def options(run: Path) -> list[str]:
    return [*SMALL, f"--detector={run.name}", f"--loss={DETECTORS[run.name]}"]


def test_train_as_json_repeats_the_finished_run(run: Path) -> None:
    result = runner.invoke(app, ["train", *options(run), f"--run={run}", "--json"])
    assert json.loads(result.stdout) == json.loads((run / "evaluation.json").read_text())


def test_evaluate_gives_the_figures_of_training(run: Path) -> None:
    result = runner.invoke(app, ["evaluate", str(run / "checkpoints/last.pt"), "--json", "--voc"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    trained = json.loads((run / "evaluation.json").read_text())
    assert figures["metrics"] == trained["test"]["metrics"]
    assert 0 <= figures["voc_ap50_area"] <= 1
    table = runner.invoke(app, ["evaluate", str(run / "checkpoints/last.pt"), "--voc"])
    assert "VOC AP50" in table.output


def test_predict_writes_pictures_and_json(run: Path, tmp_path: Path) -> None:
    dataset = load_dataset("shapes", "test", images=3)
    for index in range(3):
        pixels = dataset[index][0].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    out = tmp_path / "out"
    checkpoint = str(run / "checkpoints/last.pt")
    result = runner.invoke(
        app, ["predict", checkpoint, str(tmp_path), f"--out={out}", "--threshold=0.01"]
    )
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in out.iterdir()) == [
        "0.png",
        "1.png",
        "2.png",
        "detections.json",
    ]
    found = json.loads((out / "detections.json").read_text())
    assert {d["category"] for d in found} <= set(dataset.class_names)
    assert all(0 <= d["score"] <= 1 for d in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "give a CHECKPOINT, or both"),
        (["evaluate", "--ground-truth=x.json"], "give a CHECKPOINT, or both"),
        (["train", "--set", "epochs"], "section.key=value"),
        (["train", "--loss", "nonsense"], "'nonsense' is no loss (pap, focal+l1"),
        (["predict", "x.pt", "EMPTY"], "no images in"),
    ],
)
def test_bad_use(arguments: list[str], message: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path) if a == "EMPTY" else a for a in arguments]
    result = runner.invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


def test_coco_fixture(tmp_path: Path) -> None:
    root = os.environ.get("PAPLOSS_TEST_DATA")
    if root is None:
        pytest.skip("PAPLOSS_TEST_DATA is not set")
    folder = Path(root) / "data/coco_eval_fixture"
    result = runner.invoke(
        app,
        [
            "evaluate",
            f"--ground-truth={folder / 'instances_val2014_100.json'}",
            f"--detections={folder / 'instances_val2014_fakebbox100_results.json'}",
            "--json",
        ],
    )
    metrics = json.loads(result.stdout)["metrics"]
    expected = {"AP": 0.505, "AP50": 0.697, "AP75": 0.573, "APs": 0.586, "APm": 0.519, "APl": 0.501,
                "AR1": 0.387, "AR10": 0.594, "AR100": 0.595}  # fmt: skip
    assert {name: round(metrics[name], 3) for name in expected} == expected


def test_two_processes(tmp_path: Path) -> None:
    """Two CPU processes under torch's launcher: half the batch each, one result."""
    run = tmp_path / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    options = [*SMALL, "--batch-size=4", "--loss=focal+giou", f"--run={run}"]
    done = subprocess.run(
        [*launch, "-m", "--", "paploss", "train", *options],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((run / "evaluation.json").read_text())
    assert result["steps"] == 4, "32 images in batches of 4 from each of two processes"
    assert result["test"]["metrics"]["AP"] >= 0
    rows = (run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3, "header, last step, evaluation: written by one process"

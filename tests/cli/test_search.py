"""``paploss search`` as a user meets it: a table at the end, Ctrl-C, and on with the same command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from paploss.cli.app import app

runner = CliRunner()
SMALL = [
    "--rounds=2",
    "--samples=2",
    "--set=train.data.images=32",
    "--set=train.data.evaluation_images=8",
    "--set=train.batch_size=8",
    "--set=train.epochs=1",
    "--set=proxy.fraction=0.5",
]


def test_search_end_to_end(tmp_path: Path) -> None:
    command = ["search", *SMALL, "--workers=0", "--safe", f"--run={tmp_path}"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "ppo2 searches a loss for retinanet on shapes: 4 trials" in result.output
    assert "round 2/2 best" in result.output
    assert "test split" in result.output
    assert "searched" in result.output
    assert "focal+l1" in result.output
    again = runner.invoke(app, [*command, "--json"])
    assert again.exit_code == 0, again.output
    assert set(json.loads(again.stdout)["losses"]) == {
        "searched",
        "focal+l1",
        "retinanet-r50-fpn-coco-tied",
    }
    refused = runner.invoke(app, [*command, "--samples=3"])
    assert isinstance(refused.exception, ValueError)
    assert "sampler.samples: 2 there, 3 now" in str(refused.exception)


def test_control_c_stops_cleanly_and_the_same_command_continues(tmp_path: Path) -> None:
    # Trials that are long enough to be interrupted, short enough to be repeated.
    command = [sys.executable, "-m", "paploss", "search", *SMALL, "--workers=2"]
    command += [f"--run={tmp_path}", "--set=proxy.epochs=3"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that a shell runs in the background inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "study.db").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "the same command continues" in out
    assert "Traceback" not in out + err
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "focal+l1" in done.stdout

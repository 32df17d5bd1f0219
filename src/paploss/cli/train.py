"""``paploss train``: train a detector with any loss, or go on with a stopped run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from paploss.cli import completion
from paploss.cli.report import report_of_run
from paploss.cli.settings import Data, Detector, Json, OtherSettings, Quiet, Run, overrides
from paploss.cli.tables import print_evaluation


def train(
    config: Annotated[Path | None, typer.Argument(help="A yaml file, see configs/.")] = None,
    detector: Detector = None,
    data: Data = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="A loss by name, or a preset or loss file for pap.",
            autocompletion=completion.losses,
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the whole training.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", min=0, help="Learning rate at its highest.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images of one process.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Loading processes.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of fresh weights, order of images and augmentation.")
    ] = None,
    set_: OtherSettings = None,
    run: Run = Path("runs/train"),
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train a detector. The same command continues a run that was stopped."""
    from accelerate import PartialState

    from paploss.cli.progress import training_progress
    from paploss.training.config import load_config, loss_by_name
    from paploss.training.loop import train as train_detector
    from paploss.training.run import RunDirectory

    named = {
        "detector.name": detector,
        "data.path": data,
        "epochs": epochs,
        "optimizer.learning_rate": learning_rate,
        "batch_size": batch_size,
        "data.workers": workers,
        "seed": seed,
    }
    if loss is not None:
        try:
            chosen = loss_by_name(loss)
        except ValueError as error:
            raise typer.BadParameter(f"--{error}") from None
        named |= {"loss": chosen.name, "loss.parameters": chosen.parameters}
    settings = load_config(config, overrides(named, set_))
    console = Console(stderr=json_)
    quiet = quiet or json_
    if not quiet:
        console.print(
            f"{settings.detector.name} ({settings.detector.backbone}) on {escape(settings.data.path)}"
            f" with {settings.loss.name}, {settings.epochs} epochs, run {escape(str(run))}"
        )
    try:
        with training_progress(console, quiet=quiet) as on_progress:
            result = train_detector(settings, RunDirectory(run), on_progress=on_progress)
    except KeyboardInterrupt:
        console.print(f"Stopped; the same command continues {escape(str(run))}.")
        raise typer.Exit(130) from None
    if json_:
        typer.echo(json.dumps(result))
    else:
        for split in ("evaluation", "test"):
            if split in result:
                print_evaluation(console, result[split], title=split)
    if not quiet:
        console.print(f"[dim]{escape(str(run))}: evaluation.json, checkpoints/, tensorboard/[/]")
    if PartialState().is_main_process:
        report_of_run(run, console, quiet=quiet)

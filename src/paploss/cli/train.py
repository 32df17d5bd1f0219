"""``paploss train``: train a detector with any loss, or go on with a stopped run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from paploss.cli.tables import print_evaluation


def train(
    config: Annotated[Path | None, typer.Argument(help="A yaml file, see configs/.")] = None,
    detector: Annotated[
        str | None, typer.Option(help="retinanet, faster-rcnn or deformable-detr.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="shapes, or a data set's path.")] = None,
    loss: Annotated[
        str | None, typer.Option(help="A loss by name, or a preset or loss file for pap.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    learning_rate: Annotated[float | None, typer.Option("--lr", min=0)] = None,
    batch_size: Annotated[int | None, typer.Option(min=1)] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Loading processes.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting: section.key=value; may be repeated."),
    ] = None,
    run: Annotated[Path, typer.Option(help="Run directory; the same one continues.")] = Path(
        "runs/train"
    ),
    json_: Annotated[bool, typer.Option("--json", help="Print the result as json only.")] = False,
) -> None:
    """Train a detector. The same command continues a run that was stopped."""
    from paploss.cli.progress import training_progress
    from paploss.training.config import load_config
    from paploss.training.loop import train as train_detector
    from paploss.training.run import RunDirectory

    given = {
        "detector.name": detector,
        "data.path": data,
        "epochs": epochs,
        "optimizer.learning_rate": learning_rate,
        "batch_size": batch_size,
        "data.workers": workers,
        "seed": seed,
    }
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if loss is not None:
        overrides |= loss_settings(loss)
    for setting in set_ or []:
        key, separator, value = setting.partition("=")
        if not separator:
            raise typer.BadParameter(f"--set expects section.key=value, found {setting!r}")
        overrides[key] = _value(value)
    settings = load_config(config, overrides)
    console = Console(stderr=json_)
    if not json_:
        console.print(
            f"{settings.detector.name} ({settings.detector.backbone}) on {escape(settings.data.path)}"
            f" with {settings.loss.name}, {settings.epochs} epochs, run {escape(str(run))}"
        )
    with training_progress(console, quiet=json_) as on_progress:
        result = train_detector(settings, RunDirectory(run), on_progress=on_progress)
    if json_:
        typer.echo(json.dumps(result))
        return
    for split in ("evaluation", "test"):
        if split in result:
            print_evaluation(console, result[split], title=split)
    console.print(f"[dim]{escape(str(run))}: evaluation.json, checkpoints/, tensorboard/[/]")


def loss_settings(loss: str) -> dict[str, Any]:
    """Settings of ``--loss``: a criterion's name, or parameters of pap by preset or file."""
    from paploss.criteria import CRITERIA
    from paploss.presets import list_presets

    if loss in CRITERIA:
        return {"loss": loss}
    if loss not in list_presets() and not Path(loss).is_file():
        raise typer.BadParameter(
            f"--loss {loss!r} is no loss ({', '.join(CRITERIA)}), no preset "
            f"({', '.join(list_presets())}) and no file"
        )
    return {"loss": "pap", "loss.parameters": loss}


def _value(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)

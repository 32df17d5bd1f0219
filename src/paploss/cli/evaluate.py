"""``paploss evaluate``: judge a checkpoint on data, or a file of detections against ground truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paploss.cli.tables import percent, print_evaluation


def evaluate(
    checkpoint: Annotated[Path | None, typer.Argument(help="A run's checkpoints/*.pt.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set; by default the one it was trained on.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    ground_truth: Annotated[Path | None, typer.Option(help="COCO json of annotations.")] = None,
    detections: Annotated[Path | None, typer.Option(help="COCO json of detections.")] = None,
    voc: Annotated[bool, typer.Option("--voc", help="PASCAL VOC AP50 as well.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print json only.")] = False,
) -> None:
    """Print COCO's table (and VOC's AP50) of a checkpoint or of files."""
    from paploss.evaluation.coco import evaluate_coco, load_detections, load_ground_truth
    from paploss.evaluation.voc import voc_ap50

    from_files = ground_truth is not None and detections is not None
    if (checkpoint is None) == (not from_files) or (ground_truth is None) != (detections is None):
        raise typer.BadParameter("give a CHECKPOINT, or both --ground-truth and --detections")
    if ground_truth is not None and detections is not None:
        truth = load_ground_truth(ground_truth)
        found = load_detections(detections)
    else:
        assert checkpoint is not None
        truth, found = _run_checkpoint(checkpoint, data, split)
    result: dict[str, Any] = evaluate_coco(truth, found).to_dict()
    if voc:
        for method in ("area", "11point"):
            result[f"voc_ap50_{method}"] = voc_ap50(truth, found, method=method)[0]
    if json_:
        typer.echo(json.dumps(result))
        return
    console = Console()
    print_evaluation(console, result, title=str(detections) if from_files else split)
    if voc:
        console.print(
            f"VOC AP50: {percent(result['voc_ap50_area'])} (area under the curve), "
            f"{percent(result['voc_ap50_11point'])} (11 points)"
        )


def _run_checkpoint(
    path: Path, data: str | None, split: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from paploss.data.detect import load_dataset
    from paploss.detectors.inference import detect
    from paploss.training.loop import evaluation_batches
    from paploss.training.trained import load_detector

    trained = load_detector(path)
    settings = trained.config.data
    dataset = load_dataset(
        data or settings.path,
        split,
        images=settings.evaluation_images,
        size=settings.size if isinstance(settings.size, int) else None,
        seed=settings.seed,
    )
    if dataset.class_names != trained.class_names:
        raise ValueError(
            f"{data or settings.path}: classes {dataset.class_names} differ from those of {path}: "
            f"{trained.class_names}"
        )
    batches = evaluation_batches(dataset, trained.config.batch_size, settings.workers)
    return dataset.ground_truth(), detect(trained.model, batches, trained.device)

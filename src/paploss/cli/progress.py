"""Progress of long commands: a bar with what matters, or nothing when scripts read the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paploss.training.loop import Progress as TrainingState


@contextmanager
def training_progress(
    console: Console, *, quiet: bool
) -> Iterator[Callable[[TrainingState], None]]:
    """A bar with ETA, images per second, current loss and last AP."""
    bar = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", state="", total=None)
    shown: dict[str, str] = {}

    def on_progress(progress: TrainingState) -> None:
        if progress.loss is not None:
            shown["loss"] = f"{progress.loss:.3f}"
        if progress.images_per_second is not None:
            shown["img/s"] = f"{progress.images_per_second:.0f}"
        if progress.average_precision is not None:
            shown["AP"] = f"{100 * progress.average_precision:.1f}"
            if not quiet and not console.is_terminal:  # a log: one line an evaluation
                console.print(
                    f"step {progress.step}/{progress.steps} "
                    + " ".join(f"{name} {value}" for name, value in shown.items())
                )
        state = " ".join(f"{name} {value}" for name, value in shown.items())
        bar.update(task, completed=progress.step, total=progress.steps, state=state)

    with bar:
        yield on_progress

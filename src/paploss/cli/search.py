"""``paploss search``: find the loss for a detector and data, or go on with a stopped search."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from paploss.cli import completion
from paploss.cli.report import report_of_run
from paploss.cli.settings import Data, Detector, Json, OtherSettings, Quiet, Run, overrides
from paploss.cli.tables import percent

if TYPE_CHECKING:
    from paploss.search.config import SearchConfig
    from paploss.search.study import SearchProgress


def search(
    config: Annotated[
        Path | None, typer.Argument(help="A yaml file of a search or of a training, see configs/.")
    ] = None,
    detector: Detector = None,
    data: Data = None,
    sampler: Annotated[
        Literal["ppo2", "random", "tpe", "cmaes", "gp"] | None,
        typer.Option(help="Who proposes losses."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of trials; more continue a search.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Trials of a round.")] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Start: a preset, a loss file, or linear, f(x) = x; else the detector's preset.",
            autocompletion=completion.presets,
        ),
    ] = None,
    safe: Annotated[
        bool | None,
        typer.Option("--safe/--free", help="Only losses that never punish a better box."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Trials at once, each a process; 0: in this one.")
    ] = None,
    executor: Annotated[
        Literal["local", "ray"] | None, typer.Option(help="Where trials run.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Of a running cluster; else one is started here.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the sampler.")] = None,
    set_: OtherSettings = None,
    run: Run = Path("runs/search"),
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Search a loss, train with it and compare it on the test split. Continues if stopped."""
    from paploss.search.config import load_search_config

    settings = load_search_config(
        config,
        overrides(
            {
                "train.detector.name": detector,
                "train.data.path": data,
                "sampler.name": sampler,
                "sampler.rounds": rounds,
                "sampler.samples": samples,
                "sampler.seed": seed,
                "space.init": init,
                "space.safe": safe,
                "executor.workers": workers,
                "executor.name": executor,
                "executor.ray_address": ray_address,
            },
            set_,
        ),
    )
    search_and_compare(settings, run, Console(stderr=json_), as_json=json_, quiet=quiet)


def search_and_compare(
    config: SearchConfig,
    run: Path,
    console: Console,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Run a search to its end with a live view, and print its table."""
    from paploss.search.run import run_search

    quiet = quiet or as_json
    if not quiet:
        trials = config.sampler.rounds * config.sampler.samples
        console.print(
            f"{config.sampler.name} searches a loss for {config.train.detector.name} on "
            f"{escape(config.train.data.path)}: {trials} trials, run {escape(str(run))}"
        )
    try:
        with search_progress(console, quiet=quiet) as (on_trial, on_training):
            result = run_search(config, run, on_trial=on_trial, on_training=on_training)
    except KeyboardInterrupt:
        console.print(f"Stopped; the same command continues {escape(str(run))}.")
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(result))
    else:
        for problem in result["problems"]:
            console.print(f"[yellow]{escape(problem)}[/]", highlight=False, soft_wrap=True)
        print_comparison(console, result)
    if not quiet:
        console.print(f"[dim]{escape(str(run))}: best.loss.json, comparison.json, final/[/]")
    report_of_run(run, console, quiet=quiet)


@contextmanager
def search_progress(
    console: Console, *, quiet: bool
) -> Iterator[tuple[Callable[[SearchProgress], None], Callable[[float, float], None]]]:
    """A live line for trials, then one for the final trainings; in a log, a line a round."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),  # all of the line is to fit 80 columns
        TextColumn("{task.fields[state]}"),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    )
    searching = bar.add_task("", state="", total=None)
    training = bar.add_task("final trainings", state="", total=None, visible=False)
    begun: list[tuple[float, float]] = []  # when the trainings began, and where

    def on_trial(progress: SearchProgress) -> None:
        if progress.of_finalists:
            show_finalists(progress)
            return
        state = (
            f"round {progress.round}/{progress.rounds} "
            f"best {percent(progress.best)} mean {percent(progress.round_mean)}"
        )
        if progress.collapsed:
            state += f" collapsed {progress.collapsed}"
        if progress.failed:
            state += f" failed {progress.failed}"
        if progress.seconds_left:
            state += f" {_duration(progress.seconds_left)} left"
        bar.update(searching, completed=progress.trials, total=progress.of_trials, state=state)
        round_ends = progress.trials * progress.rounds == progress.round * progress.of_trials
        if round_ends and not quiet and not console.is_terminal:
            console.print(state)

    def show_finalists(progress: SearchProgress) -> None:
        done, of = progress.finalists, progress.of_finalists
        state = f"training {done}/{of} best {percent(progress.best_finalist)}"
        if progress.seconds_left:
            state += f" {_duration(progress.seconds_left)} left"
        bar.update(searching, description="finalists", completed=done, total=of, state=state)
        if not quiet and not console.is_terminal:
            console.print(f"finalists: {state}")

    def on_training(epochs: float, of_epochs: float) -> None:
        bar.update(searching, visible=False)
        state = f"epoch {epochs:.0f}/{of_epochs:.0f}"
        if not begun:
            begun.append((time.monotonic(), epochs))
        since, first = begun[0]
        if epochs > first:
            left = (time.monotonic() - since) * (of_epochs - epochs) / (epochs - first)
            state += f" {_duration(left)} left"
        bar.update(training, completed=epochs, total=of_epochs, state=state, visible=True)

    with bar:
        yield on_trial, on_training


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}h{minutes % 60:02}" if minutes >= 60 else f"{max(1, minutes)} min"


def print_comparison(console: Console, result: dict[str, Any]) -> None:
    """The searched loss and its rivals, a row each."""
    losses = result["losses"]
    seeds = len(next(iter(losses.values()))["seeds"])
    console.print(
        f"[bold]{result['split']} split[/], full training"
        + (f", mean of {seeds} seeds" if seeds > 1 else ""),
        highlight=False,
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("loss", overflow="fold")
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for loss, row in losses.items():
        if "AP" not in row:
            table.add_row(escape(loss), "-")
            continue
        spread = row["AP"]["spread"]
        first = percent(row["AP"]["mean"]) + (f" ± {percent(spread)}" if spread is not None else "")
        table.add_row(escape(loss), first, *(percent(row[n]["mean"]) for n in names[1:]))
    console.print(table)
    for loss, row in losses.items():
        for problem in row["problems"]:
            console.print(f"[yellow]{escape(loss)}:[/] {escape(problem)}", highlight=False)

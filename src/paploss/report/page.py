"""The page: everything in one html file that opens from disk, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import paploss
from paploss.report.drawing import draw
from paploss.report.evaluation_figures import alignment, evaluation_figures
from paploss.report.figure import Figure
from paploss.report.files import Notes, setting
from paploss.report.function_figures import given_functions, searched_functions
from paploss.report.gallery import Picture, make_gallery
from paploss.report.groups import METRICS, Group, group_runs
from paploss.report.matches import Matches, load_shown_split, match_run
from paploss.report.plotly_json import figure_json, plotly_script
from paploss.report.runs import SearchRun, TrainingRun, read_runs
from paploss.report.search_figures import search_figures
from paploss.report.summary import Summary, duration, percent, summarise
from paploss.report.training_figures import training_figures
from paploss.report.trials import STATES

_FUNCTION_FIGURES = 8  # losses beyond are in the runs' own reports


@dataclass
class Section:
    """A part of the page with a heading and an anchor."""

    name: str
    title: str
    figures: list[Figure]


@dataclass
class Report:
    """Everything a page shows."""

    summary: Summary
    groups: list[Group]
    searches: list[SearchRun]
    sections: list[Section]
    pictures: list[Picture]
    alignments: dict[str, float | None]  # by label of the group
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]


def write_report(
    runs: Sequence[Path], out: Path | None = None, figures: Path | None = None
) -> Path:
    """Write the page about run directories; a directory of runs stands for all in it.

    Args:
        runs: trainings and searches, finished or not.
        out: the file; by default ``report.html`` in the run's directory, or in this one if there
            are several.
        figures: where to draw every figure as PNG and SVG, too.

    Returns:
        Where the page is.
    """
    if not runs:
        raise ValueError("runs: expected at least one run directory")
    report = gather(list(runs))
    if out is None:
        out = runs[0] / "report.html" if len(runs) == 1 else Path("report.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(out.name + ".partial")
    temporary.write_text(render(report), encoding="utf-8")
    temporary.replace(out)
    if figures is not None:
        for figure in report.figures:
            draw(figure, figures)
    return out


def gather(paths: list[Path]) -> Report:
    """Read runs and make everything of them that can be made."""
    notes = Notes()
    searches, trainings = read_runs(paths, notes)
    groups = group_runs(searches, trainings)
    summary = summarise(searches, groups)
    matches, pictures = _detections(groups, summary, notes)
    makers: list[tuple[str, str, Callable[[], list[Figure]]]] = [
        ("functions", "The five functions", lambda: _functions(searches, groups)),
        ("search", "Search", lambda: search_figures(searches)),
        ("training", "Training", lambda: training_figures(groups)),
        ("evaluation", "Evaluation", lambda: evaluation_figures(groups, matches)),
    ]
    sections = [Section(name, title, notes.guard(title, make)) for name, title, make in makers]
    _name_apart([figure for section in sections for figure in section.figures])
    alignments = {label: alignment(found) for label, found in matches.items()}
    return Report(summary, groups, searches, sections, pictures, alignments, notes.lines)


def _name_apart(figures: Sequence[Figure]) -> None:
    """Names are keys of the page's data and of files."""
    seen: set[str] = set()
    for figure in figures:
        while figure.name in seen:
            figure.name += "+"
        seen.add(figure.name)


def _functions(searches: Sequence[SearchRun], groups: Sequence[Group]) -> list[Figure]:
    """Of what searches found, and of losses that trainings were given beside these."""
    figures = [figure for search in searches for figure in searched_functions(search)]
    for group in groups:
        heads = None if group.searched else group.runs[0].heads
        if heads is not None:
            figures += given_functions(group.label, heads)
    return figures[:_FUNCTION_FIGURES]


def _detections(
    groups: Sequence[Group], summary: Summary, notes: Notes
) -> tuple[dict[str, Matches], list[Picture]]:
    """Matched detections of each group's first run, and a gallery of the two most telling groups."""
    datasets: dict[str, Any] = {}

    def dataset(run: TrainingRun) -> Any:
        key = json.dumps(run.settings.get("data"), sort_keys=True, default=str)
        if key not in datasets:
            what = f"images of {setting(run.settings, 'data.path', 'unknown data')}"
            loaded = notes.guard(what, lambda: [load_shown_split(run.settings)])
            datasets[key] = loaded[0] if loaded else None
        return datasets[key]

    matches = {}
    for group in groups:
        run = group.runs[0]
        if run.detections and dataset(run) is not None:
            found = match_run(run, dataset(run))
            if found is not None:
                matches[group.label] = found
    order = [summary.winner, *(gain.rival for gain in summary.gains)]
    telling = [g for label in order for g in groups if g.label == label and label in matches]
    if not telling:
        return matches, []
    shown = dataset(telling[0].runs[0])
    pair = [(g, matches[g.label]) for g in telling if dataset(g.runs[0]) is shown][:2]
    pictures = notes.attempt(telling[0].runs[0].path, lambda path: make_gallery(shown, pair))
    return matches, pictures or []


def render(report: Report) -> str:
    """The html; whatever comes from data is escaped by the template engine."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def resource(name: str) -> str:
        return files("paploss.report").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "duration": duration}
    data = {figure.name: figure_json(figure) for figure in report.figures}
    return environment.get_template("page.html").render(
        report=report,
        metrics=METRICS,
        states=STATES,
        version=paploss.__version__,
        now=datetime.now().strftime("%Y-%m-%d %H:%M"),
        style=Markup(resource("page.css")),
        script=Markup(resource("page.js")),
        plotly=Markup(plotly_script()),
        data=Markup(_inert_json(data)),
    )


def _inert_json(content: Any) -> str:
    """Json that can stand inside a script element: no tag can end or begin in it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

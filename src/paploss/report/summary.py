"""What a reader should know within a minute: who won, by how much, how sure, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paploss.report.files import setting
from paploss.report.groups import Figures, Group
from paploss.report.runs import SearchRun, TrainingRun


@dataclass
class Gain:
    """One loss against another."""

    rival: str
    points: float  # of AP
    sure: bool | None  # None: one seed, nobody knows


@dataclass
class Summary:
    """The head of the page."""

    title: str
    lead: str
    winner: str = ""
    ap: str = ""
    gains: list[Gain] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)  # what for, and the command


def summarise(searches: Sequence[SearchRun], groups: Sequence[Group]) -> Summary:
    """The head of a page about searches and trainings."""
    judged = [group for group in groups if group.ap >= 0]
    summary = Summary(_title(searches, groups), _lead(searches, groups))
    hero = _hero(judged)
    if hero is not None:
        figures = hero.figures("AP")
        assert figures is not None
        summary.winner, summary.ap = hero.label, percent(figures)
        rivals = [g for g in judged if g is not hero and _shown_data(g) == _shown_data(hero)]
        rivals.sort(key=lambda group: -group.ap)
        summary.gains = [_gain(hero, rival) for rival in rivals[:6]]
    summary.facts = _facts(searches, groups)
    summary.commands = _commands(searches, groups)
    return summary


def percent(figures: Figures | None) -> str:
    """Mean and spread in percent, as tables show them."""
    if figures is None:
        return "–"
    spread = f" ± {100 * figures.spread:.1f}" if figures.spread is not None else ""
    return f"{100 * figures.mean:.1f}{spread}"


def duration(seconds: float) -> str:
    """Time in words.

    Example:
        >>> duration(42), duration(150), duration(9000)
        ('42 s', '2.5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _hero(judged: Sequence[Group]) -> Group | None:
    """Whose result the page is about: what was searched, else the best."""
    searched = [group for group in judged if group.searched]
    return max(searched or judged, key=lambda group: group.ap, default=None)


def _shown_data(group: Group) -> list[Any]:
    """What AP was measured on; AP on other images is another thing."""
    run = group.runs[0]
    names = ("path", "test_split", "evaluation_split", "evaluation_images", "seed")
    return [run.split, *(setting(run.settings, f"data.{name}") for name in names)]


def _gain(hero: Group, rival: Group) -> Gain:
    own, other = hero.figures("AP"), rival.figures("AP")
    assert own is not None
    assert other is not None
    sure = None
    if own.spread is not None and other.spread is not None:
        sure = abs(own.mean - other.mean) > own.spread + other.spread
    return Gain(rival.label, 100 * (own.mean - other.mean), sure)


def _title(searches: Sequence[SearchRun], groups: Sequence[Group]) -> str:
    if len(searches) == 1:
        return f"A loss searched for {searches[0].detector} on {searches[0].data}"
    if searches:
        return f"{len(searches)} searches compared"
    if len(groups) == 1:
        run = groups[0].runs[0]
        return f"{_detector(run)} on {_data(run)}, trained with {groups[0].label}"
    return f"{len(groups)} trainings compared" if groups else "Nothing to show yet"


def _lead(searches: Sequence[SearchRun], groups: Sequence[Group]) -> str:
    parts = []
    for search in searches[:4]:
        done = len(search.trials.trials) if search.trials else 0
        parts.append(f"{search.name}: {search.sampler}, {done} trials.")
    seeds = max((len(group.runs) for group in groups), default=0)
    if groups:
        split = groups[0].runs[0].split
        spread = (
            f"mean ± deviation over {seeds} seeds" if seeds > 1 else "one seed, no spread known"
        )
        parts.append(f"AP on the {split} split, {spread}.")
        if searches and split == "test":
            parts.append("Nothing was chosen on that split.")
    return " ".join(parts)


def _facts(searches: Sequence[SearchRun], groups: Sequence[Group]) -> list[tuple[str, str]]:
    runs = [run for group in groups for run in group.runs]
    facts = []
    for name, values in (
        ("Detector", [s.detector for s in searches] + [_detector(run) for run in runs]),
        ("Data", [s.data for s in searches] + [_data(run) for run in runs]),
    ):
        different = list(dict.fromkeys(values))
        if different:
            facts.append((name, ", ".join(different[:3]) + ("…" if len(different) > 3 else "")))
    trials = [seconds for s in searches if s.trials for seconds in s.trials.seconds]
    if trials:
        median = sorted(trials)[len(trials) // 2]
        facts.append(("Search", f"{len(trials)} trials of {duration(median)}"))
        facts.append(("Time of all trials", duration(sum(trials))))
    if runs:
        facts.append(("Trainings", f"{len(runs)}, {duration(sum(run.seconds for run in runs))}"))
    total = sum(trials) + sum(run.seconds for run in runs)
    if total:
        facts.append(("Cost", f"{total / 3600:.2g} device hours"))
    return facts


def _commands(searches: Sequence[SearchRun], groups: Sequence[Group]) -> list[tuple[str, str]]:
    commands = [(f"Search {search.name} again", search.command) for search in searches[:4]]
    if not searches:
        commands += [(f"Train {g.label} again", g.runs[0].command) for g in groups[:4]]
    commands += [
        ("All trials", f"optuna-dashboard sqlite:///{search.path}/study.db")
        for search in searches[:4]
    ]
    folders = list(dict.fromkeys(str(run.path) for group in groups for run in group.runs))
    if folders:
        folder = f"{searches[0].path}/final" if searches else folders[0]
        commands.append(("Curves as they grow", f"tensorboard --logdir {folder}"))
    return commands


def _detector(run: TrainingRun) -> str:
    return str(setting(run.settings, "detector.name", "detector"))


def _data(run: TrainingRun) -> str:
    return str(setting(run.settings, "data.path", "data"))

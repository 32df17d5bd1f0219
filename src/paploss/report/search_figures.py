"""How searches went: rewards, widths, trials that went wrong, and which numbers mattered."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paploss.report.figure import GREY, Figure, Panel, Series, colour
from paploss.report.runs import SearchRun
from paploss.report.trials import STATES, Trial, Trials

_STATE_COLOURS = {
    "complete": "#2a9d6e",
    "collapsed": "#d05050",
    "pruned": "#b08a1a",
    "failed": "#8168d8",
}
_IN_DETAIL = 4  # searches; thousands of lines would make a heavy page
# Of the trials by rising reward: from which part on, what they are called, colour, opacity.
_RANKS = (
    (0.0, 0.5, "lower half", GREY, 0.2),
    (0.5, 0.75, "third quarter", "#2f7fd0", 0.35),
    (0.75, 1.0, "best quarter", "#e0752d", 0.6),
)


def search_figures(searches: Sequence[SearchRun]) -> list[Figure]:
    """Of all searches that have trials: overlaid where they can be compared."""
    begun = [(s, s.trials) for s in searches if s.trials is not None and s.trials.trials]
    if not begun:
        return []
    figures = [_rewards(begun)]
    for search, trials in begun[:_IN_DETAIL]:
        figures.append(_parallel_coordinates(search, trials))
        if trials.importance:
            figures.append(_importance(search, trials))
    return figures


def _rewards(begun: Sequence[tuple[SearchRun, Trials]]) -> Figure:
    rewards = Panel("Reward by round", "round", "AP of the short training", [], whole_x=True)
    for place, (search, trials) in enumerate(begun):
        rounds = [k for k in range(1, trials.rounds + 1) if trials.of_round(k)]
        means = [100 * statistics.mean(t.reward for t in trials.of_round(k)) for k in rounds]
        best = [100 * trial.reward for k in rounds if (trial := trials.best(k)) is not None]
        prefix = f"{search.name}: " if len(begun) > 1 else ""
        rewards.series += [
            Series(f"{prefix}best so far", rounds, best, colour(place), width=2.5),
            Series(f"{prefix}mean of round", rounds, means, colour(place), dash="dash"),
        ]
        if len(begun) == 1:
            rewards.series.append(_trial_dots(trials))
    panels = [rewards]
    widths = [
        Series(
            f"{search.name}: σ" if len(begun) > 1 else "",
            sorted(trials.policies),
            [trials.policies[k].sigma for k in sorted(trials.policies)],
            colour(place),
        )
        for place, (search, trials) in enumerate(begun)
        if trials.policies
    ]
    if widths:
        panels.append(Panel("Width of the search", "round", "σ", widths, whole_x=True))
    panels += [_outcomes(search, trials, many=len(begun) > 1) for search, trials in begun[:8]]
    caption = "Every trial is a short training; its AP on the evaluation split is the reward."
    return Figure("search-rewards", "Rewards and trials", caption, panels)


def _trial_dots(trials: Trials) -> Series:
    shown = trials.trials
    return Series(
        "trial",
        [trial.round for trial in shown],
        [100 * trial.reward for trial in shown],
        GREY,
        kind="points",
        size=5,
        opacity=0.6,
        labels=[f"trial {trial.number}, {trial.state}" for trial in shown],
    )


def _outcomes(search: SearchRun, trials: Trials, *, many: bool) -> Panel:
    rounds = list(range(1, trials.rounds + 1))
    series = [
        Series(
            state,
            rounds,
            [sum(t.state == state for t in trials.of_round(k)) for k in rounds],
            _STATE_COLOURS[state],
            kind="bars",
        )
        for state in STATES
        if any(trial.state == state for trial in trials.trials)
    ]
    title = f"What became of trials{f', {search.name}' if many else ''}"
    return Panel(title, "round", "trials", series, stacked=True, whole_x=True)


def _parallel_coordinates(search: SearchRun, trials: Trials) -> Figure:
    """A line a trial through all searched numbers; good ones on top."""
    names = list(trials.trials[0].values)
    ranked = sorted(trials.trials, key=lambda trial: trial.reward)
    series = []
    for start, stop, what, tint, opacity in _RANKS:
        members = ranked[round(start * len(ranked)) : round(stop * len(ranked))]
        series.append(_coordinate_lines(what, members, names, tint, opacity))
    best = trials.best()
    if best is not None:
        values = [round(best.values.get(name, 0.0), 3) for name in names]
        series.append(
            Series("best trial", list(range(len(names))), values, "#d05050", width=3, size=5)
        )
    ticks = {float(place): short for place, short in enumerate(_short(names))}
    panel = Panel(
        f"Trials of {search.name}",
        "",
        "searched number",
        series,
        x_ticks=ticks,
        y_range=(-0.03, 1.03),
        wide=True,
        height=340,
    )
    caption = (
        "A line is a trial, a column one of the numbers it drew. Where good trials (orange) gather, "
        "the search has made up its mind; where they spread, the number hardly matters."
    )
    return Figure(f"trials-{search.name}", "Parallel coordinates", caption, [panel])


def _coordinate_lines(
    what: str, members: Sequence[Trial], names: Sequence[str], tint: str, opacity: float
) -> Series:
    x: list[float] = []
    y: list[float | None] = []
    for trial in members[-80:]:  # more would be a solid block, and heavy
        x += [float(k) for k in range(len(names) + 1)]
        y += [round(trial.values.get(name, 0.0), 3) for name in names] + [None]
    return Series(what, x, y, tint, width=1, opacity=opacity)


def _short(names: Sequence[str]) -> list[str]:
    """Without the name of the head, where there is only one."""
    heads = {name.partition(".")[0] for name in names}
    return [name.partition(".")[2] for name in names] if len(heads) == 1 else list(names)


def _importance(search: SearchRun, trials: Trials) -> Figure:
    top = list(trials.importance.items())[:12][::-1]
    panel = Panel(
        f"Numbers that mattered, {search.name}",
        "importance",
        "",
        [
            Series(
                "importance",
                [value for _, value in top],
                _short([name for name, _ in top]),
                colour(0),
                kind="bars",
            )
        ],
        horizontal=True,
        height=90 + 20 * len(top),
        wide=True,
    )
    caption = (
        "How much each number tells the better trials from the rest (PED-ANOVA). "
        "f2.x1 is the first inner control point of f2, scale is λ."
    )
    return Figure(f"importance-{search.name}", "Importance", caption, [panel])

"""The five functions of a loss, its start and the published ones behind, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paploss.loss.parameters import FUNCTION_NAMES, LossParameters
from paploss.presets import list_presets, load_preset_heads
from paploss.report.figure import GREY, Figure, Frame, Panel, Series
from paploss.report.files import setting
from paploss.report.runs import Heads, SearchRun
from paploss.report.trials import Trials, loss_of

MEANINGS = (
    "value of a box",
    "score difference, numerator",
    "box of the other",
    "score difference, denominator",
    "box under a rank error",
)
COLOURS = ("#2f7fd0", "#e0752d", "#2a9d6e", "#c2508f", "#8168d8")


def searched_functions(search: SearchRun) -> list[Figure]:
    """Of what a search found, one figure a head; a slider goes through its rounds."""
    start = search.start
    heads = search.heads
    rounds = _losses_by_round(search.trials, search, start) if search.trials and start else []
    if heads is None and rounds:
        heads = rounds[-1][1]
    if heads is None:
        return []
    published = _published(search.detector)
    figures = []
    for head, loss in heads.items():
        behind = {}
        if published is not None:
            behind[f"published ({published[0]})"] = _of_head(published[1], head)
        if start is not None and _of_head(start, head) in behind.values():
            behind = {f"start of the search, {next(iter(behind))}": _of_head(start, head)}
        elif start is not None:
            behind["start of the search"] = _of_head(start, head)
        figure = _figure(f"functions-{search.name}-{head}", f"{search.name}, {head}", loss, behind)
        figure.caption = (
            f"What {search.sampler} found. {describe(loss)} Move the slider to see how "
            + (
                "the mean of the search moved."
                if search.trials and search.trials.policies
                else "the best loss so far changed."
            )
        )
        figure.frames = [
            Frame(label, [_points(points) for points in of_round[head].functions])
            for label, of_round in rounds
        ]
        if figure.frames and search.heads is not None:
            label = f"Answer: {search.about.get('source', 'the best trial').rpartition(', ')[2]}"
            figure.frames.append(Frame(label, [_points(points) for points in loss.functions]))
        figures.append(figure)
    return figures


def given_functions(name: str, heads: Heads) -> list[Figure]:
    """Of a loss that a training was given."""
    figures = []
    for head, loss in heads.items():
        linear = LossParameters.linear()
        figure = _figure(f"functions-{name}-{head}", f"{name}, {head}", loss, {"f(x) = x": linear})
        figure.caption = f"The loss of this training. {describe(loss)}"
        figures.append(figure)
    return figures


def describe(loss: LossParameters) -> str:
    """Gradient scale and soundness in words."""
    sound = (
        "A better box never makes this loss worse."
        if not loss.punished_ranges()
        else "For badly ranked objects a better box can make this loss worse."
    )
    return f"Gradient scale λ = {loss.gradient_scale:.3g}. {sound}"


def _losses_by_round(trials: Trials, search: SearchRun, start: Heads) -> list[tuple[str, Heads]]:
    """A label and the loss of every round: the mean of a policy, else the best trial so far."""
    shared = bool(setting(search.settings, "space.shared"))
    safe = bool(setting(search.settings, "space.safe"))
    found = []
    for number in range(1, trials.rounds + 1):
        policy, best = trials.policies.get(number), trials.best(number)
        if best is None:
            continue
        label = f"Round {number} of {trials.rounds}: best so far {100 * best.reward:.1f}"
        if policy is not None:
            label += f", width σ {policy.sigma:.3f}"
        # The first round of PPO2 has no stored mean: it is the start itself.
        values = best.values if policy is None else policy.mean
        found.append((label, loss_of(values, start, shared=shared, safe=safe)))
    return found


def _published(detector: str) -> tuple[str, Heads] | None:
    """The published loss of a detector, or of RetinaNet for those that have none."""
    names = [name for name in list_presets() if name.endswith("-coco")]
    own = [name for name in names if name.startswith(detector)]
    name = next(iter(own), None) or next((n for n in names if n.startswith("retinanet")), None)
    return None if name is None else (name, load_preset_heads(name))


def _of_head(heads: Heads, head: str) -> LossParameters:
    return heads.get(head) or next(iter(heads.values()))


def _figure(
    name: str, title: str, loss: LossParameters, behind: Mapping[str, LossParameters]
) -> Figure:
    panels = []
    for place, function in enumerate(FUNCTION_NAMES):
        x, y = _points(loss.functions[place])
        series = [Series("this loss", x, y, COLOURS[place], size=8, width=2.5)]
        for dash, (what, other) in zip(("dot", "dash"), behind.items(), strict=False):
            x, y = _points(other.functions[place])
            series.append(Series(what, x, y, GREY, dash=dash, width=1.5))  # type: ignore[arg-type]
        panels.append(
            Panel(
                f"{function}: {MEANINGS[place]}",
                "x",
                f"{function}(x)",
                series,
                x_range=(-0.03, 1.03),
                y_range=(-0.03, 1.05),
                height=230,
            )
        )
    return Figure(name, title, "", panels, small=True)


def _points(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]

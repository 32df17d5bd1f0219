"""A figure as plain data, to be shown by plotly in the page and drawn by matplotlib for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

# Told apart on white and on black, also by most people who see fewer colours.
PALETTE = ("#2f7fd0", "#e0752d", "#2a9d6e", "#c2508f", "#8168d8", "#b08a1a", "#3aa3b5", "#d05050")
GREY = "#8b929c"

Kind = Literal["line", "points", "bars"]
Dash = Literal["solid", "dash", "dot"]


def colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


@dataclass
class Series:
    """Points of one kind; those of the same name are one entry of the legend."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float | str | None]
    colour: str = PALETTE[0]
    kind: Kind = "line"
    dash: Dash = "solid"
    width: float = 2.0
    size: float = 0.0  # of markers; 0: none on a line
    opacity: float = 1.0
    labels: Sequence[str] | None = None  # of the points, shown under the pointer
    error: Sequence[float] | None = None  # of bars: their spread


@dataclass
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    series: list[Series]
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    log_y: bool = False
    from_zero: bool = False  # show y = 0, too
    whole_x: bool = False  # ticks at whole numbers only
    x_ticks: dict[float, str] | None = None
    horizontal: bool = False  # bars
    stacked: bool = False  # bars
    height: int = 270
    wide: bool = False  # over the whole page
    note: str = ""


@dataclass
class Frame:
    """A state of a figure: new points for the first series of every panel."""

    label: str
    points: list[tuple[Sequence[float], Sequence[float]]]


@dataclass
class Figure:
    """Panels that belong together, with one legend.

    Attributes:
        name: of files and anchors.
        frames: states that a slider goes through; the figure itself shows the last.
    """

    name: str
    title: str
    caption: str
    panels: list[Panel]
    frames: list[Frame] = field(default_factory=list)
    small: bool = False  # panels may stand five in a row

    def legend(self) -> list[Series]:
        """The first series of each name, if there is more than one name."""
        first: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                if series.name:
                    first.setdefault(series.name, series)
        return list(first.values()) if len(first) > 1 else []


def thinned(x: Sequence[float], y: Sequence[float], most: int) -> tuple[list[float], list[float]]:
    """At most so many points of a line, each the mean of its neighbours, ends kept.

    Example:
        >>> thinned([1, 2, 3, 4], [0, 2, 4, 6], 2)
        ([1.5, 3.5], [1.0, 5.0])
    """
    if len(x) <= most:
        return [float(value) for value in x], [float(value) for value in y]
    edges = [round(k * len(x) / most) for k in range(most + 1)]
    parts = [slice(start, stop) for start, stop in pairwise(edges)]
    return (
        [sum(x[part]) / len(x[part]) for part in parts],
        [sum(y[part]) / len(y[part]) for part in parts],
    )

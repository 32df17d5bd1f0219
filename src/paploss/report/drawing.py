"""Figures as PNG and SVG files for papers, by matplotlib."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from paploss.report.figure import GREY, Figure, Panel, Series

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Write ``<name>.png`` and ``<name>.svg``; returns their paths."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    columns = min(len(figure.panels), 5 if figure.small else 3)
    rows = math.ceil(len(figure.panels) / columns)
    side = 2.6 if figure.small else 3.6
    tallest = max(panel.height for panel in figure.panels) / 270
    paths = []
    # A dollar in a class name is a dollar, not mathematics.
    with rc_context({"text.parse_math": False, "svg.hashsalt": "paploss", "font.size": 8}):
        canvas = Canvas(
            figsize=(side * columns, 0.85 * side * rows * tallest + 0.5), layout="constrained"
        )
        places = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axes in places:
            axes.set_visible(False)
        for axes, panel in zip(places, figure.panels, strict=False):
            axes.set_visible(True)
            _draw_panel(axes, panel)
        _draw_legend(canvas, figure)
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            paths.append(folder / f"{file_name(figure.name)}.{suffix}")
            metadata = {"Date": None} if suffix == "svg" else None
            canvas.savefig(paths[-1], dpi=200, metadata=metadata)
    return paths


def file_name(name: str) -> str:
    """A name that every file system takes.

    Example:
        >>> file_name("functions-../a b-rpn")
        'functions-..-a-b-rpn'
    """
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _draw_panel(axes: Any, panel: Panel) -> None:
    bottoms: dict[Any, float] = {}
    bars = [series for series in panel.series if series.kind == "bars"]
    for series in panel.series:
        if series.kind == "bars":
            _draw_bars(axes, panel, series, bars.index(series), len(bars), bottoms)
            continue
        y = [math.nan if value is None else value for value in series.y]
        line = "" if series.kind == "points" else _DASHES[series.dash]
        marker = "o" if series.size else ""
        axes.plot(
            series.x,
            y,
            line + marker,
            color=series.colour,
            lw=series.width * 0.7,
            ms=series.size * 0.55,
            alpha=series.opacity,
            mew=0,
        )
    axes.set_title(panel.title, fontsize=8)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.x_range is not None:
        axes.set_xlim(*panel.x_range)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    if panel.from_zero:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    if panel.x_ticks is not None:
        axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()), rotation=90, fontsize=4)
    if panel.whole_x:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(
    axes: Any, panel: Panel, series: Series, place: int, count: int, bottoms: dict[Any, float]
) -> None:
    if panel.horizontal:
        height = 0.8 / count
        y = [k + (place - (count - 1) / 2) * height for k in range(len(series.y))]
        axes.barh(y, series.x, height, color=series.colour, xerr=series.error, ecolor=GREY)
        axes.set_yticks(range(len(series.y)), [str(name) for name in series.y])
    else:
        bottom = [bottoms.get(x, 0.0) for x in series.x]
        axes.bar(series.x, series.y, color=series.colour, bottom=bottom)
        for x, value in zip(series.x, series.y, strict=True):
            bottoms[x] = bottoms.get(x, 0.0) + float(value or 0)


def _draw_legend(canvas: Any, figure: Figure) -> None:
    from matplotlib.lines import Line2D

    legend = figure.legend()
    if legend:
        handles = [
            Line2D([], [], color=series.colour, ls=_DASHES[series.dash], label=series.name)
            for series in legend
        ]
        canvas.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7)

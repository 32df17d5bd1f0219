"""Figures as the json that plotly.js reads; colours of axes and text are left to the page's theme."""

from __future__ import annotations

import base64
import gzip
import html
import math
from functools import cache
from typing import Any

from paploss.report.figure import GREY, Figure, Panel, Series


def figure_json(figure: Figure) -> dict[str, Any]:
    """Panels with their traces and layout, and the states of the slider."""
    return {
        "name": figure.name,
        "panels": [
            {"data": [_trace(series, panel) for series in panel.series], "layout": _layout(panel)}
            for panel in figure.panels
        ],
        "frames": [
            {
                "label": frame.label,
                "points": [{"x": _rounded(x), "y": _rounded(y)} for x, y in frame.points],
            }
            for frame in figure.frames
        ],
    }


@cache
def plotly_script() -> str:
    """plotly.js, compressed to text; the page unpacks it, for as it is it would fill the page."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def _trace(series: Series, panel: Panel) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "name": _text(series.name),
        "x": _rounded(series.x),
        "y": _rounded(series.y),
        "opacity": series.opacity,
    }
    if series.kind == "bars":
        trace |= {"type": "bar", "marker": {"color": series.colour}}
        if panel.horizontal:
            trace["orientation"] = "h"
        if series.error is not None:
            axis = "error_x" if panel.horizontal else "error_y"
            trace[axis] = {
                "array": _rounded(series.error),
                "thickness": 1,
                "width": 2,
                "color": GREY,
            }
    else:
        mode = "markers" if series.kind == "points" else "lines"
        trace |= {
            "type": "scatter",
            "mode": mode + ("+markers" if series.size and mode == "lines" else ""),
            "line": {"color": series.colour, "width": series.width, "dash": series.dash},
            "marker": {"color": series.colour, "size": series.size or 4},
        }
    if series.labels is not None:
        trace["text"] = [_text(label) for label in series.labels]
    return trace


def _layout(panel: Panel) -> dict[str, Any]:
    x: dict[str, Any] = {"title": {"text": _text(panel.x)}, "automargin": True}
    y: dict[str, Any] = {"title": {"text": _text(panel.y)}, "automargin": True}
    if panel.x_range is not None:
        x["range"] = list(panel.x_range)
    if panel.y_range is not None:
        y["range"] = list(panel.y_range)
    if panel.from_zero:
        y["rangemode"] = "tozero"
    if panel.log_y:
        y |= {"type": "log", "exponentformat": "power", "nticks": 6}
    if panel.whole_x:
        x |= {"tickformat": "d", "nticks": 9}
    if panel.x_ticks is not None:
        x |= {
            "tickvals": list(panel.x_ticks),
            "ticktext": [_text(text) for text in panel.x_ticks.values()],
            "tickangle": -90,
            "range": [-0.5, len(panel.x_ticks) - 0.5],
            "tickfont": {"size": 9},
        }
    if panel.horizontal:
        y |= {"type": "category", "dtick": 1}
    return {
        "xaxis": x,
        "yaxis": y,
        "height": panel.height,
        "barmode": "stack" if panel.stacked else "group",
        "hovermode": "closest",
    }


def _rounded(values: Any) -> list[Any]:
    """Six digits are more than a screen shows, and the page is to stay small."""
    return [
        _text(value) if isinstance(value, str) else _short(value) if value is not None else None
        for value in values
    ]


def _short(value: float) -> float | None:
    """None, a gap in a line, for what is no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _text(text: str) -> str:
    """For plotly, which takes some tags in text for markup, names come with none."""
    return html.escape(text, quote=False)

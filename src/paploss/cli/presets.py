"""``paploss presets``: list the presets, or show one with its five functions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paploss.cli import completion
from paploss.loss.parameters import FUNCTION_NAMES, LossParameters, PunishedRange
from paploss.presets import describe_preset, list_presets, load_preset_heads

_COLOURS = ("blue", "red", "green", "magenta", "yellow")
_MEANING = (
    "value of a box",
    "score difference, numerator",
    "box of the other",
    "score difference, denominator",
    "box under a rank error",
)


def presets(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this preset's functions.", autocompletion=completion.presets),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Draw them to a PNG file instead.")
    ] = None,
) -> None:
    """List the ready-made losses, or draw one."""
    console = Console()
    if name is None:
        if png is not None:
            raise typer.BadParameter("--png needs the NAME of a preset")
        console.print(_overview())
        console.print("\n[dim]paploss presets NAME draws one; load_preset(NAME) uses it.[/]")
        return
    if name not in list_presets():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(list_presets())}")
    heads = load_preset_heads(name)
    if png is not None:
        draw_functions(heads, png, title=name)
        console.print(f"wrote {escape(str(png))}")
        return
    about = describe_preset(name)
    console.print(f"[bold]{name}[/]: {escape(about['title'])}")
    console.print(escape(_reported(about)))
    console.print(f"[dim]{escape(about['source'])}\n{escape(about['note'])}[/]")
    for head, parameters in heads.items():
        console.print(f"\n[bold]{escape(head)}[/], gradient scale {parameters.gradient_scale:g}")
        console.print(_terminal_plot(parameters))
        console.print(_diagnosis(parameters.punished_ranges()))


def _reported(about: dict[str, object]) -> str:
    return f"AP {about['ap']}, {about['ap_kind']}" if "ap" in about else "AP not measured yet"


def _overview() -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("preset", "head", "AP", "lambda", "punishes better boxes"):
        numeric = column in ("AP", "lambda")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for name in list_presets():
        about = describe_preset(name)
        for index, (head, parameters) in enumerate(load_preset_heads(name).items()):
            first = index == 0
            table.add_row(
                name if first else "",
                head,
                str(about.get("ap", "-")) if first else "",
                f"{parameters.gradient_scale:.2f}",
                _short_diagnosis(parameters.punished_ranges()),
            )
    return table


def _short_diagnosis(ranges: list[PunishedRange]) -> str:
    if not ranges:
        return "no"
    return (
        f"l {ranges[0].quality_from:.2f}-{ranges[-1].quality_to:.2f} "
        f"if N/D > {min(r.rank_error for r in ranges):.2f}"
    )


def _diagnosis(ranges: list[PunishedRange]) -> Text:
    if not ranges:
        return Text("A better box never makes this loss worse.", style="green")
    lines = ["A better box makes this loss worse for badly ranked positives:"]
    lines += [
        f"  quality {r.quality_from:.3f} to {r.quality_to:.3f}  where N/D > {r.rank_error:.2f}"
        for r in ranges
    ]
    return Text("\n".join(lines), style="yellow")


def _terminal_plot(parameters: LossParameters, width: int = 64, height: int = 17) -> Text:
    """The five functions as lines of their numbers; later ones lie on top."""
    canvas = [[(" ", "")] * width for _ in range(height)]
    x = np.linspace(0, 1, width)
    for number, points in enumerate(parameters.functions):
        xs, ys = np.array(points).T
        y = np.interp(x, xs, ys)
        for column, row in enumerate(np.rint((1 - y) * (height - 1)).astype(int)):
            canvas[row][column] = (str(number + 1), _COLOURS[number])
    text = Text()
    for row, line in enumerate(canvas):
        label = {0: "1.0", (height - 1) // 2: "0.5", height - 1: "0.0"}.get(row, "")
        text.append(f"{label:>4} │", style="dim")
        for character, colour in line:
            text.append(character, style=colour)
        text.append("\n")
    text.append("     └" + "─" * width + f"\n      0{'x':^{width - 2}}1\n", style="dim")
    for number, meaning in enumerate(_MEANING):
        text.append(f"      {FUNCTION_NAMES[number]} {meaning}\n", style=_COLOURS[number])
    return text


def draw_functions(heads: dict[str, LossParameters], path: Path, *, title: str) -> None:
    """Draw the functions of every head with their control points, as in the paper's appendix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(heads), 4.4), layout="constrained")
    figure.suptitle(title)
    for axes, (head, parameters) in zip(
        figure.subplots(1, len(heads), squeeze=False)[0], heads.items(), strict=True
    ):
        punished = parameters.punished_ranges()
        for index, part in enumerate(punished):
            axes.axvspan(
                part.quality_from,
                part.quality_to,
                color="tab:red",
                alpha=0.08,
                lw=0,
                label="better box punished" if index == 0 else None,
            )
        for name, points, meaning in zip(
            FUNCTION_NAMES, parameters.functions, _MEANING, strict=True
        ):
            axes.plot(*np.array(points).T, "o-", ms=4, label=f"{name}  {meaning}")
        axes.set_title(f"{head}, gradient scale {parameters.gradient_scale:g}", fontsize=10)
        axes.set(xlabel="x", ylabel="f(x)", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left")
    figure.savefig(path, dpi=130)

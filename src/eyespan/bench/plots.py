"""Figures drawn by matplotlib, as SVG and PNG, in one style.

The background is transparent, and ink and colours are of middle brightness: every one has a
contrast of at least 3 to 1 against white paper and against a dark page. Series differ by marker and
dash as well as by colour, and the colours stay apart for the common kinds of colour blindness.
Lines are named where they end, bars and points carry their values where there is room.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from eyespan.bench.tables import Figure, Series
from eyespan.errors import ConfigError, unwritable

INK = "#767676"
"""Text, axes and marks that are no data; a page may put its own text colour in its place."""
GRID = "#7676764d"
COLORS = ("#3179b8", "#d2590d", "#00936b", "#b4569a", "#8a7a00", "#6a6fce", "#c2475a", "#4d8a8f")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
PAPER, NIGHT = "#ffffff", "#14171a"
"""The pages that every colour must be readable on."""

WIDTH, HEIGHT = 6.4, 3.9
"""Inches."""
DPI = 200
FEW_BARS = 12
"""Up to so many bars each carries its value."""
FEW_LINES, FEW_STEPS = 6, 2
"""Up to so many lines are named at their ends; cumulative curves all end at the same height."""
LEGEND = 60
"""Letters that the names of series have side by side, six a mark."""
WIDE = 300
"""Positive x that span at least this factor get a logarithmic axis."""

_STYLE: Mapping[str, Any] = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "svg.fonttype": "none", "svg.hashsalt": "eyespan", "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"], "font.size": 9,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 5,
    "text.parse_math": False, "axes.unicode_minus": False,
}  # fmt: skip


def svg_of(figure: Figure) -> str:
    """A figure as SVG: text stays text, and the same figure gives the same bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with _drawn(figure) as picture:
        out = io.StringIO()
        picture.savefig(out, format="svg", metadata={"Date": None, "Title": figure.title})
    return out.getvalue()


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as `<id>.svg` and `<id>.png`.

    Raises:
        ConfigError: matplotlib is not installed.
        OutputError: the folder cannot be written.
    """
    files = [folder / f"{figure.id}.svg", folder / f"{figure.id}.png"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _drawn(figure) as picture:
            picture.savefig(files[0], metadata={"Date": None, "Title": figure.title})
            picture.savefig(files[1], dpi=DPI)
    except OSError as error:
        raise unwritable(f"figure {figure.id} in {folder}", error) from error
    return files


def matplotlib() -> ModuleType:
    """The library, without a display.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "drawing figures",
            found="matplotlib is not installed",
            needed="the extra 'bench' is needed",
            todo="Install it with: pip install 'eyespan[bench]'.",
        ) from error
    return matplotlib


@contextmanager
def _drawn(figure: Figure) -> Iterator[Any]:
    """The figure on a canvas of its own: no global state of matplotlib is touched."""
    library = matplotlib()
    from matplotlib.figure import Figure as Canvas

    with library.rc_context({**library.rcParamsDefault, **_STYLE, "backend": "agg"}):
        names = _names(figure)
        across = figure.kind in ("bar", "scatter") and _reads_across(figure, names)
        height = HEIGHT
        if across:
            height = max(2.2, 1.0 + 0.3 * len(names) * (len(figure.series) + 1) / 2)
        elif figure.kind == "heat":
            height = max(2.2, 1.2 + 0.36 * len(figure.series))
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        axes = canvas.subplots()
        if not any(y == y for series in figure.series for y in _finite(series.y)):
            axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes)
            axes.set_axis_off()
        else:
            _KINDS[figure.kind](axes, figure, names, across)
        yield canvas


def _names(figure: Figure) -> list[str]:
    """Names on the x axis, in order of appearance; empty for a numeric one."""
    every = [x for series in figure.series for x in series.x]
    named = any(isinstance(x, str) for x in every) or figure.kind == "bar"
    return list(dict.fromkeys(_name(x) for x in every)) if named else []


def _name(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:g}"


def _reads_across(figure: Figure, names: Sequence[str]) -> bool:
    """Whether names stand on the vertical axis, where long ones have room."""
    if not names:
        return False
    return figure.kind == "scatter" or sum(map(len, names)) > 60 or max(map(len, names)) > 14


def _finite(values: Sequence[float | None]) -> list[float]:
    """Numbers that can be drawn; anything else leaves a gap."""
    return [float("nan") if v is None or not math.isfinite(v) else float(v) for v in values]


def _spread(series: Series) -> list[list[float]] | None:
    """[2][n] lengths of the interval's arms, or None."""
    if not series.low or not series.high:
        return None
    y = _finite(series.y)
    low, high = _finite(series.low), _finite(series.high)
    return [
        [max(at - end, 0.0) if end == end else 0.0 for at, end in zip(y, low, strict=True)],
        [max(end - at, 0.0) if end == end else 0.0 for at, end in zip(y, high, strict=True)],
    ]


def _curves(axes: Any, figure: Figure, names: Sequence[str], across: bool) -> None:
    """Lines and cumulative steps; a few are named at their ends, more above the picture."""
    places = {name: float(at) for at, name in enumerate(names)}
    every: list[float] = []
    ends: list[tuple[float, float, str, str]] = []
    for at, series in enumerate(figure.series):
        x = [places[_name(v)] for v in series.x] if names else _finite(series.x)  # type: ignore[arg-type]
        y, color = _finite(series.y), COLORS[at % len(COLORS)]
        step = "steps-post" if figure.kind == "step" else "default"
        marker = "" if figure.kind == "step" or len(x) > 25 else _marker(at)
        dash = DASHES[(at // 2 + at // len(COLORS)) % len(DASHES)]
        style = {"drawstyle": step, "marker": marker, "linestyle": dash, "label": series.name}
        axes.plot(x, y, color=color, **style)
        if series.low and series.high:
            low, high = _finite(series.low), _finite(series.high)
            fill = "post" if figure.kind == "step" else None
            axes.fill_between(x, low, high, color=color, alpha=0.22, linewidth=0, step=fill)
        every += x
        last = [(a, b) for a, b in zip(x, y, strict=True) if a == a and b == b]
        if last:
            ends.append((*max(last, key=lambda point: point[0]), series.name, color))
    positive = [x for x in every if x == x]
    if not names and positive and min(positive) > 0 and max(positive) / min(positive) >= WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
    _frame(axes, figure, names, across=False)
    if len(figure.series) > (FEW_STEPS if figure.kind == "step" else FEW_LINES):
        _name_series(axes, figure, handle=2.4)
    else:
        _label_ends(axes, ends)


def _label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names right of the lines' ends; of two that would overlap the upper one is pushed up."""
    (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()
    gap, near = 0.06 * (high - low), 0.25 * (right - left)
    placed: list[tuple[float, float]] = []
    for x, y, name, color in sorted(ends, key=lambda end: end[1]):
        at = y
        for other, taken in placed:
            if abs(other - x) < near and at < taken + gap:
                at = taken + gap
        placed.append((x, at))
        axes.annotate(
            _short(name), (x, at), xytext=(7, 0), textcoords="offset points", color=color,
            va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _bars(axes: Any, figure: Figure, names: Sequence[str], across: bool) -> None:
    """Bars side by side, each with its value where there are few."""
    count = len(figure.series)
    thick = 0.8 / count
    total = sum(len(series.y) for series in figure.series)
    for at, series in enumerate(figure.series):
        places = [names.index(_name(x)) - 0.4 + thick * (at + 0.5) for x in series.x]
        y, color, arms = _finite(series.y), COLORS[at % len(COLORS)], _spread(series)
        style: dict[str, Any] = {"color": color, "label": series.name}
        line = {"ecolor": INK, "elinewidth": 1.1, "capsize": 2.5}
        if across:
            bars = axes.barh(places, y, 0.92 * thick, xerr=arms, error_kw=line, **style)
        else:
            bars = axes.bar(places, y, 0.92 * thick, yerr=arms, error_kw=line, **style)
        if total <= FEW_BARS:
            texts = [_short_number(v) if v == v else "" for v in y]
            axes.bar_label(bars, texts, padding=3, color=INK, fontsize=8)
    axes.margins(**{"x" if across else "y": 0.14})
    _frame(axes, figure, names, across)
    _name_series(axes, figure)


def _points(axes: Any, figure: Figure, names: Sequence[str], across: bool) -> None:
    """Points with their intervals; by name they stand in rows, the value to the right."""
    count = len(figure.series)
    for at, series in enumerate(figure.series):
        y, color, arms = _finite(series.y), COLORS[at % len(COLORS)], _spread(series)
        style: dict[str, Any] = {
            "color": color, "marker": _marker(at), "linestyle": "none",
            "elinewidth": 1.6, "capsize": 0, "label": series.name,
        }  # fmt: skip
        if not names:
            axes.errorbar(_finite(series.x), y, yerr=arms, **style)  # type: ignore[arg-type]
            continue
        shift = 0.5 * (at - (count - 1) / 2) / max(count, 1)
        rows = [names.index(_name(x)) + shift for x in series.x]
        axes.errorbar(y, rows, xerr=arms, **style)
        for row, value in zip(rows, y, strict=True):
            if value == value and len(names) * count <= 2 * FEW_BARS:
                axes.annotate(
                    _short_number(value), (value, row), xytext=(0, 5), ha="center", fontsize=8,
                    textcoords="offset points", color=color,
                )  # fmt: skip
    _frame(axes, figure, names, across)
    _name_series(axes, figure)


def _heat(axes: Any, figure: Figure, names: Sequence[str], across: bool) -> None:
    """A matrix, one series a row, with its numbers."""
    columns = list(dict.fromkeys(_name(x) for series in figure.series for x in series.x))
    table = [[float("nan")] * len(columns) for _ in figure.series]
    for row, series in zip(table, figure.series, strict=True):
        for x, value in zip(series.x, _finite(series.y), strict=True):
            row[columns.index(_name(x))] = value
    shown = [value for row in table for value in row if value == value]
    low, high = min(shown), max(shown)
    axes.imshow(table, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for at, row in enumerate(table):
        for place, value in enumerate(row):
            if value == value and len(columns) <= 2 * FEW_BARS:
                dark = high == low or (value - low) / (high - low) < 0.55
                axes.text(
                    place, at, _short_number(value), ha="center", va="center", fontsize=8,
                    color="#ffffff" if dark else "#111111",
                )  # fmt: skip
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(figure.series)), [_short(series.name) for series in figure.series])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)


_KINDS = {"line": _curves, "step": _curves, "bar": _bars, "scatter": _points, "heat": _heat}


def _frame(axes: Any, figure: Figure, names: Sequence[str], across: bool) -> None:
    """Axis names, grid and the level that counts."""
    axes.grid(axis="x" if across else "y", color=GRID, linewidth=0.7)
    if names:
        shown = [_short(name, 34) for name in names]
        if across:
            axes.set_yticks(range(len(names)), shown)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
        else:
            axes.set_xticks(range(len(names)), shown)
            axes.tick_params(axis="x", length=0)
    axes.set_xlabel(figure.y_label if across else figure.x_label)
    axes.set_ylabel(figure.x_label if across else figure.y_label)
    if figure.baseline is not None:
        line = axes.axvline if across else axes.axhline
        line(figure.baseline, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0.9)


def _name_series(axes: Any, figure: Figure, handle: float = 1.0) -> None:
    """Several series are named above the picture, each in its colour."""
    if len(figure.series) < 2:
        return
    handles, labels = axes.get_legend_handles_labels()
    labels = [_short(label) for label in labels]
    legend = axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0),
        ncols=_columns(labels), frameon=False, handlelength=handle, borderaxespad=0.2,
        columnspacing=1.4,
    )  # fmt: skip
    for at, text in enumerate(legend.get_texts()):
        text.set_color(COLORS[at % len(COLORS)])
        text.set_fontweight("bold")


def _columns(labels: Sequence[str]) -> int:
    """Columns of names that fit above the axes."""
    return max(1, min(len(labels), 4, LEGEND // (max(map(len, labels)) + 6)))


def _marker(at: int) -> str:
    """The mark of a series: another one when its colour comes again."""
    return MARKERS[(at + at // len(COLORS)) % len(MARKERS)]


def _short(text: str, most: int = 28) -> str:
    """One line of bounded length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "\u2026"


def _short_number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

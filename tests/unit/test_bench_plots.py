"""Figures as files: what is in them can be read back from the SVG."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from eyespan.bench.plots import COLORS, INK, NIGHT, PAPER, _marker, save, svg_of
from eyespan.bench.tables import Figure, Series
from eyespan.errors import OutputError

SVG = "{http://www.w3.org/2000/svg}"


def figure(kind: str, series: tuple[Series, ...], **changes: Any) -> Figure:
    return Figure(
        **{
            "id": "f1", "title": "A title", "kind": kind, "x_label": "Nodes (count)",
            "y_label": "Speed (x)", "series": series, **changes,
        }
    )  # fmt: skip


def texts(svg: str) -> list[str]:
    """All texts of a drawing; text stays text, no outlines."""
    return [
        "".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]


LINES = (
    Series(
        name="recap",
        x=(1.0, 2.0, 3.0),
        y=(1.0, 2.0, 3.0),
        low=(0.9, 1.9, 2.9),
        high=(1.1, 2.1, 3.2),
    ),
    Series(name="sam <b>&", x=(1.0, 2.0, 3.0), y=(1.0, 1.5, 3.0)),
)
NAMED = (
    Series(name="plain", x=("receipt", "chart"), y=(1.25, 2.5), low=(1.0, 2.0), high=(1.5, 3.0)),
    Series(name="stock", x=("receipt", "chart"), y=(1.75, 0.5)),
)


@pytest.mark.parametrize("kind", ["line", "step"])
def test_lines_are_named_at_their_ends(kind: str) -> None:
    svg = svg_of(figure(kind, LINES))
    found = texts(svg)
    assert {"recap", "sam <b>&", "Nodes (count)", "Speed (x)"} <= set(found)
    for color in COLORS[:2]:
        assert re.search(rf"stroke: {color}", svg)
    places = [
        float(node.get("y", ""))
        for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if "".join(node.itertext()) in ("recap", "sam <b>&")
    ]
    assert len(places) == 2
    assert abs(places[0] - places[1]) > 8, "two names at one end would overlap"


@pytest.mark.parametrize("kind", ["bar", "scatter"])
def test_names_values_and_series(kind: str) -> None:
    found = texts(svg_of(figure(kind, NAMED, baseline=1.0)))
    assert {"receipt", "chart", "plain", "stock", "1.25", "2.5", "1.75", "0.5"} <= set(found)


def test_many_series_differ_in_colour_or_mark_and_their_names_fit() -> None:
    series = tuple(
        replace(NAMED[1], name=f"a method with a name, {at:02}") for at in range(len(COLORS) * 2)
    )
    svg = svg_of(figure("scatter", series))
    assert {one.name for one in series} <= set(texts(svg))
    assert len({(COLORS[at % len(COLORS)], _marker(at)) for at in range(len(series))}) == len(
        series
    )
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', svg)[0])
    places = [
        float(node.get("x", 0))
        or float(re.findall(r"translate\(([\d.]+)", node.get("transform", ""))[0])
        for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if "a method" in "".join(node.itertext())
    ]
    assert max(places) < width / 2 + 40, "two columns"


def test_one_series_needs_no_name_but_the_axis() -> None:
    found = texts(svg_of(figure("bar", NAMED[:1])))
    assert "plain" not in found
    assert "Speed (x)" in found


def test_a_cloud_of_numbers() -> None:
    svg = svg_of(figure("scatter", LINES[:1]))
    assert svg.count("<use ") >= 3
    assert "Nodes (count)" in texts(svg)


def test_a_matrix_has_its_numbers() -> None:
    found = texts(svg_of(figure("heat", NAMED)))
    assert {"plain", "stock", "receipt", "chart", "1.25", "0.5"} <= set(found)


def test_a_level_is_marked() -> None:
    plain, marked = (svg_of(figure("bar", NAMED, baseline=level)) for level in (None, 1.0))
    assert marked.count("stroke-dasharray") == plain.count("stroke-dasharray") + 1


def test_a_wide_axis_is_logarithmic() -> None:
    wide = Series(name="U", x=(1.0, 100.0, 10_000.0), y=(1.0, 2.0, 3.0))
    assert {"1", "10", "100", "1,000", "10,000"} <= set(texts(svg_of(figure("line", (wide,)))))
    assert "1,000" not in texts(svg_of(figure("line", LINES)))


@pytest.mark.parametrize("kind", ["line", "step", "bar", "scatter", "heat"])
def test_gaps_and_nothing_are_drawn(kind: str) -> None:
    nan = math.nan
    gaps = Series(
        name="gaps", x=("a", "b", "c"), y=(1.0, nan, math.inf), low=(nan,) * 3, high=(2.0,) * 3
    )
    assert "no data" not in texts(svg_of(figure(kind, (gaps,))))
    for empty in ((), (Series(name="none", x=(), y=()),), (Series(name="n", x=("a",), y=(nan,)),)):
        assert "no data" in texts(svg_of(figure(kind, empty)))


def test_mathematics_and_long_names_are_text() -> None:
    names = ("$x_1$ costs $5", "an extraordinarily long name of a benchmark that has no end")
    series = Series(name="s", x=names, y=(1.0, 2.0))
    found = texts(svg_of(figure("bar", (series,))))
    assert "$x_1$ costs $5" in found
    assert any(text.startswith("an extraordinarily") and text.endswith("\u2026") for text in found)


def test_files_are_the_same_each_time_and_see_through(tmp_path: Path) -> None:
    svg, png = save(figure("line", LINES), tmp_path / "new")
    before = svg.read_bytes()
    save(figure("line", LINES), tmp_path / "new")
    assert svg.read_bytes() == before
    picture = Image.open(png).convert("RGBA")
    assert picture.getpixel((0, 0))[3] == 0  # type: ignore[index]
    assert picture.width > 1000


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="figure f1"):
        save(figure("line", LINES), tmp_path / "file")


@pytest.mark.parametrize("color", [*COLORS, INK])
def test_every_colour_is_readable_on_paper_and_at_night(color: str) -> None:
    for page in (PAPER, NIGHT):
        light, dark = sorted((luminance(color), luminance(page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3.0


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

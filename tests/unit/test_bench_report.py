"""The page of a run: complete, escaped, alone."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eyespan.bench.manifest import write_json
from eyespan.bench.report import column_texts, facts_of, page_of, verdicts
from eyespan.bench.tables import Figure, Results, Series, Table
from tests.cli import Shell

NASTY = """<script>alert("x")</script> & 'quote'"""


def table(**changes: Any) -> Table:
    values: dict[str, Any] = {
        "id": "t1", "title": "Speed", "columns": ("Method", "S", "n"),
        "rows": (("recap", 1.6612, 1200), ("sam", 0.95, 7), ("none", None, 3)),
        "caption": "Measured here.", "source": "RECAP Table 1",
    }  # fmt: skip
    return Table(**{**values, **changes})


def figure(**changes: Any) -> Figure:
    values: dict[str, Any] = {
        "id": "f1", "title": "Curves", "kind": "line", "x_label": "x", "y_label": "y",
        "series": (Series(name="one", x=(1.0, 2.0), y=(1.0, 2.0)),), "source": "",
    }  # fmt: skip
    return Figure(**{**values, **changes})


class Page(HTMLParser):
    """What a browser would see: tags, attributes, ids, and the rows of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self._open = False
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._open:
            self.rows[-1][-1] += data

    def all(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.values if name == attribute]


def written(
    folder: Path, *tables: Table, figures: tuple[Figure, ...] = (), **manifest: Any
) -> Path:
    Results(tables, figures).write(folder)
    if manifest:
        write_json(folder / "manifest.json", manifest)
    return folder


def test_tables_figures_and_manifest_stand_in_the_page(tmp_path: Path) -> None:
    folder = written(
        tmp_path, table(), figures=(figure(),),
        machine="A machine", versions={"torch": "9"}, command="eyespan bench run x", list=["a", 1],
    )  # fmt: skip
    page = Page(page_of(folder))
    assert ["Method", "S", "n"] in page.rows
    assert ["recap", "1.66", "1,200"] in page.rows
    assert ["sam", "0.95", "7"] in page.rows
    assert ["none", "-", "3"] in page.rows
    assert page.tags.count("svg") == 1
    shown = ("Speed", "RECAP Table 1", "Measured here.", "Curves", "A machine", "versions: torch")
    for text in (*shown, "eyespan bench run x"):
        assert text in page.words
    assert "1.6612" in page.all("data-key")
    links = [value[1:] for value in page.all("href") if value.startswith("#")]
    assert {"table-1", "figure-1", "measured"} <= set(links)
    assert set(links) <= set(page.all("id"))
    assert len(page.all("id")) == len(set(page.all("id"))), "ids are unique, those of pictures too"


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    two = (figure(), figure(id="f2", kind="bar"))
    text = page_of(written(tmp_path, table(), figures=two, machine="here"))
    page = Page(text)
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'" in text
    assert not {"link", "iframe", "object", "embed", "img", "base"} & set(page.tags)
    for _, name, value in page.values:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("#", "data:text/csv")), value
    assert set(re.findall(r"url\(([^)]{1,2})", text)) <= {"#f"}
    assert "@import" not in text


def test_everything_is_escaped(tmp_path: Path) -> None:
    nasty = table(
        title=NASTY, caption=NASTY, source=NASTY, columns=(NASTY, "S", "n"),
        rows=((NASTY, 1.0, 1),),
    )  # fmt: skip
    drawn = figure(
        title=NASTY, x_label=NASTY, y_label=NASTY, caption=NASTY, source="other",
        series=(Series(name=NASTY, x=(NASTY,), y=(1.0,)),), kind="bar",
    )  # fmt: skip
    text = page_of(written(tmp_path, nasty, figures=(drawn,), **{NASTY: NASTY, "machine": NASTY}))
    page = Page(text)
    assert page.tags.count("script") == 1, "the page's own"
    assert "alert(" not in re.sub(r"&lt;script&gt;alert\(", "", text)
    assert page.words.count(NASTY) >= 8
    assert not [name for _, name, _ in page.values if name.startswith("on")]


def test_the_table_as_csv(tmp_path: Path) -> None:
    page = Page(page_of(written(tmp_path, table())))
    (uri,) = [value for value in page.all("href") if value.startswith("data:")]
    text = base64.b64decode(uri.partition("base64,")[2]).decode()
    assert text.splitlines() == ["Method,S,n", "recap,1.6612,1200", "sam,0.95,7", "none,,3"]


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        ((10, 0, 0, 0), "good", "Lossless: all 10 answers"),
        ((9, 1, 0, 0), "close", "1 of 10 answers"),
        ((9, 0, 1, 0), "bad", "Not lossless: 1 of 10"),
        ((9, 0, 0, 1), "bad", "Incomplete: 1 of 10"),
        ((0, 0, 0, 0), "none", "No outputs"),
    ],
)
def test_the_verdict(tmp_path: Path, row: tuple[int, ...], kind: str, said: str) -> None:
    """Counts are summed over rows but that of the plain loop; columns named as a run names them."""
    columns = ("Method", "equal", "near tie", "DIFFERENT", "error")
    compared = table(columns=columns, rows=(("a", *row), ("plain", 5, 0, 0, 0)))
    (verdict,) = verdicts([table(), compared])
    assert verdict.kind == kind
    assert said in verdict.headline
    text = page_of(written(tmp_path, compared))
    assert f'class="verdict {kind}"' in text
    assert verdict.headline in text


def test_without_comparison_the_page_says_so() -> None:
    (verdict,) = verdicts([table()])
    assert verdict.kind == "none"


def test_digits_of_a_column_stand_in_line() -> None:
    assert column_texts([1.5, 22.25, None, 3]) == ["1.5", "22.2", "-", "3"]
    assert column_texts([1.123456, 2.5, 45.0]) == ["1.12", "2.50", "45.00"]
    assert column_texts([62.1, 100.0, 75.25]) == ["62.1", "100.0", "75.2"]
    assert column_texts([12345.6, float("nan"), "x", True]) == ["12,346", "-", "x", "yes"]
    assert column_texts([0.00012, 0.0]) == ["0.000120", "0.000000"]


def test_a_figure_stands_with_the_table_that_names_its_source(tmp_path: Path) -> None:
    tables = (table(), table(id="t2", title="Coverage", source="RECAP Table 5, Figure 3 (a)"))
    figures = (
        figure(id="f1", title="First", source="RECAP Figure 3"),
        figure(id="f2", title="Other", source="RECAP Figure 33"),
        figure(id="f3", title="Free"),
    )
    titles = re.findall(r"<h2>(.*?)</h2>", page_of(written(tmp_path, *tables, figures=figures)))
    assert titles == ["Other", "Free", "Speed", "First", "Coverage"]


def test_a_manifest_of_any_shape() -> None:
    assert facts_of({"a": {"b": {"c": 1}}, "l": [1, {"x": "y"}], "n": None}) == [
        ("a: b: c", "1"), ("l", '1\n{"x": "y"}'), ("n", "null"),
    ]  # fmt: skip


def test_the_verb(shell: Shell, tmp_path: Path) -> None:
    written(tmp_path, table(), figures=(figure(),))
    done = shell("bench", "report", tmp_path)
    assert (done.code, done.out) == (0, f"{tmp_path / 'report.html'}\n")
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == ["f1.png", "f1.svg"]
    page = tmp_path / "deep" / "page.html"
    assert shell("bench", "report", tmp_path, "--out", page, "--no-pictures").code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_tables_alone_need_no_figures_or_manifest(shell: Shell, tmp_path: Path) -> None:
    written(tmp_path, table())
    (tmp_path / "figures.json").unlink()
    assert shell("bench", "report", tmp_path).code == 0


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tables.json", "{", "cannot be read"),
        ("tables.json", "[" * 100_000, "cannot be read"),
        ("tables.json", "[]", "cannot be read"),
        ("tables.json", '{"tables": 7}', "is no list"),
        ("tables.json", '{"tables": [7]}', "number 1 is none of tables"),
        ("tables.json", '{"tables": [{"id": "a"}]}', "number 1 is none of tables"),
        ("manifest.json", "[1]", "no JSON object"),
        ("manifest.json", "nothing", "cannot be read"),
    ],
)
def test_files_of_another_shape(
    shell: Shell, tmp_path: Path, file: str, content: str, said: str
) -> None:
    written(tmp_path, table(), machine="here")
    (tmp_path / file).write_text(content)
    error = shell.refused("bench", "report", tmp_path)
    assert said in error
    assert file in error
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [["short"]]},
        {"rows": [["a", 1, [2]]]},
        {"id": "../../x"},
        {"id": ""},
        {"title": None},
        {"columns": "abc", "rows": []},
        {"more": 1},
    ],
)
def test_a_table_of_another_shape(shell: Shell, tmp_path: Path, change: dict[str, Any]) -> None:
    written(tmp_path, table())
    stored = json.loads((tmp_path / "tables.json").read_text())
    stored["tables"][0].update(change)
    if change.get("columns"):
        stored["tables"][0]["columns"] = [1, 2, 3]
    (tmp_path / "tables.json").write_text(json.dumps(stored))
    assert "number 1 is none of tables" in shell.refused("bench", "report", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pie"},
        {"id": "a/b"},
        {"series": [{"name": "s", "x": [1], "y": [1, 2]}]},
        {"series": [{"name": "s", "x": [1], "y": ["1"]}]},
        {"series": [{"name": "s", "x": [[1]], "y": [1]}]},
        {"series": [{"name": "s", "x": [1], "y": [1], "low": [1, 2]}]},
        {"series": [{"x": [1], "y": [1]}]},
        {"series": 3},
    ],
)
def test_a_figure_of_another_shape(shell: Shell, tmp_path: Path, change: dict[str, Any]) -> None:
    written(tmp_path, table(), figures=(figure(),))
    stored = json.loads((tmp_path / "figures.json").read_text())
    stored["figures"][0].update(change)
    (tmp_path / "figures.json").write_text(json.dumps(stored))
    assert "number 1 is none of figures" in shell.refused("bench", "report", tmp_path)


def test_nothing_to_report(shell: Shell, tmp_path: Path) -> None:
    assert "no such folder" in shell.refused("bench", "report", tmp_path / "none")
    assert "no tables and no figures" in shell.refused("bench", "report", tmp_path)
    (tmp_path / "file").touch()
    written(tmp_path, table())
    assert "report" in shell.refused("bench", "report", tmp_path, "--out", tmp_path / "file" / "x")

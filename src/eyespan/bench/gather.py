"""Several runs as one: their tables and figures in one folder, for one page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyespan.bench.manifest import manifest, write_json
from eyespan.bench.markdown import write_markdown
from eyespan.bench.tables import Figure, Results, Table

SHARED = ("summary", "lossless", "acceptance_by_depth")
"""Tables that every run has; they are named by their run here."""


def gather(folder: Path, runs: Mapping[str, tuple[str, Path]]) -> None:
    """Write `tables.json`, `tables.md`, `figures.json` and `manifest.json` of all runs.

    Args:
        folder: where they go.
        runs: by short name: what the run is about, and its folder.

    Raises:
        InputError: a run's files cannot be read.
        OutputError: the folder cannot be written.
    """
    tables: list[Table] = []
    figures: list[Figure] = []
    made: dict[str, Any] = {}
    for name, (title, place) in runs.items():
        found = Results.read(place)
        tables += [_named(table, name, title) for table in found.tables]
        figures += [_named(figure, name, title) for figure in found.figures]
        held = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        made[name] = {key: held[key] for key in ("commit", "machine", "threads", "time")}
    Results(tuple(tables), tuple(figures)).write(folder)
    write_markdown(folder / "tables.md", tables)
    write_json(folder / "manifest.json", {**manifest(), "runs": made})


def _named(one: Any, name: str, title: str) -> Any:
    """A table or figure under its run's name, where every run has one like it."""
    if one.id not in SHARED:
        return one
    return replace(one, id=f"{name}_{one.id}", title=f"{title or name}: {one.title}")

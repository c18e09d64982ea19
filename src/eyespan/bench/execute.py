"""One run from its file to its tables: lock the folder, choose inputs, measure, build."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eyespan.bench.builders import Report, build, kind_of
from eyespan.bench.builders.shared import repeats_said
from eyespan.bench.compiled import compile_plain
from eyespan.bench.datasets import Selection, Source, load_selection, open_source, repeated
from eyespan.bench.live import Board
from eyespan.bench.manifest import manifest, write_json
from eyespan.bench.markdown import write_markdown
from eyespan.bench.records import COMPILED, Store
from eyespan.bench.runner import Runner
from eyespan.bench.schedule import segments
from eyespan.bench.settings import Method, Settings, usable_methods
from eyespan.bench.sides import Sides, contestants_of
from eyespan.bench.stress import stress
from eyespan.errors import ConfigError, InputError

LoadTarget = Callable[[Settings], Any]


def execute(settings: Settings, folder: Path, load_target: LoadTarget, board: Board) -> int:
    """Run what is not there yet and write the tables.

    Args:
        settings: of the run.
        folder: results; a run of the same settings that was cut short is continued.
        load_target: loads the model; called only when something has to be measured.
        board: shows progress.

    Returns:
        0, or 1 when an answer was DIFFERENT or could not be made.

    Raises:
        ConfigError, InputError, OutputError, UnsupportedTarget: nothing can be measured.
    """
    kind = kind_of(settings.tables)
    if kind != "stress" and not settings.methods:
        raise ConfigError(
            "a run without methods",
            found="its list of [[methods]] is empty",
            needed="at least one method is needed",
            todo="Add [[methods]] with a label and a drafter.",
        )
    methods, skipped = usable_methods(settings)
    if kind != "stress" and not methods:
        raise ConfigError(
            "a run whose methods are all left out",
            found="; ".join(f"{label}: {reason}" for label, reason in skipped.items()),
            needed="at least one method that can run here is needed",
            todo="Add one, or bring what the others lack.",
        )
    with Store(folder) as store:
        _held_manifest(folder)  # a damaged one is told of before hours of work
        empty = not store.done and not (folder / "stress.json").exists()
        _same_settings(folder / "run.json", settings, empty=empty)
        if kind == "answers":
            sources, selections = open_inputs(settings, folder, board)
            again = repeated(selections.values())
            if said := repeats_said(again, sum(len(each.inputs) for each in selections.values())):
                board.note(said)
            skipped |= measure(settings, methods, sources, selections, store, load_target, board)
            extra: Mapping[str, Any] = {}
        else:
            extra, again = _stressed(settings, folder), 0
        skipped = {**_left_out_before(folder, store), **skipped}
        certificate = _certificate(folder, settings, skipped, again)
        report = Report(
            settings=settings,
            runs=store.runs,
            manifest=certificate,
            skipped=skipped,
            extra=extra,
        )
        results = build(report)
        results.write(folder)
        write_markdown(folder / "tables.md", results.tables)
        statuses = Counter(run.status for run in store.runs)
    return 1 if statuses["DIFFERENT"] or statuses["error"] else 0


def open_inputs(
    settings: Settings, folder: Path, board: Board
) -> tuple[dict[str, Source], dict[str, Selection]]:
    """Sets and the inputs chosen from them; a selection that the folder holds is kept.

    Raises:
        InputError: a set cannot be read, or is no longer the one that was chosen from.
    """
    sources = {name: open_source(name) for name in settings.datasets}
    selections = {}
    for name, source in sources.items():
        file = folder / "inputs" / f"{_file_name(name)}.json"
        if not file.exists():
            board.note(f"choosing inputs of {name}")
        selections[name] = load_selection(
            file,
            source,
            inputs=settings.max_inputs,
            warm_up=settings.warm_up,
            seed=settings.seeds[0],
            per_category=settings.per_category,
        )
    return sources, selections


def measure(
    settings: Settings,
    methods: tuple[Method, ...],
    sources: dict[str, Source],
    selections: dict[str, Selection],
    store: Store,
    load_target: LoadTarget,
    board: Board,
) -> dict[str, str]:
    """Everyone's answers to all inputs that have none yet.

    Returns:
        Optional methods that this target cannot serve, with the reason.
    """
    items = [item for segment in segments(settings, selections) for item in segment]
    todo = [item for item in items if item.key not in store.done]
    board.begin(settings, len(items), len(items) - len(todo), store.runs)
    skipped: dict[str, str] = {}
    if todo:
        target = load_target(settings)
        ready, skipped = contestants_of(target, methods, settings.repeats)
        compiled = None
        if settings.compiled:
            board.note("compiling plain decoding")
            compiled, reason = compile_plain(target)
            skipped |= {COMPILED: reason} if reason else {}
        sides = Sides(settings, target, ready, compiled)
        Runner(settings, sides, sources, selections, store, board.update).run()
    board.end()
    return skipped


def _stressed(settings: Settings, folder: Path) -> dict[str, Any]:
    """The result of a stress run, from the folder when it is there."""
    file = folder / "stress.json"
    if not file.exists():
        sizes = settings.occupancies
        made = stress(sizes, vocab_size=max(sizes), seed=settings.seeds[0])
        write_json(file, {"stress": made})
    return _read_json(file)


def _same_settings(file: Path, settings: Settings, *, empty: bool) -> None:
    """Note a new run's settings; refuse to continue another run that has results."""
    asked = json.loads(json.dumps(settings.measured()))
    if empty or not file.exists():
        write_json(file, asked)
        return
    held = _read_json(file)
    differ = sorted(key for key in {*asked, *held} if asked.get(key) != held.get(key))
    if differ:
        raise ConfigError(
            f"run folder {file.parent}",
            found=f"it holds a run with another {', '.join(differ)}",
            needed="results of one folder must come from one run",
            todo="Use another --out, or delete the folder.",
        )


def _left_out_before(folder: Path, store: Store) -> dict[str, str]:
    """Methods that an earlier start of this run had to leave out and that have no answers yet."""
    held = _held_manifest(folder).get("skipped", {})
    ran = {run.method for run in store.runs}
    return {label: reason for label, reason in held.items() if label not in ran}


def _certificate(
    folder: Path, settings: Settings, skipped: Mapping[str, str], again: int
) -> dict[str, Any]:
    """The manifest, written anew each time; earlier ones of the same folder are kept in it."""
    file = folder / "manifest.json"
    now = {**manifest(), "seeds": list(settings.seeds), "skipped": dict(skipped)}
    now["repeated_inputs"] = again
    earlier: list[Any] = []
    if held := _held_manifest(folder):
        earlier = [*held.pop("earlier", []), held]
        if all(held.get(key) == now[key] for key in _SAME):
            now["time"] = held.get("time", now["time"])
            earlier = earlier[:-1]
    whole = {**now, "settings": settings.measured(), "earlier": earlier}
    write_json(file, whole)
    return whole


def _held_manifest(folder: Path) -> dict[str, Any]:
    """What an earlier start of this run wrote of itself; empty for none.

    Raises:
        InputError: it is damaged.
    """
    file = folder / "manifest.json"
    return _read_json(file, "Delete it: results stay.") if file.exists() else {}


_SAME = ("commit", "versions", "machine", "threads")


def _read_json(file: Path, todo: str = "Start the run anew in another folder.") -> dict[str, Any]:
    """A JSON object that a run wrote.

    Raises:
        InputError: it is damaged; `todo` is what to do then.
    """
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(held, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"file {file} of a run",
            found=f"it is damaged ({error})",
            needed="the file that the run wrote is needed",
            todo=todo,
        ) from error
    return held


def _file_name(dataset: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in dataset)

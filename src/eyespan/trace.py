"""Traces: one JSON object a line, written for people, replay and the tree viewer.

A file holds, for each request, a `request` line, a `prefill` line, one `step` line a round and an
`end` line, all with the request's `id` and standing together. `docs/trace.md` lists every field.
Reading one back needs no model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyespan.closing import Closing
from eyespan.errors import ConfigError, InputError, OutputError, unwritable
from eyespan.locks import lock
from eyespan.sequence import Observer, Running
from eyespan.types import DraftTree, Generation, Prefill, Request, Step

if TYPE_CHECKING:
    from eyespan.generation import Engine

VERSION = 1


class Trace(Closing["Trace"]):
    """An open trace file; takes any number of requests, each written whole when it ends.

    Args:
        file: where to write; an existing file is replaced.
        append: keep what an existing file holds.

    Raises:
        OutputError: the file cannot be written, or another run writes there.
    """

    def __init__(self, file: str | Path, *, append: bool = False) -> None:
        self.file = Path(file)
        with self._writing():
            # what UTF-8 cannot hold, a name of other bytes, is escaped as JSON escapes it
            out = self._out = self.file.open("a", encoding="utf-8", errors="backslashreplace")
            try:
                lock(out, f"trace file {file}")
            except OutputError:
                out.close()
                raise
            if not append and self.file.is_file():  # a device has nothing to empty
                out.truncate(0)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append one request's lines.

        Raises:
            OutputError: the disk is full or gone.
        """
        with self._writing():
            for line in lines:
                self._out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        with self._writing():
            self._out.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except OutputError:
            raise
        except OSError as error:
            raise unwritable(f"trace file {self.file}", error) from error
        except ValueError as error:  # closed already, or a NUL character in its name
            raise unwritable(f"trace file {self.file!s:.200}", OSError(str(error))) from error


class Labelled(Trace):
    """An open trace as one of its requests writes to it: further fields stand in the first line.

    Args:
        trace: stays open.
        **fields: JSON-ready.
    """

    def __init__(self, trace: Trace, **fields: Any) -> None:
        self.file, self._trace, self._fields = trace.file, trace, fields

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append the request's lines."""
        self._trace.write(
            {**line, **self._fields} if line["type"] == "request" else line for line in lines
        )

    def close(self) -> None:
        """The trace belongs to others."""


def keep_requests(file: Path, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Drop requests from a trace before it is continued: those that an interrupted writer left
    without an end, and those that are not wanted any more. All or nothing.

    Args:
        file: nothing happens where there is none.
        wanted: told a request's first line.

    Raises:
        InputError: no trace.
        OutputError: it cannot be written.
    """
    if not file.is_file():
        return
    place = Path(os.path.realpath(file))
    part = place.with_name(f"{place.name}.{os.getpid()}.part")
    try:
        with place.open("rb") as lines, part.open("wb") as kept:
            request: list[bytes] = []
            keep = False
            for number, raw in enumerate(lines, 1):
                if not raw.endswith(b"\n"):
                    break
                line = _line(file, number, raw)
                if line["type"] == "request":
                    request, keep = [], wanted(line)
                elif not request:
                    raise _unreadable(file, f"line {number} belongs to no request")
                request.append(raw)
                if line["type"] == "end":
                    kept.writelines(request if keep else ())
                    request = []
        part.replace(place)
    except OSError as error:
        raise unwritable(f"trace file {file}", error) from error
    finally:
        part.unlink(missing_ok=True)


def trace_to(place: object) -> Trace | None:
    """The `trace` of a request: a path is opened, an open trace and None stay what they are.

    Raises:
        ConfigError: something else.
        OutputError: the file cannot be written.
    """
    if place is None or isinstance(place, Trace):
        return place
    if isinstance(place, (str, Path)):
        return Trace(place)
    raise ConfigError(
        f"trace={place!r:.60}",
        found=f"a {type(place).__name__}",
        needed="a path, or an open Trace",
        todo="Pass where the trace is to be written.",
    )


class TraceRecord(Observer):
    """Collects one request's lines while it runs.

    Args:
        engine: that runs it.
        request: the request.
        greedy: whether every token is the best of its row, as replay and inspection may assume.
    """

    def __init__(self, engine: Engine, request: Request, *, greedy: bool) -> None:
        self._auto = engine.policy.auto
        self._lines: list[dict[str, Any]] = [
            {
                "type": "request",
                "version": VERSION,
                "id": request.id,
                "drafter": engine.drafter.name,
                "config": engine.drafter.config_dict(),
                "budget": engine.policy.budget,
                "prompt_ids": request.prompt_ids.tolist(),
                "media_ids": sorted(request.media_ids),
                "eos_ids": sorted(request.eos_ids),
                "max_new_tokens": request.max_new_tokens,
                "memory": "warm" if engine.drafter.is_warm(request.scope) else "fresh",
                "scope": request.scope,
                "model": engine.target.info.name,
                "greedy": greedy,
            }
        ]
        self._rows = engine.drafter.needs.rows

    def prefill(self, running: Running, prefill: Prefill) -> None:
        """Record the rows that seeded memory."""
        rows = zip(prefill.positions, prefill.row_ids, prefill.row_logits, strict=True)
        self._lines.append(
            {
                "type": "prefill",
                "id": running.request.id,
                "rows": [[int(at), ids.tolist(), json_floats(logits)] for at, ids, logits in rows],
                "next": int(running.output_ids[0]),
            }
        )

    def step(
        self,
        running: Running,
        step: Step,
        *,
        draft: DraftTree,
        sources: Sequence[str],
        ms: Mapping[str, float],
    ) -> None:
        """Record one round."""
        tree, verdict = step.tree, step.verdict
        scores = [
            1.0,
            *(0.0 if draft.scores is None else float(draft.scores[at]) for at in tree.order),
        ]
        line: dict[str, Any] = {
            "type": "step",
            "id": running.request.id,
            "i": running.counters.forwards - 2,  # the prefill is forward 1
            "tokens": tree.tokens.tolist(),
            "parents": tree.parents.tolist(),
            "scores": scores,
            "origin": list(sources[:-1]),
            "budget_used": sum(name != "suffix" for name in sources[1:-1]) if self._auto else None,
            "accepted": verdict.path.tolist(),
            "next": verdict.next,
            "ms": dict(ms),
        }
        if self._rows:
            line["row_ids"] = step.out.row_ids.tolist()
            line["row_logits"] = [json_floats(row) for row in step.out.row_logits]
        if verdict.cut is not None:
            line["cut"] = verdict.cut
        self._lines.append(line)

    def lines(self, result: Generation) -> Iterator[dict[str, Any]]:
        """All lines of the request, its end last."""
        yield from self._lines
        yield {
            "type": "end",
            "id": self._lines[0]["id"],
            "output_ids": list(result.token_ids),
            "text": result.text,
            "finish": result.finish,
            "forwards": result.forwards,
            "drafted": result.drafted,
            "accepted": result.accepted,
            "tau": result.tau,
            "seconds": dict(result.seconds),
        }


def json_floats(values: Any) -> list[float | None]:
    """JSON has no infinity: padding of short rows becomes null."""
    return [float(value) if value > float("-inf") else None for value in values]


def read_trace(file: str | Path) -> list[list[dict[str, Any]]]:
    """The requests of a trace file, each a list of its lines.

    Raises:
        InputError: no such file, a broken line, or a line that no request opened.
    """
    return list(iter_trace(file))


def iter_trace(file: str | Path) -> Iterator[list[dict[str, Any]]]:
    """The same one request at a time, for files that do not fit into memory as objects.

    Raises:
        InputError: as `read_trace`, when the reading comes to it.
    """
    path = Path(file)
    request: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:  # U+2028 ends no line
            for number, raw in enumerate(lines, 1):
                line = _line(path, number, raw)
                if line["type"] == "request" and request:
                    yield request
                    request = []
                if not request and line["type"] != "request":
                    raise _unreadable(path, f"line {number} comes before any request")
                request.append(line)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, str(error)) from error
    if request:
        yield request


def _line(path: Path, number: int, raw: str | bytes) -> dict[str, Any]:
    try:
        line: dict[str, Any] = json.loads(raw)
        line["type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(path, f"line {number} is no trace line") from error
    return line


def _unreadable(path: Path, found: str) -> InputError:
    return InputError(
        f"trace file {path}",
        found=found,
        needed="JSON lines as `--trace` writes them",
        todo="Write it again with `eyespan generate --trace FILE`.",
    )

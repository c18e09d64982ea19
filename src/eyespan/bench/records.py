"""A run's results on disk: one JSON line for every answer, written input by input.

An input's lines end in a line that closes it. Whatever stands after the last closing line was cut
short and is dropped when the file is opened again, so a run that was killed at any moment continues
with the input it was at. Two runs never write one folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from eyespan.closing import Closing
from eyespan.errors import InputError, unwritable
from eyespan.locks import lock

Status: TypeAlias = Literal["equal", "near tie", "DIFFERENT", "error"]
STATUSES: tuple[Status, ...] = ("equal", "near tie", "DIFFERENT", "error")
TIMED: tuple[Status, ...] = ("equal", "near tie")
"""Only these have a speed: an answer that is another one says nothing."""
PLAIN = "plain"
"""Our own loop without drafts, which every method is paired with."""
STOCK = "stock generate()"
COMPILED = "stock generate() compiled"
"""The same with a static cache and a compiled forward."""
NOISE = "plain, again"
"""A second plain side: what it gains over the first is the machine's noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One answer of one method.

    Attributes:
        stream: order of inputs it belongs to ("blocked/17").
        dataset, input, turn: what was asked.
        method: label of the method.
        repeat: number of the repetition, each with a memory of its own.
        category: of the input.
        image: name of the picture cluster.
        status: how the answer compares with the plain one; "error" when there is none, or when the
            drafter failed on the way.
        error: what went wrong.
        tokens, forwards, drafted, accepted: see `Generation`; forwards is 0 for stock.
        drafted_by_depth, accepted_by_depth: see `Generation`.
        seconds: {"encode", "prefill", "decode", "total"}; total runs from the prepared prompt to
            the last token, so that encoding is no part of it. Stock has a total alone.
        stage_ms: milliseconds by stage of the loop.
        stage_cpu_ms: the same of the processor; empty in records older than it.
        plain_tokens, plain_seconds: of the plain run beside it; empty without one.
        state_bytes: what the drafter kept afterwards, -1 when it does not tell.
        parameters: weights that the drafter brings.
        peak_bytes, plain_peak_bytes: most that was allocated on the GPU while it answered, and
            while the plain run beside it did; -1 without a GPU.
    """

    stream: str
    dataset: str
    input: str
    turn: int
    method: str
    repeat: int
    category: str
    image: str
    status: Status
    error: str | None = None
    tokens: int = 0
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    stage_cpu_ms: Mapping[str, float] = field(default_factory=dict)
    plain_tokens: int = 0
    plain_seconds: Mapping[str, float] = field(default_factory=dict)
    state_bytes: int = -1
    parameters: int = 0
    peak_bytes: int = -1
    plain_peak_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The line that closes an input.

    Attributes:
        stream, dataset, input: which one.
        answers: the plain answers, turn by turn; later turns were asked with them as history.
    """

    stream: str
    dataset: str
    input: str
    answers: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it unique within a run."""
        return (self.stream, self.dataset, self.input)


_RUN_FIELDS = {one.name for one in fields(Run)}
_TUPLES = ("drafted_by_depth", "accepted_by_depth")
_TIMES = ("seconds", "stage_ms", "stage_cpu_ms", "plain_seconds")
_NUMBERS = (
    "turn", "repeat", "tokens", "forwards", "drafted", "accepted", "plain_tokens", "state_bytes",
    "parameters", "peak_bytes", "plain_peak_bytes",
)  # fmt: skip


class Store(Closing["Store"]):
    """The open result file of a folder; holds the folder's lock until it is closed.

    Args:
        folder: of the run; made when missing.

    Raises:
        InputError: the file holds something else.
        OutputError: the folder cannot be written, or another run writes there.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "records.jsonl"
        self.runs: list[Run] = []
        self.done: dict[tuple[str, str, str], Done] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("w")
        except OSError as error:
            raise unwritable(f"run folder {folder}", error) from error
        try:
            lock(self._lock, f"run folder {folder}")
            self._out = self._continue()
        except BaseException:
            self._lock.close()
            raise

    def append(self, runs: Sequence[Run], done: Done) -> None:
        """Write an input's answers and close it; safe against a kill at any moment.

        Raises:
            OutputError: no space, or the folder is gone.
        """
        lines = [_line("run", run) for run in runs] + [_line("input", done)]
        try:
            left = memoryview("".join(lines).encode("utf-8"))
            while left:
                left = left[self._out.write(left) :]
            os.fsync(self._out.fileno())
        except OSError as error:
            raise unwritable(f"result file {self.file}", error) from error
        self.runs += runs
        self.done[done.key] = done

    def close(self) -> None:
        """Close the file and let others have the folder."""
        self._out.close()
        self._lock.close()

    def _continue(self) -> IO[bytes]:
        """Read what is whole, cut off the rest, and stand at the end."""
        data = self.file.read_bytes() if self.file.exists() else b""
        whole = 0
        runs: list[Run] = []
        for line in read_lines(self.file, data):
            if isinstance(line.value, Done):
                self.done[line.value.key] = line.value
                self.runs += runs
                runs, whole = [], line.end
            else:
                runs.append(line.value)
        try:
            # Without a buffer nothing is left to be written, and to fail, when it is closed.
            out = self.file.open("ab", buffering=0)
            out.truncate(whole)
        except OSError as error:
            raise unwritable(f"result file {self.file}", error) from error
        return out


@dataclass(frozen=True, slots=True)
class Line:
    """A result line and where it ends in the file."""

    value: Run | Done
    end: int


def read_lines(file: Path, data: bytes) -> Iterable[Line]:
    """Lines of a result file; a last one that was cut short is left out.

    Raises:
        InputError: a line is something else.
    """
    start = number = 0
    while (end := data.find(b"\n", start)) >= 0:
        number += 1
        try:
            yield Line(_parsed(data[start:end]), end + 1)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"result file {file}",
                found=f"line {number} is no result ({error})",
                needed="lines as `eyespan bench run` writes them",
                todo="Start the run anew in another folder, or delete the lines from there on.",
            ) from error
        start = end + 1


def read_runs(folder: Path) -> list[Run]:
    """The answers of finished inputs in a run's folder.

    Raises:
        InputError: no results there, or a damaged file.
    """
    file = folder / "records.jsonl"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"results in {folder}",
            found=error.strerror or str(error),
            needed="a folder that `eyespan bench run` wrote is needed",
            todo="Check the path.",
        ) from error
    kept: list[Run] = []
    open_: list[Run] = []
    for line in read_lines(file, data):
        if isinstance(line.value, Run):
            open_.append(line.value)
        else:
            kept, open_ = kept + open_, []
    return kept


def _line(kind: str, value: Run | Done) -> str:
    text = json.dumps({"type": kind, **asdict(value)}, separators=(",", ":"))
    return text + "\n"


def _parsed(raw: bytes) -> Run | Done:
    line: dict[str, Any] = json.loads(raw)
    kind = line.pop("type")
    if kind == "input":
        return Done(**{**line, "answers": tuple(line["answers"])})
    if kind != "run" or not set(line) <= _RUN_FIELDS:
        raise ValueError(f"type {kind!r}")
    if line["status"] not in STATUSES:
        raise ValueError(f"status {line['status']!r}")
    for key, value in line.items():
        if not _fits(key, value):
            raise ValueError(f"{key} is {value!r}")
    run = Run(**{**line, **{name: tuple(line.get(name, ())) for name in _TUPLES}})
    if run.status in TIMED:
        _check_timed(run)
    return run


def _check_timed(run: Run) -> None:
    """An answer that has a speed has all that its speed is made of; sides that are no method of
    ours tell of no stages and no passes, and need no plain run beside them.
    """
    ours = run.method not in (STOCK, COMPILED)
    if ours and run.forwards < 1:
        raise ValueError(f"{run.forwards} forwards")
    sides = [(run.tokens, run.seconds)]
    if run.plain_seconds or run.method not in (PLAIN, STOCK, COMPILED):
        sides.append((run.plain_tokens, run.plain_seconds))
    for tokens, seconds in sides:
        stages = ("total", "decode") if ours and tokens > 1 else ("total",)
        if tokens < 1 or not all(seconds.get(stage, 0.0) > 0 for stage in stages):
            raise ValueError(f"{tokens} tokens in {dict(seconds)} seconds")


def _fits(key: str, value: object) -> bool:
    """Whether a field of a line holds what it should."""
    if key in _TUPLES:
        return isinstance(value, list) and all(type(each) is int for each in value)
    if key in _TIMES:
        return isinstance(value, dict) and all(
            isinstance(each, int | float) and math.isfinite(each) for each in value.values()
        )
    if key == "error":
        return value is None or isinstance(value, str)
    return type(value) is (int if key in _NUMBERS else str)

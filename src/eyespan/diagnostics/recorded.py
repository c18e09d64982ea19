"""Recorded requests: what a trace tells about an answer, as arrays that a replay drafts against.

A trace is checked whole before anything is replayed; a file that was cut off, is empty or is none
of ours is refused with its name and the request in which it goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eyespan._core import TOKEN_LIMIT
from eyespan.errors import InputError
from eyespan.trace import VERSION, iter_trace
from eyespan.types import ROW_SIZE, Floats, Ints, Request

HOW_TO_RECORD = (
    "Record with `eyespan replay --record demo`, or with `eyespan generate --drafter recap "
    "--budget fixed --trace FILE`."
)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The target's top-K predictions at some positions.

    Attributes:
        at: [m] ascending positions, in the prompt or in the answer as their owner says.
        ids, logits: [m, K]; padding is id -1 with logit -inf.
    """

    at: Ints
    ids: Ints
    logits: Floats

    @staticmethod
    def none() -> Rows:
        """No positions."""
        return Rows(
            np.empty(0, np.int32),
            np.empty((0, ROW_SIZE), np.int32),
            np.empty((0, ROW_SIZE), np.float32),
        )

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One verify pass of the recorded run.

    Attributes:
        root: index in the answer of the pack's root.
        tokens, parents: [n] the packed tree.
        path: [a] packed indices of the accepted nodes.
        cut: whether the answer ended here for want of room or by a stop string, so that more
            might have been accepted.
        row_ids, row_logits: [n, K], or None where the drafter asked for no rows.
    """

    root: int
    tokens: Ints
    parents: Ints
    path: tuple[int, ...]
    cut: bool
    row_ids: Ints | None
    row_logits: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One request of a trace.

    Attributes:
        request: as the engine had it.
        model: the target's name.
        group: requests of one group share a picture; intervals resample groups.
        text: [L + n] prompt and answer.
        seeds: rows of the prompt, by prompt position.
        rows: rows of the answer, by answer position: the row at i predicts token i + 1.
        rounds: the recorded verify passes.
        swapped: rows of the same answer read under another picture, or None.
    """

    request: Request
    model: str
    group: str
    text: Ints
    seeds: Rows
    rows: Rows
    rounds: tuple[Round, ...]
    swapped: Rows | None

    @property
    def output(self) -> Ints:
        """[n] the answer's ids."""
        return self.text[len(self.request.prompt_ids) :]

    def prefix(self, state: int) -> Ints:
        """Committed tokens when answer token `state` was the newest."""
        return self.text[: len(self.request.prompt_ids) + state + 1]

    @property
    def states(self) -> int:
        """Places at which a draft could have been asked for: every answer token but the last."""
        return max(len(self.output) - 1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The requests of one trace file, which are one stream: memory is empty where it begins.

    Attributes:
        name: the file's, without its ending; a data set in the tables.
        requests: in order.
    """

    name: str
    requests: tuple[Recorded, ...]

    @property
    def states(self) -> int:
        """States of all requests."""
        return sum(one.states for one in self.requests)


def read_recordings(files: Sequence[Path]) -> list[Recording]:
    """Read trace files.

    Raises:
        InputError: none given, two of one name, a file that is missing, empty, cut off or no trace,
            a line of another shape, or answers of several models.
    """
    names = [file.stem for file in files]
    if not files or len(set(names)) < len(names):
        raise InputError(
            "traces to replay",
            found="none" if not files else f"two files named {_twice(names)}",
            needed="files with names of their own are needed; each is one data set in the tables",
            todo=HOW_TO_RECORD if not files else "Rename one of them.",
        )
    found = [Recording(file.stem, tuple(_read(file))) for file in files]
    models = dict.fromkeys(one.model for recording in found for one in recording.requests)
    if len(models) > 1:
        raise InputError(
            "traces to replay",
            found=f"answers of different models ({', '.join(models)})",
            needed="those of one model are needed: what its ids and rows say is shared",
            todo="Replay each model's traces on their own.",
        )
    return found


def vocabulary(recordings: Iterable[Recording]) -> int:
    """Ids that occur, from 0 to the highest: what drafters are told is the vocabulary."""
    highest = 0
    for one in (request for recording in recordings for request in recording.requests):
        arrays = [one.text, one.seeds.ids, one.rows.ids]
        arrays += [
            array
            for each in one.rounds
            for array in (each.tokens, each.row_ids)
            if array is not None
        ]
        arrays += [one.swapped.ids] if one.swapped is not None else []
        highest = max(highest, *(int(array.max()) for array in arrays if array.size))
        highest = max([highest, *one.request.media_ids, *one.request.eos_ids])
    return highest + 1


def _twice(names: Sequence[str]) -> str:
    return next(f"'{name}'" for name in names if names.count(name) > 1)


def _read(file: Path) -> list[Recorded]:
    found = []
    for lines in iter_trace(file):
        name = str(lines[0].get("id"))
        if lines[0].get("version") != VERSION:
            raise _refused(
                file, f"request {name} is of format {lines[0].get('version')!r}, not {VERSION}"
            )
        if lines[-1].get("type") != "end":
            raise _refused(file, f"request {name} has no end: the run was cut off")
        try:
            found.append(recorded_of(lines))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _refused(file, f"request {name} has a line of another shape ({error})") from error
    if not found:
        raise _refused(file, "it holds no request")
    return found


def _refused(file: Path, found: str) -> InputError:
    return InputError(
        f"trace file {file}",
        found=found,
        needed=f"whole requests of trace format {VERSION} are needed",
        todo=HOW_TO_RECORD,
    )


def recorded_of(lines: Sequence[Mapping[str, Any]]) -> Recorded:
    """One request from its trace lines, `request` first and `end` last.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, OverflowError: lines of another shape.
    """
    head, end = lines[0], lines[-1]
    prompt = _ids(head["prompt_ids"])
    output = _ids(end["output_ids"])
    if not len(output):
        raise ValueError("an answer without tokens")
    prefill = _one(lines, "prefill")
    swapped = [line for line in lines if line["type"] == "swapped"]
    rounds = _rounds([line for line in lines if line["type"] == "step"], output)
    return Recorded(
        request=Request(
            id=str(head["id"]),
            prompt_ids=prompt,
            media_ids=frozenset(_ids(head["media_ids"]).tolist()),
            eos_ids=frozenset(_ids(head["eos_ids"]).tolist()),
            max_new_tokens=max(int(head["max_new_tokens"]), len(output)),
            scope=head.get("scope"),
        ),
        model=str(head["model"]),
        group=str(head.get("group", head["id"])),
        text=np.concatenate([prompt, output]),
        seeds=_rows(prefill["rows"], len(prompt)),
        rows=_answer_rows(rounds),
        rounds=rounds,
        swapped=_rows(swapped[0]["rows"], len(output)) if swapped else None,
    )


def _one(lines: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    found = [line for line in lines if line["type"] == kind]
    if len(found) != 1:
        raise ValueError(f"{len(found)} lines of type {kind}")
    return found[0]


def _ids(values: Any) -> Ints:
    """[n] ids, each within what memory keys can hold."""
    ids = np.array(values, np.int64)
    if ids.ndim != 1 or (ids.size and not 0 <= ids.min() <= ids.max() < TOKEN_LIMIT):
        raise ValueError(f"ids are not a list of numbers from 0 to {TOKEN_LIMIT - 1}")
    return ids.astype(np.int32)


def _rounds(steps: Sequence[Mapping[str, Any]], output: Ints) -> tuple[Round, ...]:
    """The verify passes; together they must have committed the answer."""
    rounds, root = [], 0
    for step in steps:
        tokens, parents = _ids(step["tokens"]), np.array(step["parents"], np.int32)
        path = [int(node) for node in step["accepted"]]
        before = np.arange(len(parents))
        if len(parents) != len(tokens) or not np.all((before == 0) == (parents < 0)):
            raise ValueError("parents that give no tree of all tokens")
        if not np.all(parents < before):
            raise ValueError("parents that do not come before their children")
        committed = [int(tokens[node]) for node in path]
        committed += [] if step["next"] is None else [int(step["next"])]
        if output[root : root + 1 + len(committed)].tolist() != [int(tokens[0]), *committed]:
            raise ValueError(f"step {step['i']} did not commit what the answer says")
        ids = logits = None
        if "row_ids" in step:
            ids, logits = _row_arrays(step["row_ids"], step["row_logits"])
            if len(ids) != len(tokens):
                raise ValueError(f"step {step['i']} has {len(ids)} rows for {len(tokens)} nodes")
        cut = step.get("cut") in ("length", "stop")
        rounds.append(Round(root, tokens, parents, tuple(path), cut, ids, logits))
        root += len(committed)
    if root != len(output) - 1:
        raise ValueError(f"its steps commit {root + 1} of {len(output)} tokens")
    return tuple(rounds)


def _answer_rows(rounds: Sequence[Round]) -> Rows:
    """Rows at the roots and accepted nodes: one for every answer token that a pack began with or
    accepted.
    """
    at: list[int] = []
    ids: list[Ints] = []
    logits: list[Floats] = []
    for each in rounds:
        if each.row_ids is None or each.row_logits is None:
            return Rows.none()
        nodes = [0, *each.path]
        at += range(each.root, each.root + len(nodes))
        ids.append(each.row_ids[nodes])
        logits.append(each.row_logits[nodes])
    if not at:
        return Rows.none()
    # an accepted token that ended the answer has a row that nothing follows; it does no harm
    return Rows(np.array(at, np.int32), np.concatenate(ids), np.concatenate(logits))


def _row_arrays(ids: Any, logits: Any) -> tuple[Ints, Floats]:
    """[m, K] ids and logits, padded; null is minus infinity."""
    row_ids = np.array(ids, np.int64).reshape(-1, ROW_SIZE)
    row_logits = np.array(logits, np.float32).reshape(-1, ROW_SIZE)
    if row_ids.shape != row_logits.shape:
        raise ValueError("rows whose ids and logits differ in number")
    if row_ids.size and not -1 <= row_ids.min() <= row_ids.max() < TOKEN_LIMIT:
        raise ValueError("a row holds ids that no vocabulary has")
    row_logits[np.isnan(row_logits)] = -np.inf
    return row_ids.astype(np.int32), row_logits


def _rows(lines: Any, length: int) -> Rows:
    """`[position, ids, logits]` triples, by ascending position."""
    if not lines:
        return Rows.none()
    lines = sorted(lines, key=lambda line: int(line[0]))
    at = np.array([line[0] for line in lines], np.int64)
    if not 0 <= at[0] <= at[-1] < length:
        raise ValueError("a row at a position that does not exist")
    ids, logits = _row_arrays([line[1] for line in lines], [line[2] for line in lines])
    return Rows(at.astype(np.int32), ids, logits)

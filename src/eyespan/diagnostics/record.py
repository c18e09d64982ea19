"""Record what a replay needs: traces of data sets, a file for each benchmark.

Trees have RECAP's published size, so that a trace also holds the rows of guesses that failed; and
each answer is read once more under another input's pictures, for the comparison of appendix C.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eyespan.diagnostics.controls import read_answer, wrong_pictures
from eyespan.diagnostics.questions import Question
from eyespan.drafters import make_drafter
from eyespan.errors import unwritable
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.trace import Trace, json_floats

Tell = Callable[[str], None]


class Collected(Trace):
    """A trace in memory: the lines of the last request."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Keep these lines only."""
        self.lines = [dict(line) for line in lines]


def record(
    target: HuggingFaceTarget,
    every: Sequence[Question],
    folder: Path,
    *,
    tell: Tell,
    max_new_tokens: int,
) -> list[Path]:
    """Answer questions and write their traces.

    Args:
        target: the model.
        every: the questions.
        folder: gets one file for each benchmark, replaced where it exists.
        tell: told what is under way.
        max_new_tokens: longest answer.

    Returns:
        The files.

    Raises:
        OutputError: the folder or a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"folder {folder}", error) from error
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size)
    drafter.needs = replace(drafter.needs, prompt_rows="all")  # it takes first occurrences of them
    engine = Engine(target, drafter, budget="fixed")
    files = []
    for name in dict.fromkeys(one.benchmark for one in every):
        engine.reset()
        file = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.jsonl"
        chosen = [at for at, one in enumerate(every) if one.benchmark == name]
        with Trace(file) as trace:
            for number, at in enumerate(chosen, 1):
                tell(f"recording {name} {number}/{len(chosen)}")
                trace.write(answer_lines(engine, every, at, max_new_tokens))
        files.append(file)
    return files


def answer_lines(
    engine: Engine, every: Sequence[Question], at: int, max_new_tokens: int
) -> Iterator[Mapping[str, Any]]:
    """The trace of one answer, its request's `group` and its `swapped` rows included."""
    query, kept = every[at], Collected()
    made = engine.generate(
        query.messages, query.pictures, max_new_tokens=max_new_tokens, trace=kept
    )
    head, *middle, end = kept.lines
    yield {**head, "group": query.group}
    yield from middle
    pictures = wrong_pictures(every, at)
    if pictures is not None:
        rows = []
        answer = np.array(made.token_ids, np.int32)
        for start, out in read_answer(engine.target, query, pictures, answer):
            pairs = zip(out.row_ids, out.row_logits, strict=True)
            rows += [
                [place, ids.tolist(), json_floats(logits)]
                for place, (ids, logits) in enumerate(pairs, start)
            ]
        yield {"type": "swapped", "id": head["id"], "rows": rows}
    yield end

"""Record what a replay needs: traces of the demo's held-out set, a file for each kind of sample.

Trees have RECAP's published size, so that a trace also holds the rows of guesses that failed; and
each answer is read once more under another sample's picture, for the comparison of appendix C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eyespan.bench.held_out import MAX_NEW_TOKENS, Ask, asks
from eyespan.diagnostics.controls import read_answer, sample_of, wrong_picture
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
    samples: int,
    folder: Path,
    *,
    tell: Tell,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[Path]:
    """Answer the first samples of the demo's held-out set and write their traces.

    Args:
        target: the model.
        samples: how many; kinds take turns.
        folder: gets one file for each kind, replaced where it exists.
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
    every = list(asks(samples))
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size)
    drafter.needs = replace(drafter.needs, prompt_rows="all")  # it takes first occurrences of them
    engine = Engine(target, drafter, budget="fixed")
    files = []
    for kind in dict.fromkeys(ask.kind for ask in every):
        engine.reset()
        file = folder / f"{kind}.jsonl"
        chosen = [at for at, ask in enumerate(every) if ask.kind == kind]
        with Trace(file) as trace:
            for number, at in enumerate(chosen, 1):
                tell(f"recording {kind} {number}/{len(chosen)}")
                trace.write(answer_lines(engine, every, at, max_new_tokens))
        files.append(file)
    return files


def answer_lines(
    engine: Engine, every: Sequence[Ask], at: int, max_new_tokens: int
) -> Iterator[Mapping[str, Any]]:
    """The trace of one answer, its request's `group` and its `swapped` rows included."""
    ask, kept = every[at], Collected()
    made = engine.generate(ask.messages, [ask.image], max_new_tokens=max_new_tokens, trace=kept)
    head, *middle, end = kept.lines
    yield {**head, "group": sample_of(ask)}
    yield from middle
    picture = wrong_picture(every, at)
    if picture is not None:
        rows = []
        answer = np.array(made.token_ids, np.int32)
        for start, out in read_answer(engine.target, ask.messages, picture, answer):
            pairs = zip(out.row_ids, out.row_logits, strict=True)
            rows += [
                [place, ids.tolist(), json_floats(logits)]
                for place, (ids, logits) in enumerate(pairs, start)
            ]
        yield {"type": "swapped", "id": head["id"], "rows": rows}
    yield end

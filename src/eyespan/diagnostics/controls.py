"""Control pictures, and reading a given answer under them (RECAP appendix E).

The text stays as it was; only the picture changes, and with it what the target says after every
token. The paper names two controls and leaves their making open. Here the *mean* picture has the
query's size and its mean colour everywhere; the *wrong* picture is that of another sample of the
same kind, brought to the query's size, so that both fill as many positions as the query's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageStat

from eyespan._core import pack
from eyespan.diagnostics.questions import Question
from eyespan.target import HuggingFaceTarget
from eyespan.types import Ints, Needs, PackedTree, TargetOut

CHUNK = 64
"""Answer tokens of one pass."""


def mean_picture(picture: Image.Image) -> Image.Image:
    """A picture of one colour, the mean of another's."""
    rgb = picture.convert("RGB")
    red, green, blue = (round(value) for value in ImageStat.Stat(rgb).mean)
    return Image.new("RGB", rgb.size, (red, green, blue))


def mean_pictures(query: Question) -> tuple[Image.Image, ...]:
    """The query's pictures, each of its mean colour."""
    return tuple(mean_picture(picture) for picture in query.pictures)


def wrong_pictures(every: Sequence[Question], at: int) -> tuple[Image.Image, ...] | None:
    """The pictures of the next other input, at the query's sizes: of one that matches, else of one
    of its benchmark, else of any; None when all questions share their pictures.

    Args:
        every: all questions.
        at: index of the query.
    """
    query = every[at]
    others = [one for one in (*every[at + 1 :], *every[:at]) if one.group != query.group]
    others.sort(key=lambda one: (one.match != query.match, one.benchmark != query.benchmark))
    if not others:
        return None
    donors = others[0].pictures
    return tuple(
        donors[number % len(donors)].convert("RGB").resize(picture.size)
        for number, picture in enumerate(query.pictures)
    )


def read_answer(
    target: HuggingFaceTarget, query: Question, pictures: Sequence[Image.Image], answer: Ints
) -> Iterator[tuple[int, TargetOut]]:
    """What the target says after every token of a given answer, under given pictures.

    Args:
        target: the model.
        query: whose chat leads up to the answer.
        pictures: stand in the place of its own.
        answer: [n] ids.

    Yields:
        Index of a pass's first token and the pass: row and logits j belong to token index + j.
        Logits are valid until the next one.
    """
    state, _ = target.prefill(target.prepare(query.messages, pictures), Needs())
    try:
        for start in range(0, len(answer), CHUNK):
            tokens = answer[start : start + CHUNK]
            chain = np.arange(-1, len(tokens) - 2, dtype=np.int32)
            tree = PackedTree(*pack(np.ascontiguousarray(tokens[1:]), chain, None, int(tokens[0])))
            (out,) = target.forward([state], [tree], Needs(rows=True))
            yield start, out
            target.keep(state, np.arange(1, len(tokens), dtype=np.int32))
    finally:
        state.close()

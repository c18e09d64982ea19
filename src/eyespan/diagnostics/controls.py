"""Control pictures, and reading a given answer under them (RECAP appendix E).

The text stays as it was; only the picture changes, and with it what the target says after every
token. The paper names two controls and leaves their making open. Here the *mean* picture has the
query's size and its mean colour everywhere; the *wrong* picture is that of another sample of the
same kind, brought to the query's size, so that both fill as many positions as the query's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageStat

from eyespan._core import pack
from eyespan.bench.held_out import Ask
from eyespan.target import HuggingFaceTarget
from eyespan.types import Ints, Needs, PackedTree, TargetOut

CHUNK = 64
"""Answer tokens of one pass."""


def mean_picture(picture: Image.Image) -> Image.Image:
    """A picture of one colour, the mean of another's."""
    rgb = picture.convert("RGB")
    red, green, blue = (round(value) for value in ImageStat.Stat(rgb).mean)
    return Image.new("RGB", rgb.size, (red, green, blue))


def wrong_picture(asks: Sequence[Ask], at: int) -> Image.Image | None:
    """The next sample's picture of the same kind, or of any kind where there is none; None when
    all requests share one picture.

    Args:
        asks: all requests.
        at: index of the query.
    """
    query = asks[at]
    others = [one for one in (*asks[at + 1 :], *asks[:at]) if sample_of(one) != sample_of(query)]
    matched = [one for one in others if one.subject == query.subject]
    if not others:
        return None
    donor = (matched or others)[0].image.convert("RGB")
    return donor.resize(query.image.size)


def sample_of(ask: Ask) -> str:
    """Name of the sample that a request is a turn of; its turns share a picture."""
    return ask.name.rpartition("/")[0]


def read_answer(
    target: HuggingFaceTarget, messages: Any, picture: Image.Image, answer: Ints
) -> Iterator[tuple[int, TargetOut]]:
    """What the target says after every token of a given answer, under a given picture.

    Args:
        target: the model.
        messages: the chat up to the answer.
        picture: what it is about.
        answer: [n] ids.

    Yields:
        Index of a pass's first token and the pass: row and logits j belong to token index + j.
        Logits are valid until the next one.
    """
    state, _ = target.prefill(target.prepare(messages, [picture]), Needs())
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

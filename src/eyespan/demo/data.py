"""Training batches: the same stream for the same seed, whatever step a run is resumed at."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from eyespan.demo.dense import NOTHING, DenseLabels, Labeller
from eyespan.demo.generator import training_sample
from eyespan.demo.guide import NOWHERE, places
from eyespan.demo.model import PATCHES
from eyespan.demo.samples import Kind, Sample
from eyespan.demo.tokenizer import ASSISTANT, END, IMAGE, USER

SORT_WINDOW = 8  # batches sorted by length together, so that little is padding


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded on the right: under a causal mask nothing before the padding sees it."""

    pixels: Tensor  # [B, 3, SIDE, SIDE] in -1..1
    ids: Tensor  # [B, L]
    targets: Tensor  # [B, L] the token each position must predict; NOTHING outside answers
    positions: Tensor  # [B, L]
    visible: Tensor  # [B, 1, L, L] True where the query (third axis) may look
    sources: Tensor  # [B, L] patch on which an answer's token stands, or NOWHERE
    subjects: tuple[Kind, ...]
    dense: DenseLabels


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded sample; tokens see segment 0 (the picture, or a whole dialog) and their own."""

    sample: Sample
    ids: list[int]
    targets: list[int]
    positions: list[int]
    segments: list[int]
    sources: list[int]


def to_pixels(samples: list[Sample]) -> Tensor:
    """What the shipped image processor makes of the pictures: [B, 3, SIDE, SIDE] in -1..1."""
    stack = np.stack([np.asarray(sample.image) for sample in samples])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).float() / 127.5 - 1


class Encoder:
    """Writes a sample as the chat template does, with the answers as targets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        vocab: dict[str, int] = tokenizer.get_vocab()
        self._special = {token: vocab[token] for token in (ASSISTANT, END, IMAGE, USER)}

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def __call__(self, sample: Sample, *, with_image: bool = True, apart: bool = False) -> Row:
        """Encode the turns as one dialog, or `apart`: as so many first questions on one picture."""
        user, assistant, end = (self._special[token] for token in (USER, ASSISTANT, END))
        ids = [user, *([self._special[IMAGE]] * PATCHES if with_image else [])]
        prefix = len(ids)
        row = Row(
            sample, ids, [NOTHING] * prefix, list(range(prefix)), [0] * prefix, [NOWHERE] * prefix
        )
        for index, turn in enumerate(sample.turns):
            again = [user] if index and not apart else []
            prompt = [*again, *self._encode(turn.question), end, assistant]
            written = self._tokenizer.encode(turn.answer, add_special_tokens=False)
            answer = [*written.ids, end]
            sources = places(turn, sample.page, written.offsets)
            first = prefix if apart else len(ids)
            row.positions.extend(range(first, first + len(prompt) + len(answer)))
            row.segments.extend([index + 1 if apart else 0] * (len(prompt) + len(answer)))
            ids += prompt + answer
            row.sources.extend([NOWHERE] * len(prompt) + sources + [NOWHERE])
            row.targets.extend([NOTHING] * (len(prompt) - 1) + answer + [NOTHING])
        return row


def batches(
    tokenizer: Tokenizer,
    *,
    seed: int,
    start: int,
    size: int,
    weights: dict[Kind, float],
    with_image: bool = True,
    word_pages: float = 0.0,
    by_length: bool = True,
) -> Iterator[Batch]:
    """Endless batches of `size` from batch number `start` on."""
    encoder, labeller = Encoder(tokenizer), Labeller(tokenizer)
    span = SORT_WINDOW * size
    window = start // SORT_WINDOW
    skip = start % SORT_WINDOW
    while True:
        rows = []
        for index in range(window * span, (window + 1) * span):
            apart = index % 3 != 0
            sample = training_sample(seed, index, weights, apart=apart, word_pages=word_pages)
            rows.append(encoder(sample, with_image=with_image, apart=apart))
        if by_length:
            rows.sort(key=lambda row: len(row.ids))
        groups = [rows[index : index + size] for index in range(0, span, size)]
        random.Random(f"{seed}/{window}").shuffle(groups)
        for group in groups[skip:]:
            yield collate(group, labeller)
        window, skip = window + 1, 0


def collate(rows: list[Row], labeller: Labeller) -> Batch:
    """Pad rows to one length; no token sees past itself or into another segment."""
    length = max(len(row.ids) for row in rows)
    samples = [row.sample for row in rows]

    def padded(lists: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([values + [fill] * (length - len(values)) for values in lists])

    segments = padded([row.segments for row in rows], 0)
    seen = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    return Batch(
        pixels=to_pixels(samples),
        ids=padded([row.ids for row in rows], 0),
        targets=padded([row.targets for row in rows], NOTHING),
        positions=padded([row.positions for row in rows], 0),
        visible=(seen & torch.ones(length, length, dtype=torch.bool).tril())[:, None],
        sources=padded([row.sources for row in rows], NOWHERE),
        subjects=tuple(sample.subject for sample in samples),
        dense=labeller([sample.page for sample in samples]),
    )

"""Twin of cpp/src/memory_rows, context and memory: rows in dicts, keys as tuples of tokens."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

ROW_SIZE = 8


class Row(NamedTuple):
    """The target's best tokens at one position."""

    ids: tuple[int, ...]
    probs: tuple[float, ...]
    confidence: float


def make_row(ids: Sequence[int], logits: Sequence[float]) -> Row | None:
    """Softmax over just the best 8 logits; None when nothing finite can be said."""
    best = [int(token) for token in ids[:ROW_SIZE]]
    if -1 in best:
        best = best[: best.index(-1)]
    values = [float(logit) for logit in logits[: len(best)]]
    if not best or any(math.isnan(value) for value in values) or math.isinf(max(values)):
        return None
    highest = max(values)
    weights = [math.exp(value - highest) for value in values]
    total = 0.0
    for weight in weights:
        total += weight
    probs = [weight / total for weight in weights]
    entropy = math.log(total)
    for p, value in zip(probs, values, strict=True):
        if p > 0.0:
            entropy -= p * (value - highest)
    confidence = min(1.0, math.exp(-entropy))
    return Row(
        tuple(best), tuple(float(np.float32(p)) for p in probs), float(np.float32(confidence))
    )


class RowMap:
    """Rows by key in order of writing, the oldest first out."""

    def __init__(self, order: int, max_rows: int) -> None:
        self.order, self.max_rows = order, max_rows
        self.rows: OrderedDict[tuple[int, ...], Row] = OrderedDict()
        self.written: set[tuple[int, ...]] = set()  # by the open pass

    def begin_pass(self) -> None:
        self.written = set()

    def put_first(self, key: tuple[int, ...], row: Row) -> None:
        """Write unless the open pass has written this key and it is still there."""
        assert len(key) == self.order
        if key in self.written and key in self.rows:
            return
        if key not in self.rows and len(self.rows) == self.max_rows:
            self.rows.popitem(last=False)
        self.rows[key] = row
        self.rows.move_to_end(key)
        self.written.add(key)

    def put(self, key: tuple[int, ...], row: Row) -> None:
        self.begin_pass()
        self.put_first(key, row)

    def clear(self) -> None:
        self.rows.clear()


def text_before(history: Sequence[int], media: frozenset[int]) -> tuple[int, ...]:
    """The last four text tokens at most; media break the text."""
    known: list[int] = []
    for token in reversed(history):
        if token in media or len(known) == 4:
            break
        known.insert(0, token)
    return tuple(known)


def keys_of(history: Sequence[int], media: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """The keys of a history, of order 1 to 4 as far as its text goes."""
    known = text_before(history, media)
    for order in range(1, len(known) + 1):
        yield known[-order:]


class Memory:
    """U, C, G and a map of order 4; all but U may be missing."""

    def __init__(
        self, u: RowMap, c: RowMap | None, g: RowMap | None, fourth: RowMap | None = None
    ) -> None:
        self.maps = [m for m in (u, c, g, fourth) if m is not None]

    def _write(
        self, history: Sequence[int], row: Row | None, media: frozenset[int], highest: int
    ) -> None:
        if row is None:
            return
        for key in keys_of(history, media):
            for rows in self.maps:
                if rows.order == len(key) <= highest:
                    rows.put_first(key, row)

    def seed(
        self,
        prompt: Sequence[int],
        rows: Sequence[tuple[int, Sequence[int], Sequence[float]]],
        media: frozenset[int],
        *,
        contexts: bool = False,
    ) -> None:
        """The first occurrence of each text token writes U (longer keys with `contexts`)."""
        for each in self.maps:
            each.begin_pass()
        for position, ids, logits in rows:
            self._write(
                prompt[: position + 1], make_row(ids, logits), media, highest=4 if contexts else 1
            )

    def refresh(
        self,
        history: Sequence[int],
        tokens: Sequence[int],
        parents: Sequence[int],
        rows: Sequence[tuple[Sequence[int], Sequence[float]]],
        media: frozenset[int],
    ) -> None:
        """Every node writes its row under its own path; the first occurrence of a key wins."""
        for each in self.maps:
            each.begin_pass()
        paths: list[list[int]] = []
        for token, parent, (ids, logits) in zip(tokens, parents, rows, strict=True):
            paths.append([*(history if parent < 0 else paths[parent]), token])
            self._write(paths[-1], make_row(ids, logits), media, highest=4)

    def find(self, history: Sequence[int], media: frozenset[int]) -> list[Row]:
        """The available rows, most specific first."""
        found = []
        for key in keys_of(history, media):
            for rows in self.maps:
                if rows.order == len(key) and key in rows.rows:
                    found.insert(0, rows.rows[key])
        return found

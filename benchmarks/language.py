"""A made-up target for measuring host work: words follow Zipf's law, what comes next depends on the
last two tokens, and phrases recur. Rows are computed in bulk and cost no model.
"""

from __future__ import annotations

import numpy as np

from eyespan.types import ROW_SIZE, Floats, Ints

_MIX = np.uint64(0x9E3779B97F4A7C15)


class Language:
    """Rows for contexts of two tokens.

    Args:
        vocab_size: ids.
        seed: of the choices in `sample`.
    """

    def __init__(self, vocab_size: int, seed: int = 7) -> None:
        self.vocab_size = vocab_size
        self._rng = np.random.default_rng(seed)
        self._words = self._rng.permutation(vocab_size).astype(np.int32)

    def words(self, n: int) -> Ints:
        """[n] words drawn by Zipf's law."""
        ranks = self._rng.zipf(1.2, n) - 1
        return self._words[np.minimum(ranks, self.vocab_size - 1)]

    def rows(self, before: Ints, last: Ints) -> tuple[Ints, Floats]:
        """[n, 8] ids and logits after the token pairs (before, last)."""
        # Half of a row depends on the last token alone, half on both: what short keys miss.
        columns = np.arange(ROW_SIZE, dtype=np.uint64)
        wide = np.where(columns % 2 == 0, before[:, None].astype(np.uint64) + np.uint64(1), 0)
        hashed = (
            (last[:, None].astype(np.uint64) << np.uint64(24)) ^ (wide << np.uint64(3)) ^ columns
        )
        hashed *= _MIX
        hashed = (hashed ^ (hashed >> np.uint64(29))) * _MIX
        uniform = ((hashed >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53
        ranks = np.minimum(uniform ** (-1 / 0.6), self.vocab_size).astype(np.int64) - 1
        ids = self._words[(ranks + columns.astype(np.int64)) % self.vocab_size]
        for i in range(1, ROW_SIZE):  # ids of a row differ
            while (same := (ids[:, :i] == ids[:, i : i + 1]).any(axis=1)).any():
                ids[same, i] = (ids[same, i] + 1) % self.vocab_size
        peaked = 1 + 3 * (hashed[:, :1] >> np.uint64(40)).astype(np.float64) / 2.0**24
        logits = -peaked * np.log1p(columns.astype(np.float64))
        return ids.astype(np.int32), logits.astype(np.float32)

    def sample(self, ids: Ints, logits: Floats) -> int:
        """One token of a row [8]."""
        weights = np.exp(logits.astype(np.float64))
        place = np.searchsorted(np.cumsum(weights), self._rng.random() * weights.sum())
        return int(ids[min(int(place), ROW_SIZE - 1)])

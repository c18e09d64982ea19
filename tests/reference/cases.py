"""Random histories, rows and trees over a small vocabulary: many collisions, media ids and ties.

Tests draw a seed and a few sizes with hypothesis and fill in the bulk from here, which is fast.
"""

from __future__ import annotations

import random

import numpy as np

VOCAB = 12
MEDIA = frozenset({10, 11})
EOS = frozenset({9})

Row = tuple[list[int], list[float]]


def tokens(rng: random.Random, n: int) -> list[int]:
    """A history; a sixth of its tokens are media."""
    return [rng.randrange(VOCAB) for _ in range(n)]


def row(rng: random.Random, n: int = 8) -> Row:
    """A target's best ids and logits: descending, ties by the lower id, often tied."""
    values = rng.choice([[-3.0, 0.0, 0.5, 1.25, 7.0], [0.0], [rng.gauss(0, 4) for _ in range(9)]])
    pairs = [
        (token, float(np.float32(rng.choice(values)))) for token in rng.sample(range(VOCAB), n)
    ]
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return [token for token, _ in pairs], [logit for _, logit in pairs]


def tree(rng: random.Random, n: int) -> tuple[list[int], list[int]]:
    """A packed tree of n nodes: tokens and parents, root first."""
    return tokens(rng, n), [-1, *(rng.randrange(i) for i in range(1, n))]


def ints(values: object) -> np.ndarray:
    """An int32 array."""
    return np.array(values, np.int32)


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """[n, 8] ids and logits."""
    ids = np.array([ids for ids, _ in rows], np.int32).reshape(-1, 8)
    return ids, np.array([logits for _, logits in rows], np.float32).reshape(-1, 8)

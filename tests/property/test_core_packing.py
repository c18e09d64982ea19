"""Packing against its twin, and what every pack promises a forward."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference import packing
from tests.reference.cases import ints


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 127),
    reach=st.integers(1, 20),
    scored=st.booleans(),
)
def test_a_pack_is_its_twins(seed: int, n: int, reach: int, scored: bool) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(9) for _ in range(n)]
    parents = [rng.randint(max(-1, i - reach), i - 1) for i in range(n)]
    scores = [rng.choice([0.0, 0.25, 0.5, rng.random()]) for _ in range(n)]
    column = np.array(scores, np.float32) if scored else None
    core = _core.pack(ints(tokens), ints(parents), column, 77)
    twin = packing.pack(tokens, parents, None if column is None else column.tolist(), 77)

    for mine, theirs in zip((*core[:3], core[4]), (*twin[:3], twin.order), strict=True):
        assert mine.tolist() == theirs
        assert mine.dtype == np.int32
    words = core[3]
    assert words.shape == (n + 1, 2)
    assert words.dtype == np.uint64
    for bits, above in zip(words.tolist(), twin.ancestors, strict=True):
        assert bits[0] | bits[1] << 64 == sum(1 << node for node in above)


def test_the_likeliest_chain_is_contiguous() -> None:
    parents = ints([-1, -1, 0, 1, 3])
    scores = np.array([0.2, 0.6, 0.1, 0.5, 0.4], np.float32)
    tokens, packed_parents, depths, _, order = _core.pack(ints(range(5)), parents, scores, 9)
    assert tokens.tolist() == [9, 1, 3, 4, 0, 2]
    assert packed_parents.tolist() == [-1, 0, 1, 2, 0, 4]
    assert depths.tolist() == [0, 1, 2, 3, 1, 2]
    assert order.tolist() == [1, 3, 4, 0, 2]


@pytest.mark.parametrize(
    ("tokens", "parents", "scores", "why"),
    [
        ([1, 2], [-1], None, "2 tokens has 1 parents"),
        ([1, 2], [-1, 0], [0.5], "1 scores"),
        ([1, 2], [1, -1], None, "node 0 of a draft tree has parent 1"),
        ([1, 2], [-1, 1], None, "node 1 of a draft tree has parent 1"),
        ([1, 2], [-1, -2], None, "parent -2"),
        ([1, 2], [-1, 0], [0.5, float("nan")], "not a number"),
        ([1] * 128, [-1] * 128, None, "128 nodes"),
    ],
)
def test_a_malformed_tree_is_refused(
    tokens: list[int], parents: list[int], scores: list[float] | None, why: str
) -> None:
    column = None if scores is None else np.array(scores, np.float32)
    with pytest.raises(ValueError, match=why):
        _core.pack(ints(tokens), ints(parents), column, 0)

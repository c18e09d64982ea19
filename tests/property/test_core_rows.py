"""Prediction rows, the row map and the memory of a request against their twins."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference import cases
from tests.reference import rows as twin
from tests.reference.cases import MEDIA, VOCAB, ints

NO_MEDIA = _core.TokenSet(VOCAB, [])
MEDIA_SET = _core.TokenSet(VOCAB, sorted(MEDIA))


def content(core: _core.RowMap) -> list[tuple[int, list[int], list[float], float]]:
    """Rows in order of writing."""
    keys, ids, probs, confidences = core.export_rows()
    return list(zip(keys.tolist(), ids.tolist(), probs.tolist(), confidences.tolist(), strict=True))


def twin_content(reference: twin.RowMap) -> list[tuple[int, list[int], list[float], float]]:
    return [
        (
            sum(token << (21 * i) for i, token in enumerate(reversed(key))),
            [*row.ids, *[-1] * (8 - len(row.ids))],
            [*row.probs, *[0.0] * (8 - len(row.probs))],
            row.confidence,
        )
        for key, row in reference.rows.items()
    ]


def assert_same(core: _core.RowMap, reference: twin.RowMap) -> None:
    assert core.check_integrity() == ""
    assert content(core) == twin_content(reference)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 8))
def test_a_row_is_the_softmax_of_its_logits_and_how_concentrated_it_is(seed: int, n: int) -> None:
    ids, logits = cases.row(random.Random(seed), n)
    core = _core.RowMap(order=1, max_rows=1)
    assert core.put([3], ints(ids), np.array(logits, np.float32))
    found = core.get([3])
    expected = twin.make_row(ids, logits)
    assert found is not None
    assert expected is not None
    n = len(expected.ids)
    assert found[0].tolist() == [*expected.ids, *[-1] * (8 - n)]
    assert found[1].tolist() == [*expected.probs, *[0.0] * (8 - n)]
    assert found[2] == expected.confidence
    assert 1 / 8 - 1e-6 <= found[2] <= 1


def test_a_row_that_is_not_finite_is_not_written() -> None:
    core = _core.RowMap(order=1, max_rows=4)
    ids = np.arange(3, dtype=np.int32)
    for logits in ([np.nan, 1, 0], [np.inf, 1, 0], [1, np.nan, 0], [-np.inf] * 3):
        assert not core.put([1], ids, np.array(logits, np.float32))
        assert twin.make_row(ids.tolist(), logits) is None
    assert len(core) == 0
    assert core.put([1], ids, np.array([1, 0, -np.inf], np.float32))
    assert core.put([1], np.array([4, -1, -1], np.int32), np.array([1, 0, 0], np.float32))
    found = core.get([1])
    assert found is not None
    assert found[0].tolist() == [4] + [-1] * 7
    assert found[2] == 1.0


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    order=st.integers(1, 3),
    max_rows=st.integers(1, 40),
    steps=st.lists(st.sampled_from(["put"] * 8 + ["clear", "round trip"]), max_size=60),
)
def test_a_row_map_is_a_dict_that_forgets_the_least_recently_written(
    seed: int, order: int, max_rows: int, steps: list[str]
) -> None:
    rng = random.Random(seed)
    core, reference = _core.RowMap(order=order, max_rows=max_rows), twin.RowMap(order, max_rows)
    for step in steps:
        if step == "put":
            key = [rng.randrange(5) for _ in range(order)]
            ids, logits = cases.row(rng, rng.randint(1, 8))
            core.put(key, ints(ids), np.array(logits, np.float32))
            row = twin.make_row(ids, logits)
            assert row is not None
            reference.put(tuple(key), row)
        elif step == "clear":
            core.clear()
            reference.clear()
        else:
            exported = core.export_rows()
            core = _core.RowMap(order=order, max_rows=max_rows)
            core.import_rows(*exported)
        assert_same(core, reference)
    for a in range(5):
        assert (core.get([a] * order) is None) == ((a,) * order not in reference.rows)


def test_growth_clears_and_wrapped_stamps_lose_nothing() -> None:
    core, reference = _core.RowMap(order=1, max_rows=3000), twin.RowMap(1, 3000)
    ids, logits = np.arange(8, dtype=np.int32), np.zeros(8, np.float32)
    row = twin.make_row(ids.tolist(), logits.tolist())
    assert row is not None
    for token in range(0, 14_000, 3):
        core.put([token], ids, logits)
        reference.put((token,), row)
    assert_same(core, reference)
    for _ in range(70_000):  # past the 2^16 epochs of the slot table
        core.clear()
    reference.clear()
    core.put([7], ids, logits)
    reference.put((7,), row)
    assert_same(core, reference)


def test_a_full_vocabulary_fits_16_mebibytes() -> None:
    core = _core.RowMap(order=1, max_rows=152_064)
    ids, logits = np.arange(8, dtype=np.int32), np.zeros(8, np.float32)
    for token in range(152_064):
        core.put([token], ids, logits)
    assert len(core) == 152_064
    assert core.nbytes <= 16 * 2**20


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("key stands twice", lambda k, i, p, c: (np.repeat(k[:1], len(k)), i, p, c)),
        ("bits", lambda k, i, p, c: (k + (1 << 21), i, p, c)),
        ("an id", lambda k, i, p, c: (k, np.where(i == 3, -2, i), p, c)),
        ("an id stands twice", lambda k, i, p, c: (k, i * 0, p, c)),
        ("sum to 1", lambda k, i, p, c: (k, i, p * np.float32(0.5), c)),
        ("probability", lambda k, i, p, c: (k, i, p * np.float32(np.nan), c)),
        ("confidence", lambda k, i, p, c: (k, i, p, c * 0)),
        ("one key", lambda k, i, p, c: (k[1:], i, p, c)),
    ],
)
def test_an_import_that_breaks_a_rule_changes_nothing(name: str, spoil: object) -> None:
    core = _core.RowMap(order=1, max_rows=9)
    for token in (4, 2, 8):
        core.put([token], np.arange(8, dtype=np.int32), np.arange(8, 0, -1).astype(np.float32))
    before = content(core)
    with pytest.raises(ValueError, match=name):
        core.import_rows(*spoil(*core.export_rows()))  # type: ignore[operator]
    assert content(core) == before
    assert core.check_integrity() == ""


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), max_rows=st.integers(1, 60), contexts=st.booleans())
def test_a_memory_seeds_and_refreshes_like_its_twin(
    seed: int, max_rows: int, contexts: bool
) -> None:
    rng = random.Random(seed)
    core = [_core.RowMap(order=i, max_rows=max_rows) for i in (1, 2, 3)]
    reference = [twin.RowMap(i, max_rows) for i in (1, 2, 3)]
    memory, twin_memory = _core.Memory(*core), twin.Memory(*reference)
    prompt = cases.tokens(rng, rng.randrange(20))
    at = [i for i in range(len(prompt)) if rng.random() < 0.7]
    rows = [cases.row(rng) for _ in at]
    memory.seed(ints(prompt), ints(at), *cases.columns(rows), MEDIA_SET, contexts=contexts)
    seeds = [(i, *row) for i, row in zip(at, rows, strict=True)]
    twin_memory.seed(prompt, seeds, MEDIA, contexts=contexts)
    for _ in range(4):
        tokens, parents = cases.tree(rng, rng.randint(1, 20))
        rows = [cases.row(rng) for _ in tokens]
        history = cases.tokens(rng, rng.randrange(4))
        memory.refresh(ints(history), ints(tokens), ints(parents), *cases.columns(rows), MEDIA_SET)
        twin_memory.refresh(history, tokens, parents, rows, MEDIA)
        for mine, theirs in zip(core, reference, strict=True):
            assert_same(mine, theirs)
    for key in [key for each in reference for key in each.rows]:
        assert not MEDIA & set(key)


def test_malformed_calls_are_refused() -> None:
    u = _core.RowMap(order=1, max_rows=4)
    memory = _core.Memory(u)
    ids, logits = np.zeros((2, 8), np.int32), np.zeros((2, 8), np.float32)
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="expected 1 rows, got 2"):
        memory.seed(two, one, ids, logits, NO_MEDIA)
    with pytest.raises(ValueError, match="position 5 is outside a prompt of 2"):
        memory.seed(two, one + 5, ids[:1], logits[:1], NO_MEDIA)
    with pytest.raises(ValueError, match="root first"):
        memory.refresh(two, two, two, ids, logits, NO_MEDIA)
    with pytest.raises(ValueError, match="does not come before it"):
        memory.refresh(two, two, np.array([-1, 1], np.int32), ids, logits, NO_MEDIA)
    with pytest.raises(ValueError, match=r"\[0, 2\^21\)"):
        memory.refresh(two, two - 1, np.array([-1, 0], np.int32), ids, logits, NO_MEDIA)
    with pytest.raises(ValueError, match="order 2, got 1"):
        _core.Memory(u, u)
    with pytest.raises(ValueError, match="order"):
        _core.RowMap(order=5, max_rows=4)
    with pytest.raises(ValueError, match="max_rows"):
        _core.RowMap(order=1, max_rows=0)
    with pytest.raises(ValueError, match=r"2\^21"):
        _core.TokenSet(VOCAB, [1 << 21])
    assert len(u) == 0

"""Fusion, best-first search, the static tree and the suffix continuation against their twins."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference import cases, trees
from tests.reference import rows as twin
from tests.reference.cases import EOS, MEDIA, VOCAB, ints
from tests.reference.fusion import fuse
from tests.reference.recap import PATHS, SHAPE

MEDIA_SET = _core.TokenSet(VOCAB, sorted(MEDIA))
EOS_SET = _core.TokenSet(VOCAB, sorted(EOS))
RULES = ["entropy", "fixed_prior", "no_prior", "uniform", "gate", "backoff"]
PRIORS = [(0.70, 0.20, 0.10), (0.55, 0.30, 0.15), (0.5, 0.5, 0.5)]
ETA = [(0.68, 0.63, 0.50, 0.43, 0.40, 0.38), (1.0,), (0.5, 1.0)]


def memories(rng: random.Random, orders: int) -> tuple[_core.Memory, twin.Memory]:
    """The same random content twice."""
    core = [_core.RowMap(order=i, max_rows=999) for i in range(1, orders + 1)]
    reference = [twin.RowMap(i, 999) for i in range(1, orders + 1)]
    for mine, theirs in zip(core, reference, strict=True):
        for _ in range(rng.choice([0, 9, 20, 20]) * mine.order**3):
            key = [rng.randrange(VOCAB - len(MEDIA)) for _ in range(mine.order)]
            ids, logits = cases.row(rng, rng.randint(1, 8))
            mine.put(key, ints(ids), np.array(logits, np.float32))
            theirs.put(tuple(key), twin.make_row(ids, logits))  # type: ignore[arg-type]
    padded: list[Any] = [*reference, None, None]
    return _core.Memory(*core), twin.Memory(*padded[:3])


def expected_tree(
    memory: twin.Memory,
    history: list[int],
    *,
    budget: int,
    shape: list[int],
    chain: list[int],
    mass: float,
    inside: bool,
    width: int,
    depth: int,
    eta: tuple[float, ...],
    fusion: str,
    priors: tuple[float, ...],
) -> list[trees.Node]:
    def expand(path: tuple[int, ...]) -> list[tuple[int, float]]:
        fused = fuse(memory.find([*history, *path], MEDIA), fusion, priors)
        return [item for item in fused if item[0] not in MEDIA][:width]

    if shape:
        nodes = trees.static(expand, shape, eta=eta, budget=budget, depth=depth, eos=EOS)
    else:
        nodes = trees.best_first(expand, eta=eta, budget=budget, depth=depth, eos=EOS)
    return trees.insert_chain(nodes, chain, mass, eta=eta, eos=EOS, cap=budget if inside else None)


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**64))
def test_a_proposal_is_its_twins(seed: int) -> None:
    rng = random.Random(seed)
    memory, reference = memories(rng, rng.choice([1, 2, 3, 3, 3]))
    rules: dict[str, Any] = {
        "width": rng.choice([8, 8, rng.randint(1, 7)]),
        "depth": rng.choice([10, rng.randint(1, 9)]),
        "eta": rng.choice(ETA),
        "fusion": rng.choice(RULES),
        "priors": rng.choice(PRIORS),
    }
    budget = rng.choice([63, rng.randint(0, 62)])
    shape = rng.choice([[], [], SHAPE])
    inside = rng.random() < 0.3
    history = cases.tokens(rng, rng.randrange(5)) + [rng.randrange(9) for _ in range(3)]
    history = history[: rng.randint(2, len(history))]
    chain = [token for token in cases.tokens(rng, rng.randrange(7)) if token not in MEDIA]
    mass = rng.choice([0.5, 0.75, 1.0])
    tokens, parents, scores, origins = memory.propose(
        ints(history),
        _core.ProposeRules(
            shape=shape,
            suffix_inside_budget=inside,
            **{**rules, "fusion": _core.Fusion[rules["fusion"]]},
        ),
        budget,
        MEDIA_SET,
        EOS_SET,
        continuation=ints(chain),
        continuation_mass=mass,
    )
    nodes = expected_tree(
        reference,
        history,
        budget=budget,
        shape=shape,
        chain=chain,
        mass=mass,
        inside=inside,
        **rules,
    )
    assert tokens.tolist() == [node.token for node in nodes]
    assert parents.tolist() == [node.parent for node in nodes]
    assert scores.tolist() == [float(np.float32(node.score)) for node in nodes]
    assert origins.tolist() == [node.origin for node in nodes]
    assert len(nodes) <= budget + (0 if inside else len(chain))
    assert not MEDIA & set(tokens.tolist())
    assert not any(parent >= 0 and tokens[parent] in EOS for parent in parents)


def test_the_published_static_tree_is_written_down_right() -> None:
    assert _core.token_recycling_shape() == SHAPE
    assert len(PATHS) == len(set(PATHS)) == 80
    assert all(path[:-1] in ["", *PATHS] for path in PATHS)
    assert [sum(len(path) == depth for path in PATHS) for depth in range(1, 7)] == [
        8, 21, 25, 15, 8, 3,
    ]  # fmt: skip


def full_memory() -> _core.Memory:
    """U alone, every token followed by 0..7 with falling probability."""
    u = _core.RowMap(order=1, max_rows=99)
    for token in range(8):
        u.put([token], ints(range(8)), np.arange(8, 0, -1).astype(np.float32))
    return _core.Memory(u)


def test_the_static_tree_fills_its_shape_level_by_level() -> None:
    for budget in (5, 63, 80, 123):
        tokens, parents, _, _ = full_memory().propose(
            ints([0]),
            _core.ProposeRules(shape=SHAPE),
            budget,
            _core.TokenSet(8, []),
            _core.TokenSet(8, []),
        )
        paths: list[str] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append(("" if parent < 0 else paths[parent]) + str(token))
        assert paths == PATHS[:budget]


def test_fallback_rows_stand_in_at_the_root_alone() -> None:
    memory, none = full_memory(), _core.TokenSet(9, [])
    rules = _core.ProposeRules(depth=2)
    rows = ints([[8, 3], [3, 1]]), np.array([[1, 0], [2, 0]], np.float32)

    def roots(history: list[int], **fallback: Any) -> list[int]:
        tokens, parents, _, _ = memory.propose(ints(history), rules, 63, none, none, **fallback)
        return [int(t) for t, parent in zip(tokens, parents, strict=True) if parent < 0]

    assert roots([8]) == []
    assert not memory.has_row(ints([8]), none)
    first, second = (
        [float(np.exp(v)) for v in values] / np.sum(np.exp(values)) for values in rows[1]
    )
    mass = {8: 7 * first[0], 3: 7 * first[1] + 2 * second[0], 1: 2 * second[1]}  # priors 0.7, 0.2
    expected = sorted(mass, key=lambda token: -mass[token])
    assert roots([8], fallback_ids=rows[0], fallback_logits=rows[1]) == expected
    assert memory.has_row(ints([8, 2]), none)
    assert roots([8, 2], fallback_ids=rows[0], fallback_logits=rows[1]) == list(range(8))


def test_wrong_rules_and_budgets_are_refused() -> None:
    for wrong, why in [
        ({"width": 9}, "width"),
        ({"width": 0}, "width"),
        ({"depth": 22}, "depth"),
        ({"eta": []}, "depth priors"),
        ({"eta": [0.5, 1.5]}, "depth priors"),
        ({"priors": [0.7, 0.0, 0.1]}, "priors"),
        ({"shape": [2, 0]}, "describes 3 nodes"),
        ({"shape": [0, 1]}, "breadth first"),
    ]:
        with pytest.raises(ValueError, match=why):
            _core.ProposeRules(**wrong)  # type: ignore[arg-type]
    memory, none = full_memory(), _core.TokenSet(8, [])
    with pytest.raises(ValueError, match="127"):
        memory.propose(ints([0]), _core.ProposeRules(), 128, none, none)
    with pytest.raises(ValueError, match="127"):
        memory.propose(ints([0]), _core.ProposeRules(), 124, none, none, continuation=ints([1] * 4))

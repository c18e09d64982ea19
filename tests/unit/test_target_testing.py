"""The public test kit does what its users rely on."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.target import HuggingFaceTarget
from eyespan.testing import (
    VOCAB_SIZE,
    OracleDrafter,
    RandomDrafter,
    draft_trees,
    histories,
    packed,
    plain_answer,
    tiny_target,
)
from eyespan.types import DraftTree, Ints, Needs, Request


@lru_cache
def llama() -> HuggingFaceTarget:
    return tiny_target("llama")


def asked(ids: Ints) -> Request:
    return Request(
        id="r",
        prompt_ids=ids,
        media_ids=frozenset({0, 3}),
        eos_ids=frozenset({2}),
        max_new_tokens=9,
    )


@given(tree=draft_trees(), history=histories())
def test_strategies_make_packable_trees_and_token_ids(tree: DraftTree, history: Ints) -> None:
    pack = packed(tree, 7)
    assert sorted(pack.tokens.tolist()) == sorted([7, *tree.tokens.tolist()])
    assert history.dtype == np.int32
    assert 0 < len(history) <= 64
    assert history.max() < 8


@settings(deadline=None)
@given(history=histories(), budget=st.integers(0, 20), seed=st.integers(0, 9))
def test_the_random_drafter_repeats_itself_and_avoids_media(
    history: Ints, budget: int, seed: int
) -> None:
    session = RandomDrafter(VOCAB_SIZE, seed).begin(asked(history), None)  # type: ignore[arg-type]
    tree, again = session.propose(history, budget), session.propose(history, budget)
    assert len(tree) == budget
    assert tree.tokens.tolist() == again.tokens.tolist()
    assert not np.isin(tree.tokens, [0, 3]).any()


def test_the_oracle_proposes_the_answer_below_decoys() -> None:
    target = llama()
    prompt = target.prepare("Tell me.")
    answer = plain_answer(target, prompt, 20)
    drafter = OracleDrafter(target, [prompt], max_tokens=20, decoys=2)
    session = drafter.begin(asked(prompt.ids), target.prefill(prompt, Needs())[1])
    tree = session.propose(np.concatenate([prompt.ids, answer[:3]]), 9)
    assert len(tree) == 9
    assert tree.tokens[[2, 5, 8]].tolist() == answer[3:6].tolist()
    assert tree.parents.tolist() == [-1, -1, -1, 2, 2, 2, 5, 5, 5]
    elsewhere = np.concatenate([prompt.ids, answer[:2], answer[:1] + 1])
    assert len(session.propose(elsewhere, 9)) == 0

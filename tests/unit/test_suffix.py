"""SuffixDecoding: which text answers, how far, and what is remembered of finished requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.drafters import make_drafter
from eyespan.drafters.suffix import Suffix, SuffixConfig
from eyespan.errors import ConfigError
from eyespan.types import DraftTree, Step, TargetOut, Verdict
from tests.drafting import ints, open_session, packed_of, prefill_of, request_of
from tests.reference.counts import guess_suffix
from tests.reference.suffix import SuffixText

VOCAB = 64
IMAGE, END = 60, 63


def finish(session: Any, prefix: list[int], tokens: list[int], cut: str | None = "eos") -> None:
    """One round without a draft, the answer's last one."""
    tree = packed_of(DraftTree.empty(), prefix[-1])
    rows = np.arange(8, dtype=np.int32)[None]
    out = TargetOut(row_ids=rows, row_logits=-rows.astype(np.float32), logits=None)
    verdict = Verdict(ints([]), tokens[-1], tuple(tokens), cut)  # type: ignore[arg-type]
    session.observe(Step(ints(prefix), tree, out, verdict))


def test_a_match_of_p_tokens_gives_p_nodes() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    session = open_session(Suffix(vocab_size=VOCAB), [*text, 20, 2, 3])
    prefix = [*text, 20, 2, 3, 4]
    assert session.propose(ints(prefix), 63).tokens.tolist() == [5, 6, 7]
    assert session.propose(ints(prefix), 2).tokens.tolist() == [5, 6]
    wide = open_session(Suffix(vocab_size=VOCAB, max_spec_factor=2.0), [*text, 20, 2, 3])
    assert wide.propose(ints(prefix), 63).tokens.tolist() == [5, 6, 7, 8, 9, 10]


def test_tree_and_path() -> None:
    """After [1, 2] came 3 twice and 4 once; after those, 5, 6 and 7."""
    prompt = [1, 2, 3, 5, 0, 1, 2, 4, 7, 0, 1, 2, 3, 6, 0, 1]
    options = {"max_spec_factor": 2.0, "min_token_prob": 0.0}
    tree = open_session(Suffix(vocab_size=VOCAB, **options), prompt)
    draft = tree.propose(ints([*prompt, 2]), 63)
    # The match is [0, 1, 2], which came twice: 4 then 7, and 3 then 6.
    assert draft.tokens.tolist() == [3, 4, 6, 7, 0, 0]
    assert draft.parents.tolist() == [-1, -1, 0, 1, 2, 3]
    path = open_session(Suffix(vocab_size=VOCAB, shape="path", **options), prompt)
    draft = path.propose(ints([*prompt, 2]), 63)
    assert draft.tokens.tolist() == [3, 6, 0, 1]
    assert draft.parents.tolist() == [-1, 0, 1, 2]
    rare = open_session(Suffix(vocab_size=VOCAB, max_spec_factor=2.0, min_token_prob=0.6), prompt)
    # Half a chance is too little there; [1, 2] alone has 2/3 for 3.
    assert rare.propose(ints([*prompt, 2]), 63).tokens.tolist() == [3]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_proposals_are_the_slow_searchs(data: st.DataObject) -> None:
    symbols = st.lists(st.integers(0, 4), min_size=1, max_size=25)
    drafter = Suffix(vocab_size=5, max_tree_depth=6, max_spec_factor=2.0)
    rules = {
        "max_factor": 2.0, "max_offset": 0.0, "min_prob": 0.1, "max_depth": 6, "tree": True,
        "media": frozenset({4}), "eos": frozenset({3}), "budget": 11,
    }  # fmt: skip
    answers = SuffixText(999)
    for prompt, answer in data.draw(st.lists(st.tuples(symbols, symbols), max_size=4)):
        session = open_session(drafter, prompt, media=[4], eos=[3])
        own = SuffixText(999)
        own.extend(prompt, frozenset({4}))
        text = prompt
        for at, token in enumerate(answer):
            if at > 0:
                last = at == len(answer) - 1
                finish(session, text, [token], "length" if last else None)
                own.extend(answer[:2] if at == 1 else [token], frozenset({4}))
                if last:
                    break
            text = [*text, token]
            best = guess_suffix(own.text, text, **rules)  # type: ignore[arg-type]
            other = guess_suffix(answers.text, text, **rules)  # type: ignore[arg-type]
            if other[1] > best[1]:
                best = other
            tree = session.propose(ints(text), 63)
            got = list(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))
            assert got == [node[:2] for node in best[0]]
        if len(answer) > 1:
            answers.extend(answer, frozenset({4}))
            answers.barrier()


def test_finished_answers_are_known_to_their_scope_alone() -> None:
    drafter = Suffix(vocab_size=VOCAB)
    first = open_session(drafter, [1, 2], scope="a", eos=[END])
    finish(first, [1, 2, 10], [11], cut=None)
    assert not drafter.is_warm("a")  # not before it has ended
    finish(first, [1, 2, 10, 11], [12, END])
    assert drafter.is_warm("a")
    assert not drafter.is_warm("b")
    for scope, known in [("a", [11, 12]), ("b", []), (None, [])]:
        session = open_session(drafter, [5], scope=scope, eos=[END])
        tree = session.propose(ints([5, 10]), 63)
        assert tree.tokens.tolist() == known[:1]
        finish(session, [5, 10], [11], cut=None)
        tree = session.propose(ints([5, 10, 11]), 63)
        assert tree.tokens.tolist() == ([12, END] if known else [])
        assert tree.origins is not None
        assert [tree.origin_names[at] for at in tree.origins] == ["answers"] * len(tree)
    # A prompt is its request's own.
    assert len(open_session(drafter, [7], scope="a").propose(ints([7, 1]), 63)) == 0
    drafter.reset()
    assert not drafter.is_warm("a")


def test_answers_are_not_read_across_their_ends() -> None:
    drafter = Suffix(vocab_size=VOCAB, max_spec_factor=9.0)
    for answer in ([10, 11], [12, 13]):
        finish(open_session(drafter, [1]), [1, answer[0]], answer[1:])
    session = open_session(drafter, [1])
    assert session.propose(ints([1, 10]), 63).tokens.tolist() == [11]
    finish(session, [1, 10], [11], cut=None)
    assert len(session.propose(ints([1, 10, 11]), 63)) == 0


def test_a_reset_reaches_open_sessions() -> None:
    drafter = Suffix(vocab_size=VOCAB)
    finish(open_session(drafter, [1]), [1, 10], [11])
    session = open_session(drafter, [2])
    assert len(session.propose(ints([2, 10]), 63)) == 1
    drafter.reset()
    assert len(session.propose(ints([2, 10]), 63)) == 0


def test_without_global_answers_requests_share_nothing() -> None:
    drafter = Suffix(vocab_size=VOCAB, global_answers=False)
    finish(open_session(drafter, [1]), [1, 10], [11])
    assert len(open_session(drafter, [2]).propose(ints([2, 10]), 63)) == 0
    assert not drafter.is_warm(None)


def test_memory_is_bounded_and_the_recent_answers_stay() -> None:
    drafter = Suffix(vocab_size=VOCAB, max_global_tokens=64, max_scopes=2)
    for at in range(50):
        answer = [at % 40, 41 + at % 7, 50]
        finish(open_session(drafter, [1]), [1, answer[0]], answer[1:])
    store = drafter._answers.open(None)
    assert 0 < len(store) <= 64
    assert store.check_integrity() == ""
    assert open_session(drafter, [1]).propose(ints([1, 9]), 63).tokens.tolist() == [41 + 49 % 7]
    assert len(open_session(drafter, [1]).propose(ints([1, 20]), 63)) == 0  # forgotten
    for scope in "abc":
        finish(open_session(drafter, [1], scope=scope), [1, 2], [3])
    assert len(drafter._answers) == 2


def test_media_are_neither_matched_nor_drafted() -> None:
    session = open_session(Suffix(vocab_size=VOCAB), [1, 2, IMAGE, 3, 1], media=[IMAGE])
    assert len(session.propose(ints([1, 2, IMAGE, 3, 1, 2]), 63)) == 0
    assert len(session.propose(ints([1, 2, IMAGE, 3, 1, IMAGE]), 63)) == 0
    assert session.propose(ints([1, 2, IMAGE, 3, 1]), 63).tokens.tolist() == [2]


def test_a_prompt_longer_than_the_store_keeps_its_end() -> None:
    drafter = Suffix(vocab_size=VOCAB, max_local_tokens=50)
    prompt = [1, 2, 3, *[20, 21, 22, 23] * 100, 7, 8, 9]
    session = drafter.begin(request_of(prompt), prefill_of())
    assert session.propose(ints([*prompt, 7]), 63).tokens.tolist() == [8]
    assert len(session.propose(ints([*prompt, 1]), 63)) == 0


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("max_tree_depth", 1, "from 2 to 128"),
        ("max_spec_factor", -0.5, "from 0"),
        ("max_spec_factor", "1", "a number from 0"),
        ("max_spec_offset", float("nan"), "a number from"),
        ("max_spec_offset", -500.0, "enough for one node"),
        ("min_token_prob", 1.5, "from 0 to 1"),
        ("shape", "chain", "tree, path"),
        ("global_answers", 1, "true or false"),
        ("max_local_tokens", 1, "from 2"),
        ("max_global_tokens", True, "from 2"),
        ("max_scopes", 0, "from 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, range_: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("suffix", vocab_size=VOCAB, **{option: value})
    assert range_ in refused.value.needed
    assert f"'{option}'" in refused.value.asked


def test_sizes_and_json() -> None:
    assert Suffix(vocab_size=VOCAB).fixed_budget == 23
    assert SuffixConfig(max_spec_factor=50.0).most_nodes == 127
    drafter = Suffix(vocab_size=VOCAB, max_spec_factor=2, shape="path")
    config = json.loads(json.dumps(drafter.config_dict()))
    assert Suffix(vocab_size=VOCAB, **config).config == drafter.config

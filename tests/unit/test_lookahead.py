"""Lookahead: what is stored when, which counts decide, and what ends with a request."""

from __future__ import annotations

import json

import numpy as np
import pytest

from eyespan.drafters import make_drafter
from eyespan.drafters.lookahead import Lookahead, LookaheadSession
from eyespan.errors import ConfigError
from tests.drafting import ints, open_session, show
from tests.unit.test_suffix import finish

VOCAB = 64
IMAGE, END = 60, 63


def answers_of(drafter: Lookahead, scope: str | None = None) -> object:
    return drafter._answers.open(scope)


def test_the_prompt_is_known_at_once_but_for_its_first_token() -> None:
    drafter = Lookahead(vocab_size=VOCAB)
    session = open_session(drafter, [1, 2, 3, 4])
    assert session.propose(ints([1, 2, 3, 4, 2]), 63).tokens.tolist() == [3, 4]
    assert len(session.propose(ints([1, 2, 3, 4, 1]), 63)) == 0
    assert len(open_session(drafter, [9]).propose(ints([9, 2]), 63)) == 0  # and to nobody else


def test_two_tokens_are_looked_up_before_one() -> None:
    """Enough behind [8, 1] hides what followed 1 elsewhere; else the single token answers."""
    long = list(range(20, 32))
    prompt = [0, 1, 9, 9, 8, 1, *long]
    session = open_session(Lookahead(vocab_size=VOCAB), prompt)
    assert session.propose(ints([*prompt, 8, 1]), 63).tokens.tolist() == long[:11]
    one = session.propose(ints([*prompt, 7, 1]), 63)
    assert one.tokens[one.parents == -1].tolist() == [9, 20]
    short = open_session(Lookahead(vocab_size=VOCAB, max_query=1), prompt)
    assert short.propose(ints([*prompt, 8, 1]), 63).tokens.tolist() == one.tokens.tolist()


def test_an_answers_windows_are_stored_once_they_are_whole() -> None:
    drafter = Lookahead(vocab_size=VOCAB, branch_length=3)
    session = open_session(drafter, [1])
    store = drafter._answers.open(None)
    show(session, [1, 10], [11, 12])
    assert len(store) == 0
    show(session, [1, 10, 11, 12], [13])
    assert store.count([10, 11, 12, 13]) == 1
    assert store.count([11, 12]) == 0
    finish(session, [1, 10, 11, 12, 13], [14, END], cut="eos")
    assert store.count([11, 12, 13, 14]) == 1
    assert store.count([13, 14]) == 1
    assert store.count([1, 10]) == 0  # the prompt's last token begins no window of the answer
    assert store.check_integrity() == ""


def test_ends_cut_a_text_in_two() -> None:
    session = open_session(Lookahead(vocab_size=VOCAB), [0, 1, 2, END, 3, 4], eos=[END])
    assert session.propose(ints([0, 1, 2, END, 3, 4, 1]), 63).tokens.tolist() == [2]
    assert session.propose(ints([0, 1, 2, END, 3, 4, 3]), 63).tokens.tolist() == [4]


def test_the_prompts_counts_decide_and_end_with_the_request() -> None:
    drafter = Lookahead(vocab_size=VOCAB)
    for _ in range(3):
        finish(open_session(drafter, [9]), [9, 1], [5, 6], cut="length")
    session = open_session(drafter, [9, 1, 4, 9, 1, 4, 9, 1, 5])
    tree = session.propose(ints([9, 1, 4, 9, 1, 4, 9, 1, 5, 1]), 63)
    (_, five) = np.flatnonzero(tree.parents == -1)
    assert tree.tokens[tree.parents == -1].tolist() == [4, 5]
    assert tree.tokens[tree.parents == five].tolist() == [6]
    later = open_session(drafter, [9]).propose(ints([9, 1]), 63)
    assert later.tokens.tolist() == [5, 6]


def test_scopes_share_nothing_and_a_reset_forgets() -> None:
    drafter = Lookahead(vocab_size=VOCAB, max_scopes=2)
    finish(open_session(drafter, [9], scope="a"), [9, 1], [5], cut="length")
    assert drafter.is_warm("a")
    assert not drafter.is_warm("b")
    session = open_session(drafter, [9], scope="a")
    assert len(open_session(drafter, [9], scope="b").propose(ints([9, 1]), 63)) == 0
    assert len(session.propose(ints([9, 1]), 63)) == 1
    drafter.reset()
    assert len(session.propose(ints([9, 1]), 63)) == 0
    for scope in "abc":
        open_session(drafter, [9], scope=scope)
    assert len(drafter._answers) == 2


def test_a_squeeze_at_a_requests_end_drops_what_was_seen_once() -> None:
    drafter = Lookahead(vocab_size=VOCAB, trie_nodes=3, touched_tries=2, branch_length=2)
    store = drafter._answers.open(None)
    for answer in ([1, 2, 3], [1, 2, 4], [1, 5, 6]):
        finish(open_session(drafter, [9]), [9, answer[0]], answer[1:], cut="length")
    assert store.count([1, 2]) == 1.0  # seen twice, halved: the trie of 1 had 5 nodes
    assert store.count([1, 5]) == 0
    assert store.count([5, 6]) == 1  # a small trie is left alone


def test_stores_are_bounded() -> None:
    drafter = Lookahead(vocab_size=VOCAB, max_nodes=60, branch_length=4, max_prompt_tokens=8)
    for at in range(60):
        answer = [(at * 7 + i * at) % 50 for i in range(9)]
        finish(open_session(drafter, [9]), [9, answer[0]], answer[1:], cut="length")
        store = drafter._answers.open(None)
        assert len(store) <= 60
        assert store.check_integrity() == ""
    session = open_session(drafter, [0, 1, 2, *range(10, 50)])
    assert isinstance(session, LookaheadSession)
    assert len(session._prompt) <= 8 * 5
    assert len(session.propose(ints([0, 1, 2, *range(10, 50), 1]), 63)) == 0
    assert len(session.propose(ints([0, 1, 2, *range(10, 50), 44]), 63)) > 0


def test_media_are_neither_stored_nor_drafted() -> None:
    prompt = [0, 1, 2, IMAGE, IMAGE, 3, 4]
    session = open_session(Lookahead(vocab_size=VOCAB), prompt, media=[IMAGE])
    assert session.propose(ints([*prompt, 1]), 63).tokens.tolist() == [2]
    assert len(session.propose(ints([*prompt, 2]), 63)) == 0
    assert len(session.propose(ints([*prompt, IMAGE]), 63)) == 0


def test_budgets_cut_depth_first() -> None:
    session = open_session(Lookahead(vocab_size=VOCAB), [0, 1, 2, 3, 1, 4, 1, 4])
    prefix = ints([0, 1, 2, 3, 1, 4, 1, 4, 1])
    whole = session.propose(prefix, 63)
    assert whole.tokens[:2].tolist() == [4, 1]
    for budget in range(len(whole)):
        part = session.propose(prefix, budget)
        assert part.tokens.tolist() == whole.tokens[:budget].tolist()


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("decoding_length", 1, "from 2 to 128"),
        ("branch_length", 0, "from 1 to 64"),
        ("max_query", 0, "from 1"),
        ("trie_nodes", 0, "from 1"),
        ("touched_tries", 1.5, "from 1"),
        ("max_nodes", 25, "room for two windows"),
        ("max_prompt_tokens", 0, "from 1"),
        ("max_scopes", 0, "from 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, range_: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("lookahead", vocab_size=VOCAB, **{option: value})
    assert range_ in refused.value.needed
    assert f"'{option}'" in refused.value.asked


def test_sizes_and_json() -> None:
    drafter = Lookahead(vocab_size=VOCAB)
    assert drafter.fixed_budget == 63
    config = json.loads(json.dumps(drafter.config_dict()))
    assert (config["decoding_length"], config["branch_length"]) == (64, 12)
    assert Lookahead(vocab_size=VOCAB, **config).config == drafter.config

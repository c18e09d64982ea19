"""RECAP's switches, memory scopes, lifetimes and saved memories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from eyespan._core import pack
from eyespan.budget import Calibration, CostCurve, Pace
from eyespan.drafters import make_drafter
from eyespan.drafters._recap_config import RecapConfig
from eyespan.drafters._root_fallback import INDEXED_ROWS, RootFallback
from eyespan.drafters.base import Ask
from eyespan.drafters.recap import Recap
from eyespan.errors import ConfigError
from eyespan.types import DraftTree, Ints, PackedTree, Prefill, Request, Step, TargetOut, Verdict

VOCAB = 40
MEDIA = frozenset({30, 31})
EOS = frozenset({39})


def ints(values: Any) -> Ints:
    return np.array(values, np.int32)


def rows_after(tokens: Sequence[int]) -> tuple[Ints, np.ndarray]:
    """A target that counts: after t come t + 1, t + 2, ..., never media."""
    ids = ints([[(t + i) % 29 for i in range(1, 9)] for t in tokens]).reshape(-1, 8)
    return ids, np.tile(np.arange(8, 0, -1, dtype=np.float32), (len(ids), 1))


def begin(
    drafter: Recap,
    prompt: Sequence[int],
    scope: str | None = None,
    conversation: str | None = None,
) -> Any:
    text = [i for i, t in enumerate(prompt) if t not in MEDIA and prompt.index(t) == i]
    ids, logits = rows_after([prompt[i] for i in text])
    prefill = Prefill(
        next_row_ids=ids[-1],
        next_row_logits=logits[-1],
        logits=None,
        positions=ints(text),
        row_ids=ids,
        row_logits=logits,
    )
    request = Request(
        id="r",
        prompt_ids=ints(prompt),
        media_ids=MEDIA,
        eos_ids=EOS,
        max_new_tokens=99,
        scope=scope,
        conversation=conversation,
    )
    return drafter.begin(request, prefill)


def verify(session: Any, prefix: Ints, draft: DraftTree, hidden: Any = None) -> Ints:
    """Let the counting target commit one token after the longest right path."""
    tree = PackedTree(*pack(draft.tokens, draft.parents, draft.scores, int(prefix[-1])))
    ids, logits = rows_after(tree.tokens.tolist())
    path: list[int] = []
    at = 0
    while (children := np.flatnonzero((tree.parents == at) & (tree.tokens == ids[at, 0]))).size:
        at = int(children[0])
        path.append(at)
    tokens = (*(int(tree.tokens[i]) for i in path), int(ids[at, 0]))
    extras = {} if hidden is None else {"hidden": hidden(tree)}
    out = TargetOut(row_ids=ids, row_logits=logits, logits=None, extras=extras)
    session.observe(Step(prefix, tree, out, Verdict(ints(path), tokens[-1], tokens)))
    return np.append(prefix, ints(tokens))


# Switches


@pytest.mark.parametrize(
    ("option", "value", "range_"),
    [
        ("row_size", 9, "from 8 to 8"),
        ("orders", "U+G", "one of U, U+C, U+C+G"),
        ("fusion", "mean", "one of entropy"),
        ("priors", "hard", "default, soft, sharp"),
        ("priors", (0.5, 0.5), "three numbers"),
        ("priors", (0.5, 0.5, 0.0), "three numbers"),
        ("eta", (), "one or more numbers"),
        ("eta", (0.5, 2.0), "at most 1"),
        ("nodes", 0, "from 1 to 127"),
        ("nodes", 124, "less than 128"),
        ("nodes", True, "whole number"),
        ("width", 9, "from 1 to 8"),
        ("depth", 22, "from 1 to 21"),
        ("search", "beam", "best_first, fixed"),
        ("suffix_tokens", -1, "from 0"),
        ("suffix_reach", 128, "from 0 to 127"),
        ("suffix_min_match", 0, "from 1"),
        ("suffix_occurrence", "any", "latest, earliest"),
        ("suffix_inside_budget", 1, "true or false"),
        ("seed_context", "yes", "true or false"),
        ("max_rows", 0, "from 1"),
        ("max_suffix_tokens", 1, "from 2"),
        ("persist", "forever", "stream, request, task"),
        ("max_scopes", 0, "from 1"),
        ("conversation", None, "true or false"),
        ("root_fallback", "both", "none, recency, semantic"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, range_: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("recap", vocab_size=VOCAB, **{option: value})
    assert range_ in refused.value.needed
    assert f"'{option}'" in refused.value.asked
    assert repr(value) in refused.value.found
    assert isinstance(refused.value, ValueError)


def test_an_unknown_option_is_refused_and_a_close_one_suggested() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'nodes'"):
        Recap(vocab_size=VOCAB, noeds=5)
    with pytest.raises(ConfigError, match="21 bits"):
        Recap(vocab_size=1 << 22)
    with pytest.raises(ConfigError, match="without options"):
        make_drafter("none", vocab_size=VOCAB, nodes=5)


def test_the_config_names_every_field_and_survives_json() -> None:
    drafter = Recap(vocab_size=VOCAB, priors=(0.5, 0.3, 0.2), eta=[0.9])
    config = json.loads(json.dumps(drafter.config_dict()))
    assert Recap(vocab_size=VOCAB, **config).config == drafter.config
    assert RecapConfig().nodes + RecapConfig().extra_nodes + 1 == 68  # the paper's largest pack


def test_needs_follow_the_switches() -> None:
    assert Recap(vocab_size=VOCAB).needs.prompt_rows == "first"
    assert Recap(vocab_size=VOCAB, seed_context=True).needs.prompt_rows == "all"
    assert Recap(vocab_size=VOCAB).needs.hidden_layers == ()
    assert Recap(vocab_size=VOCAB, root_fallback="semantic").needs.hidden_layers == (-1,)
    assert Recap(vocab_size=VOCAB).extra_nodes == 4
    assert Recap(vocab_size=VOCAB, suffix_inside_budget=True).extra_nodes == 0


# Proposals


def test_budgets_cap_the_tree() -> None:
    drafter = Recap(vocab_size=VOCAB)
    session = begin(drafter, [1, 2, 3, 4, 5, 6, 7])
    prefix = ints([1, 2, 3, 4, 5, 6, 7, 3])
    for budget in (0, 1, 5, 63, 500):
        tree = session.propose(prefix, budget)
        assert tree.origins is None or (tree.origins == 0).sum() == min(budget, 63)
        assert len(tree) <= min(budget, 63) + 4
    assert len(session.propose(prefix, 0)) == 0


def test_what_the_text_said_before_is_proposed_again() -> None:
    session = begin(Recap(vocab_size=VOCAB), [1, 2, 20, 17, 26, 11, 5])
    tree = session.propose(ints([1, 2, 20, 17, 26, 11, 5, 2]), 4)
    assert tree.origins is not None
    assert tree.scores is not None
    chain = tree.tokens[tree.origins == 1].tolist()
    assert chain == [20, 17, 26, 11]
    assert (tree.scores[tree.origins == 1] > 0).all()
    assert tree.origin_names == ("recap", "suffix")


@pytest.mark.parametrize(
    ("options", "published", "cut"),
    [
        ({}, 4, 14),
        ({"suffix_reach": 7}, 4, 7),
        ({"suffix_reach": 2}, 4, 4),
        ({"nodes": 120}, 4, 7),
        ({"suffix_tokens": 0}, 0, 0),
        ({"suffix_tokens": 6, "suffix_reach": 0}, 6, 6),
    ],
    ids=str,
)
def test_a_quotation_goes_on_for_longer_where_the_budget_rule_cuts(
    options: dict[str, int], published: int, cut: int
) -> None:
    """What followed 20 is 14 tokens long; only the suffix can tell, for no row is known."""
    drafter = Recap(vocab_size=VOCAB, orders="U", depth=1, **options)
    text = [20, *range(1, 13), 25, 20]
    session = begin(drafter, text)
    drafter.reset()  # rows of the prompt are gone, its text is not
    pace = Pace(CostCurve(sizes=(1,), ms=(1.0,)), Calibration(sources=4), 127, one_pass=True)
    for given, length in ((None, published), (pace, cut)):
        (tree,) = drafter.propose_many([Ask(session, ints(text), 127, given)])
        assert tree.tokens.tolist() == text[1:][:length]


def test_media_are_never_proposed_even_where_text_repeats_before_them() -> None:
    """Prompt look-up drafted image placeholders for exactly this prompt, and models died of it."""
    prompt = [5, 6, 30, 30, 30, 30, 7, 8, 9, 5]
    session = begin(Recap(vocab_size=VOCAB), prompt)
    for prefix in ([*prompt, 6], [*prompt, 6, 30], [*prompt, 30]):
        tree = session.propose(ints(prefix), 63)
        assert not MEDIA & set(tree.tokens.tolist())


# Scopes and lifetimes


def test_scopes_share_nothing() -> None:
    drafter = Recap(vocab_size=VOCAB, suffix_tokens=0)
    begin(drafter, [1, 2, 3], scope="a")
    assert drafter.is_warm("a")
    assert not drafter.is_warm("b")
    assert len(begin(drafter, [9], scope="b").propose(ints([9, 1]), 63)) == 0
    assert len(begin(drafter, [9], scope="a").propose(ints([9, 1]), 63)) > 0


def test_the_least_recently_used_scope_is_forgotten() -> None:
    drafter = Recap(vocab_size=VOCAB, max_scopes=2)
    for scope in ("a", "b", "a", "c"):
        begin(drafter, [1, 2], scope=scope)
    assert [drafter.is_warm(scope) for scope in ("a", "b", "c")] == [True, False, True]


@pytest.mark.parametrize(
    ("persist", "next_request", "next_task"),
    [("stream", True, True), ("task", True, False), ("request", False, False)],
)
def test_how_long_memory_lives(persist: str, next_request: bool, next_task: bool) -> None:
    drafter = Recap(vocab_size=VOCAB, persist=persist, suffix_tokens=0)

    def knows() -> bool:
        return len(begin(drafter, [20]).propose(ints([20, 1]), 63)) > 0

    begin(drafter, [1, 2, 3])
    assert knows() == next_request
    drafter.new_task()
    assert knows() == next_task
    drafter.reset()
    assert not knows()


def test_a_reset_reaches_open_sessions() -> None:
    drafter = Recap(vocab_size=VOCAB, suffix_tokens=0)
    session = begin(drafter, [1, 2, 3])
    assert len(session.propose(ints([1, 2, 3, 1]), 63)) > 0
    drafter.reset()
    assert len(session.propose(ints([1, 2, 3, 1]), 63)) == 0


@pytest.mark.parametrize("conversation", [False, True])
def test_contexts_start_empty_unless_a_conversation_goes_on(conversation: bool) -> None:
    drafter = Recap(vocab_size=VOCAB, conversation=conversation, persist="request", suffix_tokens=0)

    def knows(prompt: list[int]) -> bool:
        """Whether 3 is known after 2, which only C of the first request has seen."""
        return len(begin(drafter, prompt).propose(ints([20, 2, 3]), 1)) > 0

    first = begin(drafter, [1, 30, 2])
    verify(first, ints([1, 30, 2, 3]), DraftTree.empty())
    assert knows([1, 30, 2, 7]) == conversation
    assert knows([1, 30, 2, 7, 8]) == conversation, "and the turn after that"
    assert not knows([1, 30, 9]), "another prompt"
    verify(begin(drafter, [1, 30, 2]), ints([1, 30, 2, 3]), DraftTree.empty())
    assert not knows([1, 30, 2, 7, 30]), "new media"


def test_conversations_of_one_scope_have_contexts_of_their_own() -> None:
    drafter = Recap(
        vocab_size=VOCAB, conversation=True, persist="request", suffix_tokens=0, max_scopes=2
    )

    def knows(prompt: list[int], conversation: str) -> bool:
        session = begin(drafter, prompt, conversation=conversation)
        return len(session.propose(ints([20, 2, 3]), 1)) > 0

    first = begin(drafter, [1, 2], conversation="one")
    assert not knows([1, 2, 7], "two"), "the same words in another conversation"
    verify(first, ints([1, 2, 3]), DraftTree.empty())
    assert not knows([1, 2, 7, 8], "two")
    assert knows([1, 2, 7], "one")
    assert not knows([5], "three"), "which makes the oldest of three go"
    assert not knows([1, 2, 7, 8, 9], "two")
    assert drafter.state_bytes() > 0
    drafter.reset()
    assert drafter.state_bytes() == 0


# Root fallbacks


def one_hot(tree: PackedTree) -> np.ndarray:
    """[n, 1, d]: the state of a node is its token's direction."""
    return np.eye(VOCAB, dtype=np.float32)[tree.tokens][:, None]


@pytest.mark.parametrize("fallback", ["none", "recency", "semantic"])
def test_a_root_that_no_map_answers(fallback: str) -> None:
    drafter = Recap(vocab_size=VOCAB, root_fallback=fallback, suffix_tokens=0, depth=1)
    session = begin(drafter, [1, 2, 3])
    prefix = verify(session, ints([1, 2, 3, 4]), DraftTree.empty(), one_hot)
    prefix = verify(session, prefix, DraftTree(ints([20]), ints([-1])), one_hot)
    tree = session.propose(np.append(prefix, ints([35])), 63)
    found = set(tree.tokens.tolist())
    if fallback == "none":
        assert found == set()
    elif fallback == "recency":
        assert found == set(range(21, 29))  # the row of 20, the last node
    else:
        # The state of 5 produced the root; the row of 20 was filed under the same state.
        assert tree.tokens[:2].tolist() == [21, 22]
    known = session.propose(np.append(prefix, ints([2])), 63)
    assert set(known.tokens.tolist()) == set(range(3, 11))  # no fallback where U answers


def test_the_index_of_a_fallback_is_bounded() -> None:
    index = RootFallback(semantic=True)
    tokens = ints([1] * 64)
    tree = PackedTree(*pack(tokens[1:], np.full(63, -1, np.int32), None, 1))
    ids, logits = rows_after(tree.tokens.tolist())
    out = TargetOut(row_ids=ids, row_logits=logits, logits=None, extras={"hidden": one_hot(tree)})
    for _ in range(40):
        index.observe(Step(ints([0, 1]), tree, out, Verdict(ints([]), 2, (2,))))
    assert index._ids is not None
    assert len(index._ids) == INDEXED_ROWS
    rows = index.rows()
    assert rows is not None
    assert rows[0].shape == (3, 8)


@pytest.mark.parametrize("persist", ["stream", "request"])
def test_conversations_are_forgotten_too(persist: str) -> None:
    drafter = Recap(vocab_size=64, conversation=True, persist=persist, max_scopes=2)
    for scope in "abcdef":
        begin(drafter, [1, 2, 3], scope)
    assert len(drafter._last) == 2

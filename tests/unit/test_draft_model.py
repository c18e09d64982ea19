"""A draft model: what it writes, what it keeps, what it costs, and whom it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.drafters import make_drafter
from eyespan.drafters.draft_model import CATCH_UP, DraftModel, check_same_words
from eyespan.errors import ConfigError
from eyespan.types import DraftTree
from eyespan.verbs.options import drafter_options
from tests.drafting import ints, open_session, packed_of, show
from tests.toys import ToyTarget, toy_row

IMAGE, END = 5, 1


def drafter_with(draft: ToyTarget, **options: Any) -> DraftModel:
    drafter = DraftModel(vocab_size=draft.vocab, draft_model=draft, **options)
    drafter.bind(ToyTarget(vocab=draft.vocab))  # type: ignore[arg-type]
    return drafter


def beam(
    draft: ToyTarget, text: Sequence[int], width: int, budget: int
) -> dict[tuple[int, ...], float]:
    """What the draft model should write, from the text alone: path -> score."""
    layer, tree = {(): 1.0}, {}
    while len(tree) < budget:
        below: dict[tuple[int, ...], float] = {}
        for path, score in layer.items():
            logits = toy_row([*text, *path], draft.vocab, draft.order)
            best = np.argsort(-logits, kind="stable")[:8]
            chances = np.exp(logits[best]) / np.exp(logits[best]).sum()
            for token, chance in zip(best.tolist(), chances.tolist(), strict=True):
                if token != IMAGE:
                    below[(*path, token)] = score * chance
        ranked = sorted(below.items(), key=lambda pair: -pair[1])
        kept = dict(ranked[: min(width, budget - len(tree))])
        tree |= kept
        layer = {path: score for path, score in kept.items() if path[-1] != END}
        if not layer:
            break
    return tree


def as_paths(draft: DraftTree) -> dict[tuple[int, ...], float]:
    if len(draft) == 0:
        return {}
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert draft.scores is not None
    return dict(zip(paths, draft.scores.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_draft_is_the_one_written_from_scratch(data: st.DataObject) -> None:
    """Over rounds with accepted, refused, cut and missing drafts, and media in the text, the cache
    always holds just the text.
    """
    draft_model = ToyTarget(vocab=12, order=3)
    width, depth = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    drafter = drafter_with(draft_model, width=width, depth=depth)
    text = data.draw(st.lists(st.integers(2, 11), min_size=1, max_size=8))
    session = open_session(drafter, text, media={IMAGE}, eos={END})
    has_text = any(token != IMAGE for token in text)
    text.append(data.draw(st.integers(2, 11)))
    for _ in range(8):
        draft, path, tokens = DraftTree.empty(), [], []
        if data.draw(st.booleans()):
            budget = data.draw(st.integers(1, 12))
            draft = session.propose(ints(text), budget)
            shown = [token for token in text if token != IMAGE]
            if has_text and text[-1] != IMAGE:
                nodes = min(budget, width * depth)
                assert as_paths(draft) == pytest.approx(beam(draft_model, shown, width, nodes))
            else:
                assert len(draft) == 0
            tree = packed_of(draft, text[-1])
            node = 0
            while data.draw(st.integers(0, 3)) and (tree.parents == node).any():
                node = int(
                    data.draw(st.sampled_from(np.flatnonzero(tree.parents == node).tolist()))
                )
                path.append(node)
                tokens.append(int(tree.tokens[node]))
        if END in tokens:
            break
        tokens.append(data.draw(st.integers(2, 11)))
        show(session, text, tokens, draft=draft, path=path)
        text += tokens


def test_a_guess_that_was_never_sent_may_be_what_the_target_says() -> None:
    """Found by the test above: its entry stayed in the cache, the next root had no row, and a round
    went without a draft.
    """
    draft_model = ToyTarget(vocab=12)
    session = open_session(drafter_with(draft_model, depth=2), [2, 3])
    guess = int(session.propose(ints([2, 3, 4]), 2).tokens[0])
    show(session, [2, 3, 4], [guess])
    draft = session.propose(ints([2, 3, 4, guess]), 2)
    assert as_paths(draft).keys() == beam(draft_model, [2, 3, 4, guess], 1, 2).keys()


def test_one_pass_a_level_and_none_for_the_last_guesses() -> None:
    draft_model = ToyTarget(vocab=12)
    drafter = drafter_with(draft_model, depth=3, width=2)
    session = open_session(drafter, [2, 3])
    assert len(session.propose(ints([2, 3, 4]), 6)) == 6
    assert draft_model.passes == [1, 3, 5]  # the root; with two guesses; with four
    session.propose(ints([2, 3, 4]), 6)
    assert len(draft_model.passes) == 3  # asked twice, written once


def test_a_long_rest_is_caught_up_in_short_passes() -> None:
    draft_model = ToyTarget(vocab=12)
    drafter = drafter_with(draft_model, depth=2)
    session = open_session(drafter, [2, 3])
    text = [2, 3, *np.random.default_rng(0).integers(2, 5, 3 * CATCH_UP).tolist()]
    for size in range(3, len(text)):
        show(session, text[:size], text[size : size + 1])
    assert draft_model.passes == []  # resting costs nothing
    draft = session.propose(ints(text), 2)
    assert as_paths(draft).keys() == beam(draft_model, text, 1, 2).keys()
    assert max(draft_model.passes) <= CATCH_UP + 1


def test_nothing_is_drafted_past_the_draft_models_context() -> None:
    draft_model = ToyTarget(vocab=12, max_context=6)
    drafter = drafter_with(draft_model, depth=4)
    sizes = []
    for length in (2, 3, 4, 5, 6, 7):
        text = [2, 3, 4, 2, 3, 4, 2, 3][: length + 1]
        session = open_session(drafter, text[:-1])
        sizes.append(len(session.propose(ints(text), 4)))
        assert sum(draft_model.passes) == 0 or length + max(draft_model.passes) <= 6
        draft_model.passes.clear()
    assert sizes == [4, 3, 2, 1, 0, 0]


def speaker(name: str, tokens: Sequence[str] | None, vocab_size: int = 8) -> Any:
    """As much of a target as a comparison of vocabularies looks at."""
    words = None if tokens is None else {token: at for at, token in enumerate(tokens)}
    tokenizer = None if words is None else SimpleNamespace(get_vocab=lambda: words)
    info = SimpleNamespace(name=name, vocab_size=vocab_size, media_ids=frozenset({3}))
    return SimpleNamespace(tokenizer=tokenizer, info=info)


def test_vocabularies_must_agree_but_for_media() -> None:
    target = speaker("big", ["a", "b", "c", "<image>"])
    check_same_words(target, speaker("small", ["a", "b", "c"]))
    check_same_words(target, speaker("small", ["a", "b", "c", "other", "more"]))
    with pytest.raises(ConfigError, match=r"2 tokens that differ, the first 'b' at 1.*has it at 2"):
        check_same_words(target, speaker("small", ["a", "c", "b"]))
    with pytest.raises(ConfigError, match="does not know it"):
        check_same_words(target, speaker("small", ["a", "b"]))
    with pytest.raises(ConfigError, match="16 ids against 8"):
        check_same_words(target, speaker("small", None, vocab_size=16))
    check_same_words(target, speaker("small", None))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 0}, "from 1 to 32"),
        ({"width": 9}, "from 1 to 8"),
        ({"depth": 20, "width": 8}, "at most 95 // width"),
        ({"dept": 3}, "Did you mean 'depth'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_drafter("draft_model", vocab_size=16, **options)


def test_a_model_must_be_named() -> None:
    drafter: Any = make_drafter("draft_model", vocab_size=16)
    with pytest.raises(ConfigError, match="no draft model"):
        drafter.bind(ToyTarget())


def test_options_of_the_command_line() -> None:
    options = drafter_options("draft_model", ["draft_model=some/folder", "depth=3", "width=2"])
    assert options == {"draft_model": "some/folder", "depth": 3, "width": 2}
    assert make_drafter("draft_model", vocab_size=16, **options).fixed_budget == 6

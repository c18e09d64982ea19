"""Prompt lookup: the four variants, media spans, the index and its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eyespan.drafters import make_drafter
from eyespan.drafters.prompt_lookup import VARIANTS, PromptLookup
from eyespan.errors import ConfigError
from tests.drafting import ints, open_session, show
from tests.reference.prompt_lookup import lookup

IMAGE, END = 9, 8


def draft_after(text: list[int], **options: Any) -> list[int]:
    """What is drafted when `text` is a prompt and the first token of its answer."""
    drafter = PromptLookup(vocab_size=16, **options)
    session = open_session(drafter, text[:-1], media={IMAGE}, eos={END})
    draft = session.propose(ints(text), 127)
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    return draft.tokens.tolist()


@pytest.mark.parametrize(
    ("variant", "text", "expected"),
    [
        # exactly four tokens, the most recent match
        ("paper", [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4], [6, 1, 2, 3, 4]),
        ("paper", [7, 2, 3, 4, 5, 1, 2, 3, 4], []),
        # a text that repeats one token matches apart from itself
        ("paper", [5] * 8, [5] * 4),
        ("paper", [5] * 7, []),
        # three tokens before two, the earliest match, ten tokens or none
        ("original", [2, 3, *[4] * 10, 1, 2, 3, *[5] * 10, 2, 3], [4] * 10),
        ("original", [2, 3, *[4] * 10, 1, 2, 3, *[5] * 10, 1, 2, 3], [5] * 10),
        ("original", [2, 3, *[4] * 5, 1, 2, 3], []),
        # two tokens before one, the earliest match, whatever follows
        ("transformers", [3, 7, 2, 3, 4, 2, 3], [4, 2, 3]),
        ("transformers", [3, 7, 2, 5, 3], [7, 2, 5, 3]),
        ("transformers", [5, 5, 5], [5]),
        # exactly five
        ("vllm", [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5], [6, 1, 2, 3, 4, 5]),
        ("vllm", [9, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5], []),
    ],
)
def test_variants_by_hand(variant: str, text: list[int], expected: list[int]) -> None:
    assert draft_after(text, variant=variant) == expected


def test_a_variant_can_be_changed_in_one_rule() -> None:
    text = [1, 2, 3, 7, 1, 2, 4, 7, 1, 2]
    assert draft_after(text, variant="transformers", draft=2) == [3, 7]
    assert draft_after(text, variant="transformers", occurrence="latest") == [4, 7, 1, 2]
    assert draft_after([1, 2, 5, 1], variant="transformers", shortest=2) == []
    drafter = make_drafter("prompt_lookup", vocab_size=16, variant="vllm", shortest=2)
    expected = {**VARIANTS["vllm"]._asdict(), "shortest": 2}
    assert drafter.config_dict().items() >= expected.items()


def test_media_end_windows_and_drafts() -> None:
    """The prompt that makes other prompt lookups draft placeholders: its end also stands right
    before a picture.
    """
    span = [IMAGE] * 4
    assert draft_after([1, 2, *span, 3, 4, 1, 2], variant="transformers") == []
    assert draft_after([1, 2, 3, *span, 4, 1, 2], variant="transformers") == [3]
    # the window (2, span, 3) is no n-gram, and an older match behind which text stands is found
    assert draft_after([2, *span, 3, 5, 2, *span, 3], variant="transformers", shortest=2) == []
    older = [1, 2, 3, 4, 6, 1, 2, 3, 4, *span, 1, 2, 3, 4]
    assert draft_after(older, variant="paper") == [6, 1, 2, 3, 4]
    assert draft_after([1, IMAGE, 2, IMAGE], variant="transformers") == []


def test_nothing_is_drafted_past_an_end() -> None:
    assert draft_after([1, 2, 3, END, 4, 1, 2], variant="transformers") == [3, END]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_index_finds_what_reading_everything_finds(variant: str, data: st.DataObject) -> None:
    token = st.sampled_from([0, 1, 1, 1, 2, 2, IMAGE, END])
    text = data.draw(st.lists(token, min_size=2, max_size=60))
    draft = data.draw(st.integers(1, 6))
    options: dict[str, Any] = {"variant": variant, "draft": draft}
    if data.draw(st.booleans()):
        options["longest"] = data.draw(st.integers(2, 4))
        options["shortest"] = data.draw(st.integers(1, options["longest"]))
    drafter = PromptLookup(vocab_size=16, **options)
    config = drafter.config
    size = data.draw(st.integers(1, len(text) - 1))
    assume(text[size] != IMAGE)  # no answer begins with a picture
    session = open_session(drafter, text[:size], media={IMAGE}, eos={END})
    size += 1
    while True:
        found = session.propose(ints(text[:size]), 127).tokens.tolist()
        assert found == lookup(
            text[:size],
            lengths=config.lengths,
            draft=draft,
            latest=config.occurrence == "latest",
            apart=bool(config.apart),
            whole=bool(config.whole),
            media={IMAGE},
            eos={END},
        )
        if size == len(text):
            break
        step = data.draw(st.integers(1, min(7, len(text) - size)))
        show(session, text[:size], text[size : size + step])
        size += step


def test_the_index_is_bounded_and_keeps_the_recent_half() -> None:
    drafter = PromptLookup(vocab_size=1 << 16, variant="transformers", max_tokens=256)
    rng = np.random.default_rng(0)
    text = [*range(1000, 1010), *rng.permutation(900).tolist()]
    session: Any = open_session(drafter, text[:700])
    for size in range(701, len(text), 10):
        show(session, text[:size], text[size : size + 10])
        assert len(session) <= 2 * 256  # two lengths of n-gram
    text = text[: size + 10]
    recent = text[-100:-98]
    assert session.propose(ints([*text, *recent]), 3).tokens.tolist() == text[-98:-95]
    assert len(session.propose(ints([*text, 1002, 1003]), 3)) == 0


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("variant", "mine", "one of paper"),
        ("longest", 65, "from 1 to 64"),
        ("shortest", 5, "at most 4"),
        ("draft", 0, "from 1"),
        ("occurrence", "any", "latest, earliest"),
        ("apart", 1, "true or false"),
        ("whole", "yes", "true or false"),
        ("max_tokens", 10, "from 256"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: Any, needed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_drafter("prompt_lookup", vocab_size=16, **{option: value})
    assert needed in refused.value.needed
    assert f"'{option}'" in refused.value.asked


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'variant'"):
        make_drafter("prompt_lookup", vocab_size=16, varient="vllm")

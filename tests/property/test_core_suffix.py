"""The suffix automaton against brute force, and the order in which it must be asked."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan import _core
from tests.reference.cases import ints
from tests.reference.suffix import SuffixText

MEDIA = frozenset({4})
MEDIA_SET = _core.TokenSet(5, sorted(MEDIA))
OCCURRENCES = [_core.Occurrence.latest, _core.Occurrence.earliest]

symbols = st.lists(st.integers(0, 4) | st.just(0), max_size=70)


@settings(deadline=None, max_examples=200)
@given(text=symbols, max_tokens=st.integers(2, 90), most=st.integers(0, 5))
def test_every_match_is_brute_forces(text: list[int], max_tokens: int, most: int) -> None:
    core, reference = _core.SuffixAutomaton(max_tokens=max_tokens), SuffixText(max_tokens)
    for token in text:
        for occurrence in OCCURRENCES:
            found = core.match(occurrence, extra=ints([token]), media=MEDIA_SET, room=most)
            assert found == reference.match(occurrence.name, [token], MEDIA, most)
        core.extend(ints([token]), MEDIA_SET)
        reference.extend([token], MEDIA)
        assert core.check_integrity() == ""
        assert len(core) == len(reference.text)
        for occurrence in OCCURRENCES:
            assert core.match(occurrence, room=most) == reference.match(occurrence.name, room=most)
            found = core.match(occurrence)
            assert found == reference.match(occurrence.name)
            after = core.continuation(*found, most).tolist()
            assert after == reference.continuation(*found, most)
            assert not MEDIA & set(after)


@settings(deadline=None)
@given(text=symbols, extra=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_tokens_from_outside_are_matched_and_change_nothing(
    text: list[int], extra: list[int]
) -> None:
    core, reference = _core.SuffixAutomaton(max_tokens=99), SuffixText(99)
    core.extend(ints(text), MEDIA_SET)
    reference.extend(text, MEDIA)
    before = core.match(), len(core), core.nbytes
    for occurrence in OCCURRENCES:
        found = core.match(occurrence, extra=ints(extra), media=MEDIA_SET)
        assert found == reference.match(occurrence.name, extra, MEDIA)
        after = core.continuation(*found, 6, extra=ints(extra), media=MEDIA_SET).tolist()
        assert after == reference.continuation(*found, 6, extra, MEDIA)
    assert (core.match(), len(core), core.nbytes) == before


@settings(deadline=None)
@given(text=symbols, other=symbols)
def test_a_reader_of_another_text_finds_its_end(text: list[int], other: list[int]) -> None:
    core, reference = _core.SuffixAutomaton(max_tokens=99), SuffixText(99)
    core.extend(ints(text), MEDIA_SET)
    reference.extend(text, MEDIA)
    state, length = 0, 0
    for at, token in enumerate(other):
        state, length = core.advance(state, length, ints([token]), media=MEDIA_SET)
        expected = reference.read(other[: at + 1], MEDIA)
        assert length == expected[0]
        assert core.place(state, length, _core.Occurrence.earliest) == (length, expected[1])
        assert core.place(state, length, _core.Occurrence.latest) == (length, expected[2])
    assert core.advance(0, 0, ints(other), media=MEDIA_SET) == (state, length)


def test_room_is_found_behind_an_earlier_shorter_match() -> None:
    """SAM-Decoding climbs to a suffix that enough tokens follow; the length stays the match's."""
    core = _core.SuffixAutomaton(max_tokens=99)
    core.extend(ints([5, 9, 9, 9, 7, 1, 5, 2, 7, 1, 5]), _core.TokenSet(99, []))
    assert core.match(_core.Occurrence.earliest) == (3, 6)
    assert core.match(_core.Occurrence.earliest, room=4) == (3, 6)
    assert core.match(_core.Occurrence.earliest, room=5) == (3, 0)  # the suffix [5] alone
    assert core.match(_core.Occurrence.earliest, room=50) == (3, 0)
    assert core.match(_core.Occurrence.latest, room=50) == (3, 6)


def test_repeated_spans_are_continued_not_skipped() -> None:
    """Pins the order of asking. The match of the text's end is the suffix link of the last state
    once the newest token is in. Public code follows the newest token a second time from there: the
    match then ends one token too late, and on text with repeated 20-token spans the mean
    continuation that comes true falls from several tokens to almost none.
    """
    rng = random.Random(3)
    spans = [[rng.randrange(1000) for _ in range(20)] for _ in range(6)]
    text = [token for _ in range(60) for token in rng.choice(spans)]
    core = _core.SuffixAutomaton(max_tokens=10_000)
    right = []
    for at, token in enumerate(text):
        core.append(token)
        length, end = core.match()
        guess = core.continuation(length, end, 10).tolist()
        truth = text[at + 1 : at + 11]
        matched = 0
        while matched < min(len(guess), len(truth)) and guess[matched] == truth[matched]:
            matched += 1
        right.append(matched)
    assert np.mean(right[400:]) > 6
    twice = [core.match(extra=ints([text[-1]]))[0], core.match()[0]]
    assert twice[0] < twice[1]  # feeding the newest token again loses the match


def test_latest_and_earliest_differ_where_they_should() -> None:
    core = _core.SuffixAutomaton(max_tokens=99)
    core.extend(ints([7, 1, 7, 2, 7, 3, 7]), MEDIA_SET)
    assert core.match(_core.Occurrence.latest) == (1, 4)
    assert core.match(_core.Occurrence.earliest) == (1, 0)
    assert core.continuation(1, 4, 4).tolist() == [3, 7]
    assert core.continuation(1, 0, 2).tolist() == [1, 7]


def test_text_of_one_repeated_token_stays_cheap_and_long_text_stays_bounded() -> None:
    core = _core.SuffixAutomaton(max_tokens=4096)
    core.extend(ints([0] * 20_000), MEDIA_SET)
    assert len(core) <= 4096
    length, end = core.match()
    assert length == len(core) - 1
    assert end == len(core) - 2
    assert core.nbytes < 4096 * 400
    assert core.check_integrity() == ""


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        _core.SuffixAutomaton(max_tokens=1)
    core = _core.SuffixAutomaton(max_tokens=9)
    with pytest.raises(ValueError, match="token id -1"):
        core.append(-1)
    with pytest.raises(ValueError, match="inside the text"):
        core.continuation(1, 0, 4)
    with pytest.raises(ValueError, match="count_depth"):
        _core.SuffixAutomaton(max_tokens=9, count_depth=-1)
    for cursor in [(0, 1), (1, 0), (-1, 0), (5, 0)]:
        with pytest.raises(ValueError, match="none of this suffix automaton's"):
            core.advance(*cursor, ints([1]))
        with pytest.raises(ValueError, match="none of this suffix automaton's"):
            core.place(*cursor)
    assert core.match() == (0, -1)


@pytest.mark.slow
def test_A44_a_look_up_costs_the_same_in_long_text() -> None:
    """Look-up cost that grows with the prompt has made speculation slower than plain decoding. A
    match is a walk over links of which at most a fixed number is followed; what an append may write
    is counted by what it has left behind (`make bench-host` has the microseconds).
    """
    rng = np.random.default_rng(1)

    def bytes_a_token(length: int) -> float:
        core = _core.SuffixAutomaton(max_tokens=200_000)
        core.extend(rng.zipf(1.3, length).clip(max=5000).astype(np.int32), MEDIA_SET)
        return core.nbytes / length

    assert bytes_a_token(100_000) < 1.5 * bytes_a_token(1_000)

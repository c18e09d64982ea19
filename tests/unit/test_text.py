"""Text is never broken: same text for every chunking, whole characters, stops cut exactly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyespan.errors import ConfigError
from eyespan.text import TextStream, check_stops


def byte_decode(ids: list[int]) -> str:
    """Bytes as tokens; ids above 255 are special and have no text."""
    return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def word_decode(ids: list[int]) -> str:
    """Bytes as a fallback between words, as SentencePiece models have it: a run of bytes that is
    not UTF-8 as a whole gives one sign a byte, and the first space is dropped.
    """
    text, run = "", list[int]()
    for token in [*ids, -1]:
        if 0 <= token < 256:
            run.append(token)
            continue
        try:
            text += bytes(run).decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = []
        text += f" w{token}" if 256 <= token < 300 else ""
    return text.removeprefix(" ")


def run(data: bytes, stops: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    stream = TextStream(byte_decode, stops)
    shown: list[str] = []
    for byte in data:
        shown += [piece.text for piece in stream.push([byte], "target")]
        if stream.stopped:
            break
    shown += [piece.text for piece in stream.finish()]
    assert "".join(shown) == stream.released
    return stream.released, shown


@given(st.text(max_size=40))
def test_pieces_join_to_the_text_and_hold_whole_characters(text: str) -> None:
    released, shown = run(text.encode())
    assert released == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in shown)


@given(st.text(max_size=40), st.lists(st.integers(0, 120), max_size=6))
def test_text_is_the_same_for_every_chunking(text: str, cuts: list[int]) -> None:
    data = text.encode()
    stream = TextStream(byte_decode)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        stream.push(data[begin:end], "x")
    stream.finish()
    assert stream.released == run(data)[0]


@given(st.text("abAB", max_size=30), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop_to_be_completed(text: str, stops: list[str]) -> None:
    expected = text
    for end in range(len(text) + 1):
        hits = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if hits:
            expected = text[: min(hits)]
            break
    assert run(text.encode(), tuple(stops))[0] == expected


def test_nothing_of_a_stop_is_ever_shown() -> None:
    stream = TextStream(byte_decode, ("END",))
    shown = "".join(p.text for byte in b"so EN" for p in stream.push([byte], "x"))
    assert shown == "so "
    shown += "".join(p.text for p in stream.push([ord("E")], "x"))
    assert shown == "so EN"  # "ENE" is no stop, but its last "E" may begin one
    assert [p.text for p in stream.finish()] == ["E"]


mixed = st.lists(
    st.sampled_from(["é", "😀", "漢", "a", b"\xff", b"\xf0\x9f", b"\x98", 256, 299, 300]),
    max_size=30,
)


@pytest.mark.parametrize("decode", [byte_decode, word_decode])
@given(parts=mixed, cuts=st.lists(st.integers(0, 120), max_size=6))
def test_broken_bytes_give_the_same_text_for_every_chunking(
    decode: Any, parts: list[Any], cuts: list[int]
) -> None:
    ids: list[int] = []
    for part in parts:
        ids += (
            [part] if isinstance(part, int) else part if isinstance(part, bytes) else part.encode()
        )
    texts = []
    for edges in (range(len(ids) + 1), [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]):
        stream = TextStream(decode)
        shown = [p.text for begin, end in pairwise(edges) for p in stream.push(ids[begin:end], "x")]
        shown += [piece.text for piece in stream.finish()]
        assert "".join(shown) == stream.released
        texts.append(stream.released)
    assert texts[0] == texts[1]
    whole = decode(ids)
    if decode is byte_decode or "\ufffd" not in whole:
        assert texts[0] == whole


@pytest.mark.parametrize("token", [0xFF, 0xF0, 300], ids=["broken", "begun", "silent"])
def test_long_runs_without_a_character_cost_the_same_per_id(token: int) -> None:
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_decode(ids)

    stream = TextStream(decode)
    for _ in range(2000):
        stream.push([token], "x")
    stream.finish()
    assert longest < 16
    assert stream.released == byte_decode([token] * 2000)


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert run("é".encode()[:1])[0] == "\ufffd"


def test_special_tokens_have_no_text() -> None:
    stream = TextStream(byte_decode)
    assert stream.push([300], "x") == []
    assert [p.text for p in stream.push([ord("a")], "y")] == ["a"]


def test_pieces_remember_their_origin() -> None:
    stream = TextStream(byte_decode)
    pieces = [*stream.push([ord("a")], "recap"), *stream.push([ord("b")], "suffix")]
    assert [(p.text, p.origin) for p in pieces] == [("a", "recap"), ("b", "suffix")]


@pytest.mark.parametrize("stop", ["", ["ok", ""], ["x" * 1001], [""] * 2, ["a"] * 65, [3]])
def test_bad_stops_are_refused(stop: object) -> None:
    with pytest.raises(ConfigError):
        check_stops(stop)  # type: ignore[arg-type]

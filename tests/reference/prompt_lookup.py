"""Prompt lookup in slow plain Python: read the whole text again for every draft."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def lookup(
    text: Sequence[int],
    *,
    lengths: Sequence[int],
    draft: int,
    latest: bool,
    apart: bool,
    whole: bool,
    media: Collection[int],
    eos: Collection[int],
) -> list[int]:
    """The draft after `text`; arguments are the fields of `PromptLookupConfig`."""
    for length in lengths:
        gram = list(text[len(text) - length :]) if length < len(text) else []
        if not gram or any(token in media for token in gram):
            continue
        matches = []
        for start in range(len(text) - length):
            end = start + length  # the token that follows
            clear = end <= len(text) - length if apart else end < len(text)
            if list(text[start:end]) == gram and clear and text[end] not in media:
                matches.append(end)
        matches = matches[::-1] if latest else matches
        for end in matches[:1] if latest else matches:
            found = list(text[end : end + draft])
            if whole and len(found) < draft:
                continue
            for at, token in enumerate(found):
                if token in media:
                    return found[:at]
                if token in eos:
                    return found[: at + 1]
            return found
    return []

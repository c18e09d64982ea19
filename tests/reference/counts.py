"""Twins of cpp/src/suffix_draft and of the counts in suffix_automaton: every occurrence is looked
for in the plain text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tests.reference.suffix import BARRIER

Node = tuple[int, int, float]
"""(token, parent, chance)."""


def ends_of(text: Sequence[int], pattern: Sequence[int]) -> list[int]:
    """Positions right after each occurrence of a pattern that holds no barrier."""
    n = len(pattern)
    return [at + n for at in range(len(text) - n + 1) if list(text[at : at + n]) == list(pattern)]


def nexts(text: Sequence[int], pattern: Sequence[int]) -> list[tuple[int, int]]:
    """(token, count) of what followed a pattern, most frequent first, ties by the lower id."""
    found = Counter(text[end] for end in ends_of(text, pattern) if end < len(text))
    del found[BARRIER]
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def guess_suffix(
    text: Sequence[int],
    context: Sequence[int],
    *,
    max_factor: float,
    max_offset: float,
    min_prob: float,
    max_depth: int,
    tree: bool,
    media: frozenset[int],
    eos: frozenset[int],
    budget: int,
) -> tuple[list[Node], float, int]:
    """Each length of match on its own; the whole frontier is looked through for every node."""
    best: tuple[list[Node], float, int] = [], 0.0, 0
    for length in range(min(len(context), max_depth - 1), 0, -1):
        pattern = list(context[-length:])
        if media & set(pattern) or not ends_of(text, pattern):
            continue
        most = min(max(math.floor(max_factor * length + max_offset + 1e-6), 0), budget)
        nodes = _likeliest(
            text, pattern, most, min_prob=min_prob, max_depth=max_depth, tree=tree, eos=eos
        )
        score = 0.0
        for _, _, chance in nodes:
            score += chance
        if score > best[1]:
            best = nodes, score, length
    return best


def _likeliest(
    text: Sequence[int],
    pattern: Sequence[int],
    most: int,
    *,
    min_prob: float,
    max_depth: int,
    tree: bool,
    eos: frozenset[int],
) -> list[Node]:
    """At most `most` continuations of one pattern, the first found first among equals."""
    nodes: list[Node] = []
    frontier: list[tuple[float, int, tuple[int, ...], int]] = []
    found = 0

    def push(path: tuple[int, ...], parent: int, chance: float) -> None:
        nonlocal found
        if len(pattern) + len(path) == max_depth or (path and path[-1] in eos):
            return
        after = nexts(text, [*pattern, *path])
        total = sum(count for _, count in after)
        for token, count in after if tree else after[:1]:
            child = chance * (count / total)
            if child >= min_prob:
                frontier.append((-child, found, (*path, token), parent))
                found += 1

    push((), -1, 1.0)
    while frontier and len(nodes) < most:
        frontier.sort()
        chance, _, path, parent = frontier.pop(0)
        nodes.append((path[-1], parent, -chance))
        push(path, len(nodes) - 1, -chance)
    return nodes

"""Twins of cpp/src/window_trie and lookahead_draft: windows as counted tuples of tokens."""

from __future__ import annotations

from collections.abc import Sequence

Window = tuple[int, ...]
Node = tuple[int, int, float]
"""(token, parent, score)."""


class WindowTrie:
    """Counts by window, first token included; windows of one token only name their trie."""

    def __init__(self, depth: int, max_nodes: int, trie_nodes: int, touched_tries: int) -> None:
        self.depth, self.max_nodes = depth, max_nodes
        self.trie_nodes, self.touched_tries = trie_nodes, touched_tries
        self.counts: dict[Window, float] = {}
        self.touched: set[int] = set()

    def __len__(self) -> int:
        return len(self.counts) + len({window[0] for window in self.counts})

    def add_windows(
        self, tokens: Sequence[int], starts: int, media: frozenset[int], eos: frozenset[int]
    ) -> None:
        for start in range(min(starts, len(tokens))):
            window: list[int] = []
            for token in tokens[start : start + self.depth + 1]:
                if token in media or token in eos:
                    break
                window.append(token)
            if len(window) < 2:
                continue
            while len(self) + self.depth + 1 > self.max_nodes:
                self._squeeze(everything=True)
            self.touched.add(window[0])
            for end in range(2, len(window) + 1):
                key = tuple(window[:end])
                self.counts[key] = self.counts.get(key, 0.0) + 1

    def end_request(self) -> None:
        if len(self.touched) >= self.touched_tries:
            self._squeeze(everything=False)

    def _squeeze(self, *, everything: bool) -> None:
        while True:
            kept = {}
            sizes: dict[int, int] = {}
            for window in self.counts:
                sizes[window[0]] = sizes.get(window[0], 0) + 1
            for window, count in self.counts.items():
                full = window[0] in self.touched and sizes[window[0]] > self.trie_nodes
                if not (everything or full):
                    kept[window] = count
                elif count > 1:
                    kept[window] = count / 2
            self.counts, self.touched = kept, set()
            if not everything or len(self) <= self.max_nodes // 2:
                return


def lookahead(
    input: WindowTrie,
    output: WindowTrie,
    query: Sequence[int],
    *,
    nodes: int,
    depth: int,
    weight: float,
    budget: int,
) -> list[Node]:
    """The tree of the first key that gives a whole branch, else of the last one known."""
    draft: list[Node] = []
    for i in range(len(query)):
        if any(window[0] == query[i] for window in (*input.counts, *output.counts)):
            draft = _read(input, output, tuple(query[i:]), nodes=nodes, depth=depth, weight=weight)
            if len(draft) + 1 >= depth:
                break
    return draft[:budget]


def _read(
    input: WindowTrie, output: WindowTrie, key: Window, *, nodes: int, depth: int, weight: float
) -> list[Node]:
    """Sort all that followed, then walk it depth-first."""
    below = {w for w in (*input.counts, *output.counts) if w[: len(key)] == key and w != key}
    least = 0.0
    if len(below) > nodes:
        least = sorted((output.counts.get(w, 0.0) for w in below), reverse=True)[nodes // 2 - 1]

    def mixed(window: Window) -> float:
        inputs, outputs = input.counts.get(window, 0.0), output.counts.get(window, 0.0)
        return (1 - weight) * inputs + weight * outputs

    draft: list[Node] = []

    def walk(at: Window, parent: int, score: float) -> None:
        if len(at) - len(key) == depth:
            return
        children = [w for w in below if len(w) == len(at) + 1 and w[:-1] == at]
        total = sum(mixed(w) for w in children)
        for child in sorted(children, key=lambda w: (-mixed(w), w[-1])):
            if len(draft) == nodes - 1:
                return
            if output.counts.get(child, 0.0) < least:
                continue
            share = score * (mixed(child) / total if total else 0.0)
            draft.append((child[-1], parent, share))
            walk(child, len(draft) - 1, share)

    walk(key, -1, 1.0)
    return draft

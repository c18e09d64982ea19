"""Token Recycling (Luo et al., 2025): a fixed tree, filled from what the target said last time.

For every token of the vocabulary a row remembers the target's 8 best next tokens, as of the last
time that token was evaluated in any tree. Drafting reads the rows into a tree whose shape never
changes: "2.2.2", 80 nodes, found by its authors by counting which ranks come true.

As published: rows start as zeros and prompts do not write them; children of a token that was never
evaluated are eight times the id 0; duplicates stay. One thing is left open there and decided here:
where a token stands at several nodes of a pass, nodes write in packed order, then those of the
accepted path once more, so that what became text wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from eyespan import _core
from eyespan.config import check_whole, config_of
from eyespan.drafters.base import Ask, Session
from eyespan.memory import Memory, check_memory, ids_of
from eyespan.types import ROW_SIZE, DraftTree, Ints, Needs, Prefill, Request, Step

_TREE = """
0 1 2 3 4 5 6 7
00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070
100 101 110 200 300 400 500
0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
00000 00001 00002 00010 00020 00100 01000 10000
000000 000001 000100
"""
PATHS = tuple(_TREE.split())
"""The tree: a node is the path of ranks that leads to it. A parent stands before its children. The
core holds the same tree as child counts."""
_MEMORY = "rows of token_recycling"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecyclingConfig:
    """The method has one free number, and it is ours.

    Attributes:
        max_scopes: most memory scopes kept, 32 bytes of each vocabulary entry; the least recently
            used one is forgotten.
    """

    max_scopes: int = 16

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole("token_recycling", self, {"max_scopes": (1, 1 << 16)})


class TokenRecycling:
    """What requests share: one matrix of rows [vocab_size, 8] for each memory scope.

    Args:
        vocab_size: ids of the target.
        **options: fields of `TokenRecyclingConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "token_recycling"
    needs = Needs(rows=True)
    fixed_budget = len(PATHS)
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of(self.name, TokenRecyclingConfig, options)
        self.vocab_size = vocab_size
        self._scopes: OrderedDict[str | None, Ints] = OrderedDict()

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session on the scope's matrix; the prompt's rows are not written."""
        return TokenRecyclingSession(self.matrix(request.scope), request)

    def matrix(self, scope: str | None) -> Ints:
        """[vocab_size, 8] the rows of a scope, now its most recently used."""
        if scope not in self._scopes:
            self._scopes[scope] = np.zeros((self.vocab_size, ROW_SIZE), np.int32)
        self._scopes.move_to_end(scope)
        while len(self._scopes) > self.config.max_scopes:
            self._scopes.popitem(last=False)
        return self._scopes[scope]

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own tree."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether a request of this scope has written rows."""
        return scope in self._scopes and bool(self._scopes[scope].any())

    def export_memory(self, scope: str | None) -> Memory | None:
        """The rows of a scope that were written."""
        if not self.is_warm(scope):
            return None
        matrix = self._scopes[scope]
        written = np.flatnonzero(matrix.any(axis=1)).astype(np.int32)
        return Memory(_MEMORY, {}, {"tokens": written, "rows": matrix[written]})

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace the rows of a scope.

        Raises:
            ValueError, KeyError: no rows of this vocabulary; the memory is then as it was.
        """
        check_memory(memory, _MEMORY, {})
        tokens = ids_of(memory, "tokens", 0, self.vocab_size)
        rows = ids_of(memory, "rows", -1, self.vocab_size)
        if tokens.ndim != 1 or rows.shape != (len(tokens), ROW_SIZE):
            raise ValueError(f"{rows.shape} rows of {tokens.shape} tokens")
        matrix = np.zeros((self.vocab_size, ROW_SIZE), np.int32)
        matrix[tokens] = rows
        self._scopes[scope] = matrix
        self.matrix(scope)

    def reset(self) -> None:
        """Forget all rows of every scope, sessions that are still open included."""
        for matrix in self._scopes.values():
            matrix.fill(0)
        self._scopes.clear()


class TokenRecyclingSession:
    """One request's view of its scope's matrix."""

    def __init__(self, matrix: Ints, request: Request) -> None:
        self._matrix, self._media = matrix, request.media_ids
        self._no_text = _core.TokenSet(len(matrix), sorted(request.media_ids))

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """Fill the tree layer by layer: the child of rank r is the r-th of its parent's row.

        A media id is left out, with what would hang below it. Before anything is known a rank takes
        half of what the better ones left, so that a path of ranks r1, r2, ... is worth
        2^-(r1 + 1 + r2 + 1 + ...); a node that repeats a sibling, and one read from a row that was
        never written, can hardly come true: its score is 0.
        """
        return DraftTree(*_core.recycled_tree(self._matrix, int(prefix[-1]), self._no_text, budget))

    def observe(self, step: Step) -> None:
        """Every node of the pass writes the row of its own token, the root included."""
        tree, path = step.tree, step.verdict.path.tolist()
        order = [*range(len(tree)), 0, *path]
        writers = dict(zip(tree.tokens[order].tolist(), order, strict=True))  # the last one stays
        for token, node in writers.items():
            if token not in self._media:
                self._matrix[token] = step.out.row_ids[node]

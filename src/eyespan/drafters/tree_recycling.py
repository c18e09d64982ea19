"""Tree Recycling: RECAP's weaker control of Token Recycling (its appendix A).

A row of the target's 4 best next tokens under the last token alone, known to one request only, and
a static binary tree of depth 4 read from it: 30 nodes. What has no row has no children. Map and
search are the compiled core's; in a pass the first node of a token writes its row, as in RECAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from eyespan import _core
from eyespan.config import check_whole, config_of, refuse
from eyespan.drafters.base import Ask, Session
from eyespan.types import MAX_PACK, ROW_SIZE, DraftTree, Ints, Needs, Prefill, Request, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecyclingConfig:
    """Defaults are the paper's.

    Attributes:
        row_size: predictions kept of each row.
        width: children of a node, the row's best.
        depth: levels of the tree.
        max_rows: most rows kept; the least recently written one makes room.
    """

    row_size: int = 4
    width: int = 2
    depth: int = 4
    max_rows: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse values outside their range, and trees that fit no pack.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole(
            "tree_recycling",
            self,
            {
                "row_size": (1, ROW_SIZE),
                "width": (1, ROW_SIZE),
                "depth": (1, 20),
                "max_rows": (1, 1 << 24),
            },
        )
        if self.width > self.row_size:
            refuse("tree_recycling", "width", self.width, f"at most {self.row_size}, `row_size`")
        if self.nodes >= MAX_PACK:
            needed = f"small enough for {MAX_PACK - 1} nodes at width {self.width}"
            refuse("tree_recycling", "depth", self.depth, needed)

    @property
    def nodes(self) -> int:
        """Nodes of the tree besides the root."""
        return sum(self.width**level for level in range(1, self.depth + 1))

    @property
    def shape(self) -> list[int]:
        """Children of each node, breadth first, root first."""
        leaves = self.width**self.depth
        return [self.width] * (1 + self.nodes - leaves) + [0] * leaves


class TreeRecycling:
    """The static tree's rules; requests share nothing.

    Args:
        vocab_size: ids of the target.
        **options: fields of `TreeRecyclingConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "tree_recycling"
    needs = Needs(rows=True)
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of(self.name, TreeRecyclingConfig, options)
        self.vocab_size = vocab_size
        self.fixed_budget = self.config.nodes
        self.rules = _core.ProposeRules(
            fusion=_core.Fusion.uniform,
            eta=[1.0],
            width=self.config.width,
            depth=self.config.depth,
            shape=self.config.shape,
        )

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session without rows."""
        return TreeRecyclingSession(self, request)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own tree."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Never: a memory ends with its request."""
        return False

    def reset(self) -> None:
        """Nothing is shared."""


class TreeRecyclingSession:
    """One request's rows."""

    def __init__(self, drafter: TreeRecycling, request: Request) -> None:
        self._rules, self._row_size = drafter.rules, drafter.config.row_size
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos = _core.TokenSet(drafter.vocab_size, sorted(request.eos_ids))
        rows = min(drafter.config.max_rows, drafter.vocab_size)
        self._map = _core.RowMap(order=1, max_rows=rows)
        self._memory = _core.Memory(self._map)

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """Fill the tree level by level; a node's score is the product of its path's
        probabilities, each within its row.
        """
        if budget < 1:
            return DraftTree.empty()
        tokens, parents, scores, _ = self._memory.propose(
            prefix[-1:], self._rules, budget, self._media, self._eos
        )
        return DraftTree(tokens, parents, scores)

    def observe(self, step: Step) -> None:
        """Every node of the pass refreshes the row of its own token."""
        tree, out = step.tree, step.out
        self._memory.refresh(
            step.prefix[:0],
            tree.tokens,
            tree.parents,
            np.ascontiguousarray(out.row_ids[:, : self._row_size]),
            np.ascontiguousarray(out.row_logits[:, : self._row_size]),
            self._media,
        )

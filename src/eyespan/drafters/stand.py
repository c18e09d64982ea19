"""STAND: the target's own rows under the last four tokens, backing off to fewer.

Every verified position leaves its four best next tokens under its last one to four tokens. A draft
grows best first by the product of probabilities; at each node the longest n-gram that has a row
speaks alone. RECAP differs in mixing the rows of three lengths and in its depth priors.

After Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling", EMNLP 2025
(arXiv 2506.04708), as drafters of that name without its sampling do: the newest row of an n-gram
replaces an older one, and the tree follows the rows, not a tree fitted to data. Defaults of sizes
are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from eyespan import _core
from eyespan.config import check_choice, check_whole, config_of
from eyespan.drafters.base import Ask, Session
from eyespan.memory import Memory, check_memory, rows_in, rows_out
from eyespan.scopes import Scopes
from eyespan.types import (
    MAX_PACK,
    ROW_SIZE,
    DraftTree,
    Floats,
    Ints,
    Needs,
    Prefill,
    PromptRows,
    Request,
    Step,
)

Persist = Literal["stream", "request"]
_MEMORY = "rows of stand"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandConfig:
    """What is remembered and how large a tree may be.

    Attributes:
        row_size: predictions kept at a position.
        longest: tokens of the longest n-gram, at most 4.
        nodes: of a tree.
        depth: longest path.
        prompt_rows: which prompt positions are remembered too: "none", the "first" occurrence of
            every token, or "all" (then the target computes its predictions for the whole prompt).
        persist: whether rows live on in their memory scope ("stream") or end with their "request".
        max_rows: most rows of each n-gram length; the least recently written one makes room.
        max_scopes: most memory scopes kept; the least recently used is forgotten.
    """

    row_size: int = 4
    longest: int = 4
    nodes: int = 63
    depth: int = 10
    prompt_rows: PromptRows = "first"
    persist: Persist = "stream"
    max_rows: int = 1 << 17
    max_scopes: int = 64

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole("stand", self, _RANGES)
        choices = {"prompt_rows": get_args(PromptRows), "persist": get_args(Persist)}
        check_choice("stand", self, choices)


_RANGES = {
    "row_size": (1, ROW_SIZE),
    "longest": (1, 4),
    "nodes": (1, MAX_PACK - 1),
    "depth": (1, 21),
    "max_rows": (1, 1 << 24),
    "max_scopes": (1, 1 << 16),
}

Maps = list[_core.RowMap]


class Stand:
    """What requests share: the rows of each memory scope.

    Args:
        vocab_size: ids of the target.
        **options: fields of `StandConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "stand"
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        config = self.config = config_of(self.name, StandConfig, options)
        self.vocab_size = vocab_size
        self.needs = Needs(rows=True, prompt_rows=config.prompt_rows)
        self.fixed_budget = config.nodes
        self.rules = _core.ProposeRules(
            fusion=_core.Fusion.backoff, eta=[1.0], width=config.row_size, depth=config.depth
        )
        self._scopes = Scopes(self._new_maps, config.max_scopes)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session; the prompt's rows are written."""
        shared = self.config.persist == "stream"
        maps = self._scopes.open(request.scope) if shared else self._new_maps()
        return StandSession(self, request, prefill, maps)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own search."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether rows of this scope are remembered."""
        return any(map(len, self._scopes.get(scope) or ()))

    def export_memory(self, scope: str | None) -> Memory | None:
        """The rows of a scope, by n-gram length; `persist="request"` keeps none."""
        if not self.is_warm(scope):
            return None
        tensors: dict[str, Any] = {}
        for rows in self._scopes.get(scope) or ():
            tensors |= rows_out(rows, str(rows.order))
        return Memory(_MEMORY, self._settings, tensors)

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace the rows of a scope.

        Raises:
            ValueError, KeyError, TypeError: no rows of this vocabulary and n-gram length, or
                nothing outlives a request; the memory is then as it was.
        """
        check_memory(memory, _MEMORY, self._settings)
        if self.config.persist == "request":
            raise ValueError("under persist='request' no memory outlives a request")
        maps = self._new_maps()
        for rows in maps:
            rows_in(memory, str(rows.order), rows, self.vocab_size)
        self._scopes.put(scope, maps)

    @property
    def _settings(self) -> dict[str, int]:
        return {"longest": self.config.longest, "row_size": self.config.row_size}

    def reset(self) -> None:
        """Forget the rows of every scope, sessions that are still open included."""
        for maps in self._scopes:
            for rows in maps:
                rows.clear()
        self._scopes.clear()

    def _new_maps(self) -> Maps:
        """One map for each n-gram length, the shortest first."""
        most = self.config.max_rows
        return [
            _core.RowMap(order=order, max_rows=min(most, self.vocab_size) if order == 1 else most)
            for order in range(1, self.config.longest + 1)
        ]


class StandSession:
    """One request's view of the rows."""

    def __init__(self, drafter: Stand, request: Request, prefill: Prefill, maps: Maps) -> None:
        self._config, self._rules = drafter.config, drafter.rules
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos = _core.TokenSet(drafter.vocab_size, sorted(request.eos_ids))
        self._memory = _core.Memory(*maps)
        self._memory.seed(
            request.prompt_ids,
            prefill.positions,
            *self._best(prefill.row_ids, prefill.row_logits),
            self._media,
            contexts=True,
        )

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The likeliest paths, each node's row that of its longest known n-gram."""
        if budget < 1:
            return DraftTree.empty()
        tokens, parents, scores, _ = self._memory.propose(
            prefix[-4:], self._rules, min(budget, self._config.nodes), self._media, self._eos
        )
        return DraftTree(tokens, parents, scores)

    def observe(self, step: Step) -> None:
        """Every node of the pass writes its row under its own path."""
        tree, out = step.tree, step.out
        self._memory.refresh(
            step.prefix[-4:-1],
            tree.tokens,
            tree.parents,
            *self._best(out.row_ids, out.row_logits),
            self._media,
        )

    def _best(self, ids: Ints, logits: Floats) -> tuple[Ints, Floats]:
        """[n, row_size] ids and logits."""
        best = self._config.row_size
        return np.ascontiguousarray(ids[:, :best]), np.ascontiguousarray(logits[:, :best])

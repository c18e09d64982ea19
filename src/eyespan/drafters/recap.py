"""RECAP: drafting by recycling the target's own predictions, without training.

Every evaluated position leaves a row (the target's 8 best next tokens) under its last one, two and
three text tokens: the maps U, C and G. Drafting asks the three again at every node of a tree, fuses
what they say, keeps the likeliest paths and adds what followed the longest earlier match of the
text's end. All of it runs on the host in the compiled core; `tests/reference/recap.py` is the same
method in slow plain Python.

Sections, equations and appendices are the paper's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

import numpy as np

from eyespan import _core
from eyespan.config import config_of, refuse
from eyespan.drafters._recap_config import RecapConfig
from eyespan.drafters._root_fallback import RootFallback
from eyespan.drafters.base import Ask, Session
from eyespan.memory import Memory, check_memory, rows_in, rows_out
from eyespan.types import DraftTree, Floats, Ints, Needs, Prefill, Request, Step, empty_ints

ORIGINS = ("recap", "suffix")
_MEMORY = "rows of recap"


class _Contexts(NamedTuple):
    """The request's own maps and the prompt they began with."""

    prompt: Ints
    c: _core.RowMap | None
    g: _core.RowMap | None


class Recap:
    """What requests share: one U for each memory scope.

    Args:
        vocab_size: ids of the target.
        **options: fields of `RecapConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "recap"

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of("recap", RecapConfig, options)
        if not 0 < vocab_size <= _core.TOKEN_LIMIT:
            limit = f"from 1 to {_core.TOKEN_LIMIT}: keys hold 21 bits"
            refuse("recap", "vocab_size", vocab_size, limit)
        self.vocab_size = vocab_size
        self.rules = self.config.rules()
        semantic = self.config.root_fallback == "semantic"
        self.needs = Needs(
            rows=True,
            prompt_rows="all" if self.config.seed_context else "first",
            hidden_layers=(-1,) if semantic else (),
        )
        self.fixed_budget = self.config.nodes
        self.extra_nodes = self.config.extra_nodes
        self._scopes: OrderedDict[str | None, _core.RowMap] = OrderedDict()
        self._last: OrderedDict[tuple[str | None, str | None], _Contexts] = OrderedDict()

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session: the prompt's rows seed U, its text enters the suffix automaton."""
        return RecapSession(self, request, prefill, *self._maps(request))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own proposal; a tree costs some ten microseconds."""
        return [
            _session_of(ask).draft(ask.prefix, ask.budget, cut=ask.pace is not None) for ask in asks
        ]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether U of this scope holds rows."""
        return scope in self._scopes and len(self._scopes[scope]) > 0

    def reset(self) -> None:
        """Forget U of every scope, sessions that are still open included."""
        for u in self._scopes.values():
            u.clear()
        self._scopes.clear()
        self._last.clear()

    def state_bytes(self) -> int:
        """Bytes of everything that outlives a request: U of every scope, contexts kept for a
        conversation's next turn.
        """
        kept = [m for last in self._last.values() for m in (last.c, last.g) if m is not None]
        return sum(rows.nbytes for rows in (*self._scopes.values(), *kept))

    def new_task(self) -> None:
        """A task boundary: forgets what `persist="task"` keeps within a task (appendix D)."""
        if self.config.persist == "task":
            self.reset()

    def export_memory(self, scope: str | None) -> Memory | None:
        """U of a scope; `persist="request"` keeps none."""
        if not self.is_warm(scope):
            return None
        return Memory(_MEMORY, {}, rows_out(self._scopes[scope], "u"))

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace U of a scope.

        Raises:
            ValueError, KeyError, TypeError: no rows of this vocabulary, or nothing outlives a
                request; the memory is then as it was.
        """
        check_memory(memory, _MEMORY, {})
        if self.config.persist == "request":
            raise ValueError("under persist='request' no memory outlives a request")
        u = self._new_map(1)
        rows_in(memory, "u", u, self.vocab_size)
        self._keep(scope, u)

    def _maps(
        self, request: Request
    ) -> tuple[_core.RowMap, _core.RowMap | None, _core.RowMap | None]:
        """U, C and G for a request."""
        scope = request.scope
        if self.config.persist == "request":
            u = self._new_map(1)
        else:
            u = self._scopes[scope] if scope in self._scopes else self._new_map(1)
            self._keep(scope, u)
        turn = (scope, request.conversation)
        earlier = self._last.get(turn)
        if earlier is None or not _continues(request, earlier.prompt):
            orders = self.config.orders.count("+")
            c = self._new_map(2) if orders >= 1 else None
            g = self._new_map(3) if orders >= 2 else None
        else:
            _, c, g = earlier
        if self.config.conversation:
            self._last[turn] = _Contexts(request.prompt_ids, c, g)
            self._last.move_to_end(turn)
            while len(self._last) > self.config.max_scopes:
                self._last.popitem(last=False)
        return u, c, g

    def _new_map(self, order: int) -> _core.RowMap:
        rows = self.config.max_rows
        return _core.RowMap(
            order=order, max_rows=min(rows, self.vocab_size) if order == 1 else rows
        )

    def _keep(self, scope: str | None, u: _core.RowMap) -> None:
        """Make U the scope's, as the most recently used."""
        self._scopes[scope] = u
        self._scopes.move_to_end(scope)
        while len(self._scopes) > self.config.max_scopes:
            forgotten, _ = self._scopes.popitem(last=False)
            for turn in [turn for turn in self._last if turn[0] == forgotten]:
                del self._last[turn]


def _continues(request: Request, earlier: Ints) -> bool:
    """Whether a prompt is an earlier one and then text alone: a conversation's next turn."""
    prompt, length = request.prompt_ids, len(earlier)
    return (
        len(prompt) > length
        and bool(np.array_equal(prompt[:length], earlier))
        and not np.isin(prompt[length:], list(request.media_ids)).any()
    )


class RecapSession:
    """One request: its maps, its suffix automaton, and the rows a root fallback may use."""

    def __init__(
        self,
        drafter: Recap,
        request: Request,
        prefill: Prefill,
        u: _core.RowMap,
        c: _core.RowMap | None,
        g: _core.RowMap | None,
    ) -> None:
        config = self._config = drafter.config
        self._rules = drafter.rules
        self._occurrence = _core.Occurrence[config.suffix_occurrence]
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos = _core.TokenSet(drafter.vocab_size, sorted(request.eos_ids))
        self._memory = _core.Memory(u, c, g)
        self._memory.seed(
            request.prompt_ids,
            prefill.positions,
            prefill.row_ids,
            prefill.row_logits,
            self._media,
            contexts=config.seed_context,
        )
        self._contexts = [rows for rows in (c, g) if rows is not None]
        self._text = _core.SuffixAutomaton(max_tokens=config.max_suffix_tokens)
        self._indexed = 0  # tokens of the prefix that are in the automaton
        if config.suffix_tokens:
            self._index(request.prompt_ids)
        self._fallback = None
        if config.root_fallback != "none":
            self._fallback = RootFallback(semantic=config.root_fallback == "semantic")

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """Look up, fuse, search, then reuse a sequence (sections 3.3 to 3.5)."""
        return self.draft(prefix, budget, cut=False)

    def draft(self, prefix: Ints, budget: int, *, cut: bool) -> DraftTree:
        """The same; `cut` says that the budget rule will choose among the nodes, so that a longer
        sequence may be offered.
        """
        if budget < 1:
            return DraftTree.empty()
        history = prefix[-3:]
        continuation, mass = self._continuation(prefix, self._config.continuation(cut=cut))
        rows: tuple[Ints, Floats] | None = None
        if self._fallback is not None and not self._memory.has_row(history, self._media):
            rows = self._fallback.rows()
        tokens, parents, scores, origins = self._memory.propose(
            history,
            self._rules,
            min(budget, self._config.nodes),
            self._media,
            self._eos,
            continuation=continuation,
            continuation_mass=mass,
            fallback_ids=rows[0] if rows else None,
            fallback_logits=rows[1] if rows else None,
        )
        return DraftTree(tokens, parents, scores, origins, ORIGINS)

    def observe(self, step: Step) -> None:
        """All evaluated nodes refresh the maps; only committed tokens enter the automaton."""
        tree, out = step.tree, step.out
        self._memory.refresh(
            step.prefix[-3:-1], tree.tokens, tree.parents, out.row_ids, out.row_logits, self._media
        )
        if self._config.suffix_tokens:
            self._index(step.prefix[self._indexed :])
            self._index(np.array(step.verdict.tokens, np.int32))
        if self._fallback is not None:
            self._fallback.observe(step)

    def state_bytes(self) -> int:
        """Bytes of the request's own memory: C, G and the suffix automaton."""
        return sum(rows.nbytes for rows in self._contexts) + self._text.nbytes

    def _index(self, tokens: Ints) -> None:
        self._text.extend(tokens, self._media)
        self._indexed += len(tokens)

    def _continuation(self, prefix: Ints, most: int) -> tuple[Ints, float]:
        """What followed the longest earlier match of the text's end, and how sure it is.

        A match of n tokens is trusted like a row that puts n / (n + 1) on its continuation. The
        first token of an answer is committed before any round, so that the automaton has not seen
        it yet: it is matched from outside.
        """
        if not most:
            return empty_ints(), 1.0
        new = prefix[self._indexed :]
        length, end = self._text.match(self._occurrence, extra=new, media=self._media)
        if length < self._config.suffix_min_match:
            return empty_ints(), 1.0
        tokens = self._text.continuation(length, end, most, extra=new, media=self._media)
        return tokens, length / (length + 1)


def _session_of(ask: Ask) -> RecapSession:
    assert isinstance(ask.session, RecapSession)
    return ask.session

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
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from eyespan import _core
from eyespan.drafters.base import Ask, Session
from eyespan.errors import ConfigError, unknown_name
from eyespan.memory import Memory, check_memory, rows_in, rows_out
from eyespan.types import (
    MAX_PACK,
    ROW_SIZE,
    DraftTree,
    Floats,
    Ints,
    Needs,
    Prefill,
    Request,
    Step,
    empty_ints,
)

Orders = Literal["U", "U+C", "U+C+G"]
FusionRule = Literal["entropy", "fixed_prior", "no_prior", "uniform", "gate", "backoff"]
PriorSet = Literal["default", "soft", "sharp"]
Search = Literal["best_first", "fixed"]
Occurrence = Literal["latest", "earliest"]
Persist = Literal["stream", "request", "task"]
Fallback = Literal["none", "recency", "semantic"]

PRIORS: dict[str, tuple[float, float, float]] = {
    "default": (0.70, 0.20, 0.10),
    "soft": (0.55, 0.30, 0.15),
    "sharp": (0.85, 0.10, 0.05),
}
ORIGINS = ("recap", "suffix")
_MEMORY = "rows of recap"
INDEXED_ROWS = 2048
"""Rows a root fallback may search (appendix H)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecapConfig:
    """Every switch of the method. Defaults are the paper's (appendix A) where it gives one.

    Attributes:
        row_size: predictions kept at a position, the paper's K. The core is built for 8.
        orders: which maps exist (section 3.3).
        fusion: how rows that answer one context are weighted (section 3.4, appendix I).
        priors: weights by specificity among the available rows, the paper's alpha: a name or three
            numbers.
        eta: what a path's score is multiplied by at depth 1, 2, ...; the last one repeats (eq. 8).
        nodes: of a tree besides root and suffix nodes (the paper's node budget).
        width: most children of a node.
        depth: longest path.
        search: "best_first", or "fixed", the control of table 4: the published static tree of Token
            Recycling (80 nodes), filled level by level and cut at `nodes`.
        suffix_tokens: longest continuation taken from the text itself; 0 turns it off.
        suffix_min_match: shortest match worth continuing.
        suffix_occurrence: which earlier occurrence of the match is continued.
        suffix_inside_budget: whether suffix nodes count within `nodes` (controls of table 7).
        seed_context: whether the prompt's rows also seed C and G.
        max_rows: most rows a map holds; the least recently written makes room.
        max_suffix_tokens: most tokens the suffix automaton keeps; then the recent half stays.
        persist: how long U lives: the whole "stream", one "request", or until `new_task`
            (appendix D).
        max_scopes: most memory scopes kept; the least recently used is forgotten.
        conversation: whether C and G live on when a request's prompt continues the last one of its
            conversation (of its scope, where requests name none) by text alone. The paper starts
            them empty.
        root_fallback: what stands in when no map answers at the root (appendix H): nothing, the
            latest row, or up to three rows with similar predecessor states.
    """

    row_size: int = ROW_SIZE
    orders: Orders = "U+C+G"
    fusion: FusionRule = "entropy"
    priors: PriorSet | tuple[float, ...] = "default"
    eta: tuple[float, ...] = (0.68, 0.63, 0.50, 0.43, 0.40, 0.38)
    nodes: int = 63
    width: int = 8
    depth: int = 10
    search: Search = "best_first"
    suffix_tokens: int = 4
    suffix_min_match: int = 1
    suffix_occurrence: Occurrence = "latest"
    suffix_inside_budget: bool = False
    seed_context: bool = False
    max_rows: int = 1 << 18
    max_suffix_tokens: int = 1 << 16
    persist: Persist = "stream"
    max_scopes: int = 64
    conversation: bool = False
    root_fallback: Fallback = "none"

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                _refuse(field, getattr(self, field), f"one of {', '.join(choices)}")
        for field, (low, high) in _RANGES.items():
            value = getattr(self, field)
            if type(value) is not int or not low <= value <= high:
                _refuse(field, value, f"a whole number from {low} to {high}")
        for field in _SWITCHES:
            if type(getattr(self, field)) is not bool:
                _refuse(field, getattr(self, field), "true or false")
        for field in ("priors", "eta"):
            value = getattr(self, field)
            if isinstance(value, list):  # configs come from TOML and JSON too
                object.__setattr__(self, field, tuple(value))
        if not _weights(self.eta):
            _refuse("eta", self.eta, "one or more numbers above 0, at most 1")
        if self.priors not in PRIORS and not (_weights(self.priors) and len(self.priors) == 3):
            _refuse("priors", self.priors, f"{', '.join(PRIORS)}, or three numbers in (0, 1]")
        if self.nodes + self.extra_nodes >= MAX_PACK:
            _refuse("nodes", self.nodes, f"less than {MAX_PACK} with suffix_tokens and the root")

    @property
    def extra_nodes(self) -> int:
        """Suffix nodes on top of `nodes`."""
        return 0 if self.suffix_inside_budget else self.suffix_tokens

    def rules(self) -> _core.ProposeRules:
        """The part that the core's search reads."""
        return _core.ProposeRules(
            fusion=_core.Fusion[self.fusion],
            priors=PRIORS[self.priors] if isinstance(self.priors, str) else self.priors,
            eta=self.eta,
            width=self.width,
            depth=self.depth,
            shape=_core.token_recycling_shape() if self.search == "fixed" else (),
            suffix_inside_budget=self.suffix_inside_budget,
        )


_CHOICES = {
    "orders": get_args(Orders),
    "fusion": get_args(FusionRule),
    "search": get_args(Search),
    "suffix_occurrence": get_args(Occurrence),
    "persist": get_args(Persist),
    "root_fallback": get_args(Fallback),
}
_RANGES = {
    "row_size": (ROW_SIZE, ROW_SIZE),
    "nodes": (1, MAX_PACK - 1),
    "width": (1, ROW_SIZE),
    "depth": (1, 21),
    "suffix_tokens": (0, MAX_PACK - 1),
    "suffix_min_match": (1, 1 << 16),
    "max_rows": (1, 1 << 24),
    "max_suffix_tokens": (2, 1 << 24),
    "max_scopes": (1, 1 << 16),
}
_SWITCHES = ("suffix_inside_budget", "seed_context", "conversation")


def _weights(values: object) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) > 0
        and all(type(value) in (int, float) and 0 < value <= 1 for value in values)
    )


def _refuse(field: str, value: object, needed: str) -> None:
    raise ConfigError(
        f"recap option '{field}'",
        found=f"it is {value!r}",
        needed=f"it must be {needed}",
        todo=f"Change {field}, or leave it out for the paper's setting.",
    )


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
        for option in options:
            if option not in _FIELDS:
                raise unknown_name("recap option", option, _FIELDS)
        if not 0 < vocab_size <= _core.TOKEN_LIMIT:
            _refuse("vocab_size", vocab_size, f"from 1 to {_core.TOKEN_LIMIT}: keys hold 21 bits")
        self.config = RecapConfig(**options)
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
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

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


_FIELDS = tuple(field.name for field in fields(RecapConfig))


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
        if budget < 1:
            return DraftTree.empty()
        history = prefix[-3:]
        continuation, mass = self._continuation(prefix)
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

    def _continuation(self, prefix: Ints) -> tuple[Ints, float]:
        """What followed the longest earlier match of the text's end, and how sure it is.

        A match of n tokens is trusted like a row that puts n / (n + 1) on its continuation. The
        first token of an answer is committed before any round, so that the automaton has not seen
        it yet: it is matched from outside.
        """
        config = self._config
        if not config.suffix_tokens:
            return empty_ints(), 1.0
        new = prefix[self._indexed :]
        length, end = self._text.match(self._occurrence, extra=new, media=self._media)
        if length < config.suffix_min_match:
            return empty_ints(), 1.0
        tokens = self._text.continuation(
            length, end, config.suffix_tokens, extra=new, media=self._media
        )
        return tokens, length / (length + 1)


class RootFallback:
    """A request's latest rows, for roots that no map answers (appendix H).

    A row is filed under its predecessor's hidden state; the question is the state that produced the
    root, which no forward has read yet. First in, first out, at most 2,048 rows.

    Args:
        semantic: rank by the cosine of states (up to three rows); else the latest row alone.
    """

    def __init__(self, *, semantic: bool) -> None:
        self._semantic = semantic
        self._ids: Ints | None = None
        self._logits: Floats | None = None
        self._states: Floats | None = None
        self._verified: Floats | None = None

    def rows(self) -> tuple[Ints, Floats] | None:
        """Ids and logits of the rows to use, best first."""
        if self._ids is None or self._logits is None:
            return None
        if not self._semantic:
            return self._ids[-1:], self._logits[-1:]
        if self._states is None or self._verified is None:
            return None
        best = np.argsort(-(self._states @ self._verified), kind="stable")[:3]
        return self._ids[best], self._logits[best]

    def observe(self, step: Step) -> None:
        """File the rows of one round, in packed order."""
        out = step.out
        filed = np.arange(len(step.tree))
        if self._semantic:
            states = _unit_rows(np.asarray(out.extras["hidden"], np.float32))
            before = states[step.tree.parents]
            if self._verified is None:
                filed = filed[1:]  # the root's predecessor was read by the prompt's forward
            else:
                before[0] = self._verified
            self._states = _latest(self._states, before[filed])
            self._verified = states[step.verdict.path[-1] if len(step.verdict.path) else 0]
        self._ids = _latest(self._ids, out.row_ids[filed])
        self._logits = _latest(self._logits, out.row_logits[filed])


def _latest(old: Any, new: Any) -> Any:
    """The last rows of both, contiguous."""
    return new if old is None else np.concatenate([old, new])[-INDEXED_ROWS:]


def _unit_rows(states: Floats) -> Floats:
    """[n, d] rows of length 1, so that a product is a cosine."""
    flat = states.reshape(len(states), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    unit: Floats = flat / np.maximum(lengths, np.float32(1e-12))
    return unit

"""Two drafters, one tree: what a trained head sees and what the target has said before.

Neither paper has it. FOVEA's head reads the picture but knows only what it was trained on; RECAP's
memories know this very text but not what is new in it. Their trees are merged node by node, the
scores of both are turned into chances that were learned while text was written (`budget.py`), and
the likeliest nodes of either make the tree that is verified, under one node budget.

A node that both propose is a source of its own: agreement is evidence, and how much is learned too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from eyespan.budget import Calibration, Guess, keep_nodes
from eyespan.config import check_whole, refuse
from eyespan.drafters import DRAFTERS, TRAINED, make_drafter
from eyespan.drafters.base import Ask, Bound, Drafter, Gate, Remembers, Session, parameters_of
from eyespan.errors import unknown_name
from eyespan.memory import Memory, check_memory
from eyespan.scopes import Scopes
from eyespan.target.base import Target
from eyespan.types import MAX_PACK, DraftTree, Ints, Needs, Prefill, Request, Step

_MEMORY = "parts of hybrid"
BOTH, ALONE = 2, 3
"""Origins of nodes: 0 and 1 are one part's where the other proposed something else, BOTH are those
that both propose, ALONE and ALONE + 1 one part's where the other proposed nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConfig:
    """The merge's own options.

    Attributes:
        first, second: names of the parts.
        nodes: of the merged tree with `budget="fixed"`, and of each part's own where it has such an
            option; RECAP's number, for fair comparisons.
        max_scopes: most memory scopes kept, here and by the parts; the least recently used is
            forgotten.
    """

    first: str = "recap"
    second: str = "fovea"
    nodes: int = 63
    max_scopes: int = 64

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole("hybrid", self, {"nodes": (1, MAX_PACK - 1), "max_scopes": (1, 1 << 16)})
        for field in ("first", "second"):
            name = getattr(self, field)
            if name not in DRAFTERS:
                raise unknown_name("drafter", str(name), DRAFTERS)
            if name == Hybrid.name:
                refuse("hybrid", field, name, "another drafter than itself")
        if self.first == self.second:
            refuse("hybrid", "second", self.second, "another drafter than the first")


class Hybrid:
    """Two drafters behind one budget.

    Args:
        vocab_size: ids of the target.
        **options: fields of `HybridConfig`; any other goes to the part that knows it ("checkpoint"
            to a trained one).

    Raises:
        ConfigError: an option that nobody knows, a value out of range, or parts that cannot share a
            target's forward (two trained heads, or a gate).
    """

    name: ClassVar[str] = "hybrid"

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        own = {name: options.pop(name) for name in _FIELDS if name in options}
        self.config = HybridConfig(**own)
        self.vocab_size = vocab_size
        names = (self.config.first, self.config.second)
        shared = {"nodes": self.config.nodes, "max_scopes": self.config.max_scopes}
        given = _shared_out(names, vocab_size, options, shared)
        self.parts: tuple[Drafter, ...] = tuple(
            make_drafter(name, vocab_size=vocab_size, **given[name]) for name in names
        )
        for field, part in zip(("first", "second"), self.parts, strict=True):
            if isinstance(part, Gate):
                refuse("hybrid", field, part.name, "a drafter without a gate of its own")
        if all(name in TRAINED for name in names):
            refuse("hybrid", "second", names[1], "at most one trained head")
        self.needs = _together(*(part.needs for part in self.parts))
        self.fixed_budget = self.config.nodes
        self.extra_nodes = 0
        self.beliefs = Scopes(Beliefs, self.config.max_scopes)

    def bind(self, target: Target) -> None:
        """Hand the target on to parts that have to know it."""
        for part in self.parts:
            if isinstance(part, Bound):
                part.bind(target)

    def parameters(self) -> int:
        """Weights of both parts."""
        return sum(map(parameters_of, self.parts))

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session of each part."""
        inner = [part.begin(request, prefill) for part in self.parts]
        return HybridSession(self, inner, self.beliefs.open(request.scope))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each part drafts for the whole batch, the trained one last: it knows by then what is
        there already (`Pace.rival`). Every pair of trees becomes one.
        """
        sessions = [_session_of(ask) for ask in asks]
        guesses: list[dict[int, Guess]] = [{} for _ in asks]
        for at in sorted(range(len(self.parts)), key=lambda at: self.parts[at].name in TRAINED):
            part = self.parts[at]
            drafts = part.propose_many(
                [
                    session.ask_part(at, ask, part.fixed_budget, guessed.get(1 - at))
                    for session, ask, guessed in zip(sessions, asks, guesses, strict=True)
                ]
            )
            for session, ask, guessed, draft in zip(sessions, asks, guesses, drafts, strict=True):
                guessed[at] = session.beliefs.parts[at].guess(draft, len(ask.prefix))
        return [
            session.merge(guessed[0], guessed[1], ask)
            for session, ask, guessed in zip(sessions, asks, guesses, strict=True)
        ]

    def config_dict(self) -> dict[str, object]:
        """The merge's fields, then those of both parts."""
        return {**self.parts[1].config_dict(), **self.parts[0].config_dict(), **asdict(self.config)}

    def is_warm(self, scope: str | None) -> bool:
        """Whether a part's memory of this scope holds anything."""
        return any(part.is_warm(scope) for part in self.parts)

    def export_memory(self, scope: str | None) -> Memory | None:
        """What the parts remember of a scope, and how much each was to be believed there."""
        beliefs = self.beliefs.get(scope)
        if beliefs is None or not self.is_warm(scope):
            return None
        settings: dict[str, Any] = {}
        tensors: dict[str, Any] = {f"beliefs.{at}": one.counts for at, one in enumerate(beliefs)}
        for place, part in enumerate(self.parts):
            inner = part.export_memory(scope) if isinstance(part, Remembers) else None
            settings[str(place)] = inner and [part.name, inner.kind, dict(inner.settings)]
            if inner is not None:
                tensors |= {f"{place}.{name}": array for name, array in inner.tensors.items()}
        return Memory(_MEMORY, settings, tensors)

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace what the parts remember of a scope.

        Raises:
            ValueError, KeyError, TypeError: it is of other parts, or one of them cannot take its
                own; nothing has changed.
        """
        check_memory(memory, _MEMORY, {})
        beliefs = Beliefs()
        for at, one in enumerate(beliefs):
            one.counts = memory.tensors[f"beliefs.{at}"]
        known: list[tuple[Remembers, Memory]] = []
        for place, part in enumerate(self.parts):
            if (saved := memory.settings[str(place)]) is None:
                continue
            name, kind, settings = saved
            if part.name != name or not isinstance(part, Remembers):
                raise ValueError(f"part {place} was {name!r}, not {part.name!r}")
            mark = f"{place}."
            arrays = {
                key.removeprefix(mark): array
                for key, array in memory.tensors.items()
                if key.startswith(mark)
            }
            known.append((part, Memory(kind, settings, arrays)))
            twin: Any = make_drafter(name, vocab_size=self.vocab_size, **part.config_dict())
            twin.import_memory(scope, known[-1][1])  # all of them must be whole before one is taken
        for taker, inner in known:
            taker.import_memory(scope, inner)
        self.beliefs.put(scope, beliefs)

    def reset(self) -> None:
        """Forget what the parts share, and how much each is to be believed."""
        for part in self.parts:
            part.reset()
        self.beliefs.clear()


class Beliefs:
    """How often which score came true in one memory scope: of each part's, and of the whole's."""

    def __init__(self) -> None:
        self.parts = (Calibration(sources=4), Calibration(sources=4))
        self.whole = Calibration(sources=5)

    def __iter__(self) -> Iterator[Calibration]:
        yield from (*self.parts, self.whole)


class _Round(NamedTuple):
    """What was guessed at one place of the text: evidence once the text has passed it."""

    parts: tuple[Guess, Guess]
    merged: Guess


class HybridSession:
    """One request: a session of each part, and guesses whose outcome is still open."""

    def __init__(self, drafter: Hybrid, inner: Sequence[Session], beliefs: Beliefs) -> None:
        self._drafter, self.beliefs = drafter, beliefs
        self.inner = inner
        self._open: dict[int, _Round] = {}

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The merged tree after `prefix`."""
        return self._drafter.propose_many([Ask(self, prefix, budget)])[0]

    def ask_part(self, at: int, ask: Ask, budget: int, rival: Guess | None) -> Ask:
        """A request for guesses, as one part gets it; `rival` is what the other part guessed."""
        pace = ask.pace and ask.pace._replace(beliefs=self.beliefs.parts[at], rival=rival)
        return ask._replace(session=self.inner[at], budget=budget, pace=pace)

    def merge(self, first: Guess, second: Guess, ask: Ask) -> DraftTree:
        """The likeliest nodes of two proposals. Noting them is all that a proposal changes, and a
        second one at the same place notes the same.
        """
        whole = _union(first, second, tuple(part.name for part in self._drafter.parts))
        if len(whole) == 0:
            return whole
        guess = self.beliefs.whole.guess(whole, first.at)
        self._open[first.at] = _Round((first, second), guess)
        # Stable: no node is likelier than its parent, and parents stand before their children.
        best = np.argsort(-guess.chances, kind="stable")[: ask.budget]
        return keep_nodes(replace(whole, scores=guess.chances.astype(np.float32)), best)

    def observe(self, step: Step) -> None:
        """Let the parts learn, and count guesses that the text has passed."""
        for session in self.inner:
            session.observe(step)
        text = np.concatenate([step.prefix, np.asarray(step.verdict.tokens, np.int32)])
        for at, guessed in list(self._open.items()):
            passed = text[at:]
            if len(passed) < int(guessed.merged.depths.max()) and step.verdict.cut is None:
                continue
            del self._open[at]
            self.beliefs.whole.learn(guessed.merged, passed)
            for belief, guess in zip(self.beliefs.parts, guessed.parts, strict=True):
                if len(guess.draft):
                    belief.learn(guess, passed)


def _union(first: Guess, second: Guess, names: tuple[str, ...]) -> DraftTree:
    """Both trees as one; a shared node has the higher chance and the origin `BOTH`."""
    alone = not (len(first.draft) and len(second.draft))
    origins_of = (ALONE, ALONE + 1) if alone else (0, 1)
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    origins: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for origin, guess in zip(origins_of, (first, second), strict=True):
        place: list[int] = []
        nodes = zip(
            guess.draft.tokens.tolist(),
            guess.draft.parents.tolist(),
            guess.chances.tolist(),
            strict=True,
        )
        for token, parent, chance in nodes:
            key = (place[parent] if parent >= 0 else -1, token)
            at = known.setdefault(key, len(tokens))
            if at == len(tokens):
                tokens.append(token)
                parents.append(key[0])
                chances.append(chance)
                origins.append(origin)
            else:
                chances[at] = max(chances[at], chance)
                origins[at] = BOTH if origins[at] != origin else origin
            place.append(at)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(chances, np.float32),
        np.array(origins, np.int32),
        (*names, "both", *names),
    )


def _together(one: Needs, other: Needs) -> Needs:
    """What two parts need; at most one of them reads hidden layers."""
    return Needs(
        rows=one.rows or other.rows,
        prompt_rows=max(one.prompt_rows, other.prompt_rows, key=_MORE.index),
        hidden_layers=one.hidden_layers or other.hidden_layers,
        visual_attention=one.visual_attention or other.visual_attention,
        visual_tokens=one.visual_tokens or other.visual_tokens,
    )


def _shared_out(
    names: tuple[str, str], vocab_size: int, options: dict[str, Any], shared: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Every option to the parts that know it, and what the merge shares with them."""
    known = {name: make_drafter(name, vocab_size=vocab_size).config_dict().keys() for name in names}
    for option in options:
        if not any(option in fields for fields in known.values()):
            every = {*_FIELDS, *(field for fields in known.values() for field in fields)}
            raise unknown_name("hybrid option", option, every)
    options = {**options, **shared}
    return {
        name: {option: value for option, value in options.items() if option in known[name]}
        for name in names
    }


def _session_of(ask: Ask) -> HybridSession:
    assert isinstance(ask.session, HybridSession)
    return ask.session


_FIELDS = ("first", "second", "nodes", "max_scopes")
_MORE = ("none", "first", "all")

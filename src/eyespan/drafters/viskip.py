"""ViSkip (MMSpec): do without guesses where the target is looking at the picture.

The idea is that a word read off a picture is not predicted by text. Looking means: the last layer's
attention, mean over heads, of the newest token, summed over the positions of pictures.

As published (`gate="after"`) the pass is made first and its guesses are then thrown away, right
ones too, so that only the target's own token is committed: for greedy decoding that can only lose.
With `gate="before"` the previous step's attention decides, and the draft itself is spared.

Wraps any other drafter by name and hands it every other option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_args

from eyespan.config import check_choice, refuse
from eyespan.drafters import DRAFTERS, make_drafter
from eyespan.drafters.base import Ask, Bound, Remembers, Session, parameters_of
from eyespan.errors import unknown_name
from eyespan.memory import Memory
from eyespan.target.base import Target
from eyespan.types import DraftTree, Ints, Prefill, Request, Step, TargetOut

Gating = Literal["after", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViSkipConfig:
    """The gate's own options.

    Attributes:
        wrapped: name of the drafter whose guesses are gated.
        gate: "after" verification, as published, or "before" drafting.
        threshold: attention on pictures from which on the gate is shut, 0 to 1.
    """

    wrapped: str = "sam"
    gate: Gating = "after"
    threshold: float = 0.35

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_choice("viskip", self, {"gate": get_args(Gating)})
        if self.wrapped not in DRAFTERS:
            raise unknown_name("drafter", str(self.wrapped), DRAFTERS)
        if self.wrapped == ViSkip.name:
            refuse("viskip", "wrapped", self.wrapped, "another drafter than itself")
        if type(self.threshold) not in (int, float) or not 0 <= self.threshold <= 1:
            refuse("viskip", "threshold", self.threshold, "a number from 0 to 1")


class ViSkip:
    """A gate around another drafter.

    Args:
        vocab_size: ids of the target.
        **options: fields of `ViSkipConfig`; all others go to the wrapped drafter.

    Raises:
        ConfigError: an option that neither knows, or a value out of range.
    """

    name: ClassVar[str] = "viskip"

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in _FIELDS if field.name in options}
        self.config = ViSkipConfig(**own)
        known = make_drafter(self.config.wrapped, vocab_size=vocab_size).config_dict()
        for option in options:
            if option not in known:
                names = [*(field.name for field in _FIELDS), *known]
                raise unknown_name("viskip option", option, names)
        self.inner = make_drafter(self.config.wrapped, vocab_size=vocab_size, **options)
        self.needs = replace(self.inner.needs, visual_attention=True)
        self.fixed_budget = self.inner.fixed_budget
        self.extra_nodes = self.inner.extra_nodes

    def bind(self, target: Target) -> None:
        """Hand the target on to a drafter that has to know it."""
        if isinstance(self.inner, Bound):
            self.inner.bind(target)

    def parameters(self) -> int:
        """Weights of the wrapped drafter."""
        return parameters_of(self.inner)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session around the wrapped drafter's."""
        return ViSkipSession(self, self.inner.begin(request, prefill), self.looks(prefill))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """The wrapped drafter's trees; none for requests whose gate is shut before drafting."""
        trees = [DraftTree.empty()] * len(asks)
        open_asks = {
            at: ask._replace(session=ask.session.inner)
            for at, ask in enumerate(asks)
            if isinstance(ask.session, ViSkipSession) and not ask.session.shut
        }
        drafts = self.inner.propose_many(list(open_asks.values()))
        for at, draft in zip(open_asks, drafts, strict=True):
            trees[at] = draft
        return trees

    def passes(self, out: TargetOut) -> bool:
        """Whether a verified pass counts: always, unless the gate stands after verification."""
        return self.config.gate == "before" or not self.looks(out)

    def looks(self, out: TargetOut | Prefill) -> bool:
        """Whether the target looked at a picture in this forward."""
        return bool(out.extras["visual_attention"] >= self.config.threshold)

    def config_dict(self) -> dict[str, object]:
        """The gate's fields, then those of the wrapped drafter."""
        own = {field.name: getattr(self.config, field.name) for field in _FIELDS}
        return {**own, **self.inner.config_dict()}

    def is_warm(self, scope: str | None) -> bool:
        """Whether the wrapped drafter's memory of this scope holds anything."""
        return self.inner.is_warm(scope)

    def export_memory(self, scope: str | None) -> Memory | None:
        """What the wrapped drafter remembers, if it can say."""
        inner = self.inner
        return inner.export_memory(scope) if isinstance(inner, Remembers) else None

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Hand a memory on.

        Raises:
            ValueError, KeyError, TypeError: the wrapped drafter cannot take it; nothing has
                changed.
        """
        if not isinstance(self.inner, Remembers):
            raise ValueError(f"'{self.inner.name}' keeps nothing between requests")
        self.inner.import_memory(scope, memory)

    def reset(self) -> None:
        """Forget what the wrapped drafter shares."""
        self.inner.reset()


_FIELDS = fields(ViSkipConfig)


class ViSkipSession:
    """The wrapped session, and whether the last forward shut the gate before the next draft."""

    def __init__(self, drafter: ViSkip, inner: Session, looked: bool) -> None:
        self._drafter, self.inner = drafter, inner
        self._looked = looked

    @property
    def shut(self) -> bool:
        """Whether to draft nothing this round."""
        return self._looked and self._drafter.config.gate == "before"

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The wrapped session's tree, or none."""
        return DraftTree.empty() if self.shut else self.inner.propose(prefix, budget)

    def observe(self, step: Step) -> None:
        """Remember where the target looked; the wrapped session learns in every case."""
        self._looked = self._drafter.looks(step.out)
        self.inner.observe(step)

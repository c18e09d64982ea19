"""The two protocols of a drafter. A *drafter* is what all requests share (weights, a corpus, a
cross-request memory); a *session* is one request's private view of it. Dropping a session ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

from eyespan.budget import Pace
from eyespan.memory import Memory
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step, TargetOut

if TYPE_CHECKING:
    from eyespan.drafters._drawing import Drawing
    from eyespan.target.base import Target


class Session(Protocol):
    """One request's view of a drafter."""

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """Guess at most `budget` nodes (plus the drafter's declared `extra_nodes`) after `prefix`.

        Must not change the session. `prefix` is [P], its last token the root.
        """
        ...

    def observe(self, step: Step) -> None:
        """Learn from what was verified.

        Runs after the tokens are final, so a fault here can cost speed, never change the text.
        """
        ...


class Ask(NamedTuple):
    """One sequence's question to a drafter.

    Attributes:
        session: of the request.
        prefix: [P] its text, the last token is the root.
        budget: most nodes.
        pace: what nodes are worth and cost, for a drafter that can stop before a tree is whole, or
            offer more than its method's; None asks for the method's tree.
    """

    session: Session
    prefix: Ints
    budget: int
    pace: Pace | None = None


class Drafter(Protocol):
    """What all requests share.

    Attributes:
        name: the name in the table of `eyespan.drafters`.
        needs: what the target must hand back.
        fixed_budget: nodes of the method's published setting (`budget="fixed"`); 0 never drafts.
        extra_nodes: nodes that may come on top of the budget (RECAP's suffix nodes).
    """

    name: ClassVar[str]
    needs: Needs
    fixed_budget: int
    extra_nodes: int

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session once the prompt has been read; seeds memory from the prompt's rows."""
        ...

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Draft for a whole batch; drafters with weights do it in one forward."""
        ...

    def config_dict(self) -> dict[str, object]:
        """Every field of the drafter's config by its own name, JSON-ready (for traces)."""
        ...

    def is_warm(self, scope: str | None) -> bool:
        """Whether this scope's shared memory holds anything yet (for traces)."""
        ...

    def reset(self) -> None:
        """Forget everything shared between requests."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A drafter whose memory of a scope can go to a file and come back (`saved_memory.py`)."""

    def export_memory(self, scope: str | None) -> Memory | None:
        """What it remembers of a scope; None for nothing."""
        ...

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace what it remembers of a scope; it then drafts as the drafter that exported it.

        Raises:
            ValueError, KeyError, TypeError: it is not what this drafter exports under its settings;
                nothing has changed.
        """
        ...


@runtime_checkable
class KnowsTasks(Protocol):
    """A drafter whose memory may end with a task."""

    def new_task(self) -> None:
        """A task boundary."""
        ...


@runtime_checkable
class Gate(Protocol):
    """A drafter that looks at a verified pass before its guesses may count (ViSkip)."""

    def passes(self, out: TargetOut) -> bool:
        """Whether the guesses of this pass count; if not, the step is a plain one. Losing right
        guesses costs time and, like everything a drafter does, never changes a word.
        """
        ...


@runtime_checkable
class Weighted(Protocol):
    """A drafter that brings weights of its own."""

    def parameters(self) -> int:
        """How many numbers they are; the target's tables that it shares are not counted."""
        ...


def parameters_of(drafter: Drafter) -> int:
    """Weights that a drafter adds to a server, in numbers."""
    return drafter.parameters() if isinstance(drafter, Weighted) else 0


@runtime_checkable
class Draws(Protocol):
    """A drafter that can draw its guesses from distributions it knows, for verification by
    rejection.
    """

    def draw_many(self, asks: Sequence[Ask], drawings: Sequence[Drawing]) -> list[DraftTree]:
        """Drafts whose guesses were drawn as `_drawing.py` says, with their `probs`. Asked twice
        with the same drawings, it answers the same.
        """
        ...


@runtime_checkable
class Bound(Protocol):
    """A drafter with a model of its own, which has to fit the target."""

    def bind(self, target: Target) -> None:
        """Get to know the target, once, before the first request; load what is missing.

        Raises:
            ConfigError, InputError, UnsupportedTarget: the two do not fit.
        """
        ...

"""No drafter: plain decoding, one token a forward, with the same loop, counters and traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eyespan.drafters.base import Ask, Session
from eyespan.errors import ConfigError
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step


class NoDrafter:
    """Never drafts. It takes no options."""

    name: ClassVar[str] = "none"
    needs = Needs()
    fixed_budget = 0
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        if options:
            raise ConfigError(
                f"option '{next(iter(options))}' of drafter 'none'",
                found="a drafter without options",
                needed="none is known",
                todo="Leave it out, or choose a drafter that drafts.",
            )

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """A session that never guesses."""
        return _NoSession()

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """No guess for any request."""
        return [DraftTree.empty() for _ in asks]

    def config_dict(self) -> dict[str, object]:
        """No settings."""
        return {}

    def is_warm(self, scope: str | None) -> bool:
        """Never: nothing is remembered."""
        return False

    def reset(self) -> None:
        """Nothing to forget."""


class _NoSession:
    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        return DraftTree.empty()

    def observe(self, step: Step) -> None:
        pass

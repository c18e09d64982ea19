"""A drafter under observation: what it failed with and how much it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from eyespan.drafters.base import Ask, Drafter, Session
from eyespan.types import DraftTree, Prefill, Request


@runtime_checkable
class Weighs(Protocol):
    """Drafters and sessions that know how many bytes they hold."""

    def state_bytes(self) -> int:
        """Bytes of host memory."""
        ...


@runtime_checkable
class KnowsTasks(Protocol):
    """Drafters whose memory may end with a task."""

    def new_task(self) -> None:
        """A task boundary."""
        ...


class Watch:
    """Stands in for a drafter in an engine and passes everything on.

    The engine turns a drafter's fault into plain decoding, as a server must; a measurement must
    know of it.

    Args:
        drafter: the real one.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.failure: str | None = None
        self._session: Session | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session and remember it until its bytes are asked for."""
        self._session = None
        try:
            self._session = self.drafter.begin(request, prefill)
        except Exception as error:
            self.failure = describe(error)
            raise
        return self._session

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Draft."""
        try:
            return self.drafter.propose_many(asks)
        except Exception as error:
            self.failure = describe(error)
            raise

    def new_task(self) -> None:
        """Pass a task boundary on to a drafter that knows of tasks."""
        if isinstance(self.drafter, KnowsTasks):
            self.drafter.new_task()

    def take_failure(self) -> str | None:
        """What went wrong since the last time this was asked."""
        failure, self.failure = self.failure, None
        return failure

    def take_state_bytes(self) -> int:
        """Bytes of shared memory and of the newest session, which is then let go; -1 when they do
        not tell.
        """
        session, self._session = self._session, None
        both: tuple[object, object] = (self.drafter, session)
        parts = [part for part in both if isinstance(part, Weighs)]
        return sum(part.state_bytes() for part in parts) if parts else -1


def describe(error: Exception) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

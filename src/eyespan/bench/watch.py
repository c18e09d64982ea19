"""A drafter under observation: what it failed with and how much it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from eyespan.drafters.base import Ask, Drafter, KnowsTasks, Session
from eyespan.types import DraftTree, Prefill, Request


@runtime_checkable
class Weighs(Protocol):
    """Drafters and sessions that know how many bytes they hold."""

    def state_bytes(self) -> int:
        """Bytes of host memory."""
        ...


class Watch:
    """Listens in on a drafter.

    The engine turns a drafter's fault into plain decoding, as a server must; a measurement must
    know of it. The drafter stays the very object that the engine gets: what it declares by its type
    (a gate, a model of its own) would be hidden by a stand-in.

    Args:
        drafter: whose `begin` and `propose_many` are listened to.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.failure: str | None = None
        self._session: Session | None = None
        begin, propose_many = drafter.begin, drafter.propose_many

        def heard_begin(request: Request, prefill: Prefill) -> Session:
            self._session = None
            with self._hearing():
                self._session = begin(request, prefill)
            return self._session

        def heard_propose_many(asks: Sequence[Ask]) -> list[DraftTree]:
            with self._hearing():
                return propose_many(asks)

        vars(drafter).update(begin=heard_begin, propose_many=heard_propose_many)

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = describe(error)
            raise

    def reset(self) -> None:
        """Empty what the drafter shares between requests."""
        self.drafter.reset()

    def new_task(self) -> None:
        """Tell a drafter that knows of tasks that one begins."""
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

"""What is closed when its `with` block is left."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Closing(AbstractContextManager[T]):
    """Gives itself to its `with` block and is closed at its end, after an error too.

    Derive as `class Stream(Closing["Stream"])`.
    """

    @abstractmethod
    def close(self) -> None:
        """Free what is held; closing twice is harmless."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

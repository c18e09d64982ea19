"""What requests of one memory scope share, and nobody else sees: a bounded number of stores by
scope, the least recently used one forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Store = TypeVar("Store")


class Scopes(Generic[Store]):
    """Stores by scope.

    Args:
        make: an empty store.
        most: stores kept.
    """

    def __init__(self, make: Callable[[], Store], most: int) -> None:
        self._make, self._most = make, most
        self._stores: OrderedDict[str | None, Store] = OrderedDict()

    def open(self, scope: str | None) -> Store:
        """The scope's store, made when there is none, now the most recently used."""
        if scope not in self._stores:
            self._stores[scope] = self._make()
        self._stores.move_to_end(scope)
        while len(self._stores) > self._most:
            self._stores.popitem(last=False)
        return self._stores[scope]

    def put(self, scope: str | None, store: Store) -> None:
        """Make a store the scope's, the most recently used; open sessions keep the one before."""
        self._stores[scope] = store
        self.open(scope)

    def get(self, scope: str | None) -> Store | None:
        """The scope's store as it is, or None."""
        return self._stores.get(scope)

    def __iter__(self) -> Iterator[Store]:
        return iter(self._stores.values())

    def __len__(self) -> int:
        return len(self._stores)

    def clear(self) -> None:
        """Forget all stores; open sessions may still hold theirs."""
        self._stores.clear()

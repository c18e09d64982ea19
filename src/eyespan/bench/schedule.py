"""In what order a run asks its inputs, and where memories are emptied.

A *segment* is a stretch of inputs that share memories; all memories are emptied before it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eyespan.bench.datasets import Chosen, Selection
from eyespan.bench.settings import Settings


@dataclass(frozen=True, slots=True)
class Item:
    """One input in a stream.

    Attributes:
        stream: name of the order.
        dataset: its set.
        chosen: the input.
        new_task: whether a task begins with it.
    """

    stream: str
    dataset: str
    chosen: Chosen
    new_task: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """As of `Done`."""
        return (self.stream, self.dataset, self.chosen.id)


def segments(settings: Settings, selections: Mapping[str, Selection]) -> Iterator[list[Item]]:
    """All inputs in the order in which they are run, cut where memories are emptied."""
    for schedule in settings.schedules:
        for seed in settings.seeds:
            stream = f"{schedule}/{seed}"
            orders: dict[str, list[Chosen]] = {}
            for name, selection in selections.items():
                orders[name] = list(selection.inputs)
                random.Random(f"{name}/{seed}").shuffle(orders[name])
            if schedule == "alternating":
                longest = max(map(len, orders.values()))
                pairs = [
                    (n, o[at]) for at in range(longest) for n, o in orders.items() if at < len(o)
                ]
                yield _items(stream, pairs)
            elif settings.boundary == "task":
                yield _items(stream, [(n, one) for n, order in orders.items() for one in order])
            else:
                for name, order in orders.items():
                    yield _items(stream, [(name, one) for one in order])


def _items(stream: str, pairs: Sequence[tuple[str, Chosen]]) -> list[Item]:
    items: list[Item] = []
    for name, chosen in pairs:
        switched = bool(items) and items[-1].dataset != name
        items.append(Item(stream, name, chosen, new_task=switched))
    return items

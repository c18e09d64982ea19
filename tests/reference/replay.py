"""Replay state by state in slow plain Python, over trace lines as they stand in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from eyespan.drafters._recap_config import RecapConfig
from tests.reference.fusion import fuse
from tests.reference.recap import PRIORS
from tests.reference.rows import Memory, Row, RowMap, keys_of
from tests.reference.trees import Node, best_first

Lines = Sequence[Mapping[str, Any]]


class State(NamedTuple):
    """One place at which a draft could be asked for.

    `rows` are what U, C and G held there by order (1, 2, 3), before anything was learned at it.
    """

    request: int
    history: list[int]
    ahead: list[int]
    rows: dict[int, Row]
    memory: Memory
    media: frozenset[int]
    eos: frozenset[int]


def states(
    requests: Sequence[Lines], *, seeded: bool, instead: Mapping[int, Any] | None = None
) -> Iterator[State]:
    """All states of a stream, in order; a state's row is learned when the next one is asked for:
    the recorded one, or that of `instead` by answer position.
    """
    u = RowMap(1, 1 << 18)
    for number, lines in enumerate(requests):
        head, end = lines[0], lines[-1]
        media, eos = frozenset(head["media_ids"]), frozenset(head["eos_ids"])
        memory = Memory(u, RowMap(2, 1 << 18), RowMap(3, 1 << 18))
        if seeded:
            (prefill,) = [line for line in lines if line["type"] == "prefill"]
            memory.seed(head["prompt_ids"], prefill["rows"], media)
        known = answer_rows(lines) if instead is None else instead
        output = end["output_ids"]
        for at in range(len(output) - 1):
            history = head["prompt_ids"] + output[: at + 1]
            rows = {
                len(key): kept.rows[key]
                for key in keys_of(history, media)
                for kept in memory.maps
                if kept.order == len(key) and key in kept.rows
            }
            yield State(number, history, output[at + 1 :], rows, memory, media, eos)
            memory.refresh(history[:-1], history[-1:], [-1], [known[at]], media)


def answer_rows(lines: Lines) -> dict[int, tuple[list[int], list[float]]]:
    """The row after each answer token that a pack began with or accepted."""
    rows, at = {}, 0
    for line in lines:
        if line["type"] == "step":
            for node in [0, *line["accepted"]]:
                logits = [float("-inf") if x is None else x for x in line["row_logits"][node]]
                rows[at] = (line["row_ids"][node], logits)
                at += 1
            at -= line["next"] is None
    return rows


def candidates(state: State, rule: str, priors: str = "default") -> list[int]:
    """Fused candidates for the next token."""
    found = [state.rows[order] for order in sorted(state.rows, reverse=True)]
    return [t for t, _ in fuse(found, rule, PRIORS[priors]) if t not in state.media]


def tree(state: State, orders: int, rule: str, budget: int) -> list[Node]:
    """The draft tree of the first `orders` maps."""
    config = RecapConfig()
    few = Memory(state.memory.maps[0], None, None)
    few.maps = state.memory.maps[:orders]

    def expand(path: tuple[int, ...]) -> list[tuple[int, float]]:
        fused = fuse(few.find([*state.history, *path], state.media), rule, PRIORS["default"])
        return [item for item in fused if item[0] not in state.media]

    return best_first(expand, eta=config.eta, budget=budget, depth=config.depth, eos=state.eos)


def matched(nodes: Sequence[Node], ahead: Sequence[int]) -> int:
    """Length of the longest path that the answer goes on with."""
    paths = {node.path for node in nodes}
    return max((n for n in range(len(ahead) + 1) if n == 0 or tuple(ahead[:n]) in paths), default=0)


def weights(state: State) -> Iterator[list[float]]:
    """Fusion weights of every look-up of the state's tree, by specificity."""
    config = RecapConfig()
    nodes = tree(state, 3, "entropy", config.nodes)
    asked = [node.path for node in nodes if node.depth < config.depth]
    for path in [(), *(path for path in asked if path[-1] not in state.eos)]:
        rows = state.memory.find([*state.history, *path], state.media)
        parts = [p * row.confidence for p, row in zip(PRIORS["default"], rows, strict=False)]
        yield [part / sum(parts) for part in parts]

"""The accept length a drafter would have, without the target: captured answers are replayed through
the drafter's own sessions.

A captured answer is what the target says, so a tree's accepted path is the longest one that the
answer follows, and the states that a session reads after a round are the captured ones. This is
decoding with the forward left out; only rounding can make it differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from eyespan._core import pack
from eyespan.drafters.base import Ask, Drafter, Session
from eyespan.types import (
    ROW_SIZE,
    Floats,
    Ints,
    PackedTree,
    Prefill,
    Request,
    Step,
    TargetOut,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptLength:
    """What replaying brought.

    Attributes:
        tokens: committed, the first of each answer (the prefill's) included.
        forwards: that the target would have made, the prefills included.
        accepted: draft tokens committed, by depth 1, 2, ...
    """

    tokens: int
    forwards: int
    accepted: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Committed tokens per forward."""
        return self.tokens / self.forwards if self.forwards else 0.0


@dataclass(slots=True)
class _Replay:
    """One answer under way: `at` is the root's position, `end` the answer's last token."""

    session: Session
    kept: Mapping[str, Tensor]
    ids: Ints
    at: int
    end: int
    accepted: list[int] = field(default_factory=list)


def accept_length(
    drafter: Drafter,
    sequences: Sequence[Mapping[str, Tensor]],
    *,
    media_ids: frozenset[int],
    budget: int | None = None,
) -> AcceptLength:
    """Replay every answer of every sequence, all of them side by side.

    Args:
        drafter: attached to the captured target.
        sequences: tensors of captured sequences, see `Artifacts.sequence`.
        media_ids: of the target.
        budget: nodes of a tree; None takes the method's own size.

    Returns:
        Totals over all sequences.
    """
    size = drafter.fixed_budget if budget is None else budget
    running = [
        _begin(drafter, kept, media_ids, *span) for kept in sequences for span in answer_spans(kept)
    ]
    tokens = forwards = len(running)
    depths: list[int] = []
    while running := [one for one in running if one.at < one.end]:
        asks = [Ask(one.session, one.ids[: one.at + 1], size) for one in running]
        for one, draft in zip(running, drafter.propose_many(asks), strict=True):
            tree = PackedTree(*pack(draft.tokens, draft.parents, draft.scores, one.ids[one.at]))
            path = accepted_path(tree, one.ids[one.at + 1 : one.end + 1])
            step = _step(drafter, one, tree, path)
            one.session.observe(step)
            one.at += len(step.verdict.tokens)
            tokens += len(step.verdict.tokens)
            forwards += 1
            depths.extend([0] * (len(path) - len(depths)))
            for depth in range(len(path)):
                depths[depth] += 1
    return AcceptLength(tokens=tokens, forwards=forwards, accepted=tuple(depths))


def accepted_path(tree: PackedTree, answer: Ints) -> Ints:
    """[a] packed nodes that the answer follows from the root outwards.

    Args:
        tree: root first, children after their parents, siblings with different tokens.
        answer: tokens after the root.
    """
    path: list[int] = []
    node = 0
    for token in answer:
        below = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
        if not below.size:
            break
        node = int(below[0])
        path.append(node)
    return np.array(path, np.int32)


def answer_spans(kept: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    """First and last token of every answer of a captured sequence."""
    at = np.flatnonzero(kept["supervise"].numpy())
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    return [(int(run[0]) + 1, int(run[-1]) + 1) for run in runs if run.size]


def _begin(
    drafter: Drafter, kept: Mapping[str, Tensor], media_ids: frozenset[int], first: int, end: int
) -> _Replay:
    """Open a session on the prompt of one answer."""
    ids = kept["input_ids"].numpy().astype(np.int32)
    request = Request(
        id="replay",
        prompt_ids=ids[:first],
        media_ids=media_ids,
        eos_ids=frozenset(),
        max_new_tokens=end + 1 - first,
    )
    row = _supervised(kept, first - 1)
    row_ids, row_logits = _row(kept, row)
    extras: dict[str, Any] = {"hidden": _hidden(drafter, kept, np.arange(first))}
    if drafter.needs.visual_tokens:
        extras["visual_tokens"] = kept["visual"].float().numpy() if len(kept["visual"]) else None
    prefill = Prefill(
        next_row_ids=row_ids,
        next_row_logits=row_logits,
        logits=None,
        positions=np.empty(0, np.int32),
        row_ids=np.empty((0, ROW_SIZE), np.int32),
        row_logits=np.empty((0, ROW_SIZE), np.float32),
        extras=extras,
    )
    return _Replay(drafter.begin(request, prefill), kept, ids, at=first, end=end)


def _step(drafter: Drafter, one: _Replay, tree: PackedTree, path: Ints) -> Step:
    """The round as a session observes it: true states at the root and the accepted nodes, zeros at
    the nodes that the answer left, which nobody may read.
    """
    places = np.full(len(tree), -1)
    places[0] = one.at
    places[path] = one.at + 1 + np.arange(len(path))
    ended = one.at + len(path) == one.end
    tokens = one.ids[one.at + 1 : one.at + len(path) + 1 + (not ended)]
    rows = [_row(one.kept, int(_supervised(one.kept, place))) for place in places]
    out = TargetOut(
        row_ids=np.stack([ids for ids, _ in rows]),
        row_logits=np.stack([logits for _, logits in rows]),
        logits=None,
        extras={"hidden": _hidden(drafter, one.kept, places)},
    )
    verdict = Verdict(
        path=path,
        next=None if ended else int(tokens[-1]),
        tokens=tuple(int(token) for token in tokens),
        cut="eos" if ended or one.at + len(tokens) == one.end else None,
    )
    return Step(one.ids[: one.at + 1], tree, out, verdict)


def _supervised(kept: Mapping[str, Tensor], place: int) -> int:
    """Row of a position among the supervised ones, -1 elsewhere."""
    supervise = kept["supervise"].numpy()
    if place < 0 or not supervise[place]:
        return -1
    return int(supervise[:place].sum())


def _row(kept: Mapping[str, Tensor], row: int) -> tuple[Ints, Floats]:
    """[K] the target's row there; padding where nothing was captured."""
    ids, logits = np.full(ROW_SIZE, -1, np.int32), np.full(ROW_SIZE, -np.inf, np.float32)
    if row >= 0:
        top = min(ROW_SIZE, kept["top_ids"].shape[1])
        ids[:top] = kept["top_ids"][row, :top].numpy()
        logits[:top] = kept["top_logits"][row, :top].numpy()
    return ids, logits


def _hidden(
    drafter: Drafter, kept: Mapping[str, Tensor], places: npt.NDArray[np.int_]
) -> Floats | None:
    """[n, layers, D] the states that the drafter reads, zeros at places -1."""
    if not drafter.needs.hidden_layers:
        return None
    states = []
    for layer in drafter.needs.hidden_layers:
        whole = kept[_field(layer)].float().numpy()
        states.append(np.where((places >= 0)[:, None], whole[places], 0.0))
    return np.stack(states, axis=1).astype(np.float32)


def _field(layer: int) -> str:
    """Name of a captured state: 0 is what enters the decoder, -1 the final state."""
    return {0: "embeds", -1: "final"}.get(layer, f"layer.{layer}")

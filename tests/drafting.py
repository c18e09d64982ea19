"""A session's life without a loop: open one, let it propose, show it what a target said."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from eyespan._core import pack
from eyespan.drafters.base import Drafter, Session
from eyespan.types import DraftTree, Ints, PackedTree, Prefill, Request, Step, TargetOut, Verdict


def ints(values: Any) -> Ints:
    """[n] int32."""
    return np.array(values, np.int32)


def request_of(
    prompt: Sequence[int],
    *,
    media: Collection[int] = (),
    eos: Collection[int] = (),
    scope: str | None = None,
    limit: int = 10_000,
) -> Request:
    """A request for a prompt of ids."""
    return Request(
        id="r",
        prompt_ids=ints(prompt),
        media_ids=frozenset(media),
        eos_ids=frozenset(eos),
        max_new_tokens=limit,
        scope=scope,
    )


def prefill_of(extras: dict[str, Any] | None = None) -> Prefill:
    """A prompt's forward that brought no rows."""
    nothing = np.empty((0, 8), np.float32)
    return Prefill(
        next_row_ids=np.arange(8, dtype=np.int32),
        next_row_logits=np.arange(8, 0, -1, dtype=np.float32),
        logits=None,
        positions=ints([]),
        row_ids=nothing.astype(np.int32),
        row_logits=nothing,
        extras=extras or {},
    )


def open_session(drafter: Drafter, prompt: Sequence[int], **more: Any) -> Session:
    """A session after a prompt's forward that brought no rows."""
    return drafter.begin(request_of(prompt, **more), prefill_of())


def packed_of(draft: DraftTree, root: int) -> PackedTree:
    """A draft as it is sent."""
    return PackedTree(*pack(draft.tokens, draft.parents, draft.scores, root))


def show(
    session: Session,
    prefix: Sequence[int],
    tokens: Sequence[int],
    *,
    draft: DraftTree | None = None,
    row_ids: Any = None,
    path: Sequence[int] = (),
    extras: dict[str, Any] | None = None,
) -> None:
    """One round: `draft` was verified after `prefix` and `tokens` were committed.

    Rows default to the ids 0 to 7 everywhere.
    """
    tree = packed_of(draft or DraftTree.empty(), prefix[-1])
    rows = np.tile(np.arange(8, dtype=np.int32), (len(tree), 1)) if row_ids is None else row_ids
    out = TargetOut(
        row_ids=ints(rows),
        row_logits=np.tile(np.arange(8, 0, -1, dtype=np.float32), (len(tree), 1)),
        logits=None,
        extras=extras or {},
    )
    session.observe(Step(ints(prefix), tree, out, Verdict(ints(path), tokens[-1], tuple(tokens))))


def by_rank(draft: DraftTree) -> dict[str, int]:
    """Rank path -> token; a rank is the place among siblings."""
    paths: list[str] = []
    children: dict[int, int] = {}
    for parent in draft.parents.tolist():
        rank = children.get(parent, 0)
        children[parent] = rank + 1
        paths.append((paths[parent] if parent >= 0 else "") + str(rank))
    return dict(zip(paths, draft.tokens.tolist(), strict=True))

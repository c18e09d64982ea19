"""The second way to verify: rejection, for drafters that know where their guesses were drawn from.

It lets more guesses through than the walk where the two models are alike, at the price of the order
of random numbers: the text is distributed as plain decoding's, but a seed gives another one
(`docs/lossless.md`). The rule itself is `verify.verify_by_rejection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from eyespan.drafters.base import Drafter, Draws
from eyespan.errors import UnsupportedRequest, unknown_name
from eyespan.sequence import Running
from eyespan.types import Cut, DraftTree, PackedTree, TargetOut, Verdict
from eyespan.verify import Doubles, verify_by_rejection

Verification: TypeAlias = Literal["walk", "rejection"]


def check_verification(verification: str, drafter: Drafter) -> bool:
    """Whether an engine verifies by rejection.

    Raises:
        ConfigError: an unknown name.
        UnsupportedRequest: the drafter does not know the probabilities of its guesses.
    """
    if verification not in get_args(Verification):
        raise unknown_name("verification", verification, get_args(Verification))
    if verification == "rejection":
        as_drawing(drafter)
    return verification == "rejection"


def as_drawing(drafter: Drafter) -> Draws:
    """A drafter that draws its guesses.

    Raises:
        UnsupportedRequest: it does not know their probabilities.
    """
    if not isinstance(drafter, Draws):
        raise UnsupportedRequest(
            f"verification='rejection' with drafter '{drafter.name}'",
            found="a drafter whose guesses are not drawn from a distribution",
            needed="draft_model or a trained head (fovea, eagle3, msd, dream, vispec) is needed",
            todo="Choose one of them, or leave verification at 'walk', which is exact with all.",
        )
    return drafter


def check_drawn(draft: DraftTree, vocab_size: int) -> None:
    """Refuse a draft that does not say where its guesses were drawn from.

    Raises:
        ValueError: probabilities of another shape, or none for a node with children.
    """
    probs = draft.probs
    if probs is None or probs.rows.shape[1] != vocab_size or len(probs.at) != len(draft) + 1:
        raise ValueError("a draft for rejection needs the probabilities of all its guesses")
    rows = probs.at[draft.parents + 1]
    if not 0 <= rows.min() <= rows.max() < len(probs.rows):
        raise ValueError("a node has children and no probabilities")
    if not bool((probs.rows >= 0).all() and np.isfinite(probs.rows).all()):
        raise ValueError("probabilities below 0, or not finite")


def rejected(
    running: Running,
    draft: DraftTree,
    tree: PackedTree,
    sources: Sequence[str],
    out: TargetOut,
) -> Verdict | None:
    """Verify one request's pass by rejection, committing tokens as they are chosen; None where its
    guesses were not drawn.
    """
    lots, probs = running.lots, draft.probs
    if lots is None or probs is None:
        return None

    def target_probs(node: int) -> Doubles:
        return lots.probs(out.logits[node], running.ids)

    def draft_probs(node: int) -> Doubles:
        drawn = 0 if node == 0 else int(tree.order[node - 1]) + 1
        row: Doubles = probs.rows[probs.at[drawn]]
        return row

    def emit(token: int, node: int) -> Cut | None:
        lots.told(token)
        return running.emit(token, sources[node])

    return verify_by_rejection(tree, target_probs, draft_probs, lots.uniform, emit)

"""The values that travel through the loop: a Request comes in, a DraftTree is guessed, a Verdict
says what is true. All are frozen; arrays are numpy, ids int32, logits and scores float32.

Words (docs/papers.md maps them to both papers): *root* is the newest committed token, *prefix* all
committed tokens (the prompt as the language model sees it, then the output), *row* the target's
top-K prediction at one position, *tau* committed tokens per target forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]
Nodes: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""Indices of nodes in a draft."""
Words: TypeAlias = npt.NDArray[np.uint64]

Finish: TypeAlias = Literal["eos", "length", "stop", "cancelled"]
Cut: TypeAlias = Literal["eos", "length", "stop"]
PromptRows: TypeAlias = Literal["none", "first", "all"]

ROW_SIZE = 8
"""Predictions kept at one position (RECAP section 3.3, K = 8)."""

MAX_PACK = 128
"""Nodes of one packed tree, root included: ancestor sets are rows of 128 bits."""


def empty_ints() -> Ints:
    """An int32 array of length 0."""
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one generation needs to know; model inputs (pixels, positions) stay with the target.

    Attributes:
        id: unique within an engine; every trace line carries it.
        prompt_ids: [L] the prompt as the language model sees it, media placeholders expanded.
        media_ids: ids that are never text (image, video, vision start/end, pad): never drafted,
            never part of a key, never inside an n-gram window.
        eos_ids: ids that end the answer.
        max_new_tokens: exact upper bound of the answer's length, at least 1.
        scope: name of the memory scope; requests share memory only inside one scope. None is
            the engine's own default scope.
        conversation: name of the conversation whose next turn this is, unique within the engine.
    """

    id: str
    prompt_ids: Ints
    media_ids: frozenset[int]
    eos_ids: frozenset[int]
    max_new_tokens: int
    scope: str | None = None
    conversation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the target must hand back; a drafter declares it once, the engine asks once.

    Attributes:
        rows: top-K ids and logits at every packed node.
        prompt_rows: rows of the prompt: "none", "first" (the first occurrence of every text
            token) or "all" (every text position).
        hidden_layers: layers whose states a draft head reads.
        visual_attention: the share of the last layer's attention, mean over heads, that falls on
            pictures: of the root at every step, of the last prompt token in the prefill.
        visual_tokens: the projected visual tokens that enter the language model.
    """

    rows: bool = False
    prompt_rows: PromptRows = "none"
    hidden_layers: tuple[int, ...] = ()
    visual_attention: bool = False
    visual_tokens: bool = False


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """The distributions that a draft's guesses were drawn from, before the first draw of each.

    Attributes:
        rows: [m, V] probabilities, for nodes that have children.
        at: [n + 1] row of the root, then of every guess; -1 where it has no children.
    """

    rows: npt.NDArray[np.float64]
    at: Ints


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Guesses for what follows the prefix; parents come before their children.

    Attributes:
        tokens: [n] guessed ids; n == 0 means "no guess" and the engine takes a plain step.
        parents: [n] index of the parent guess; -1 hangs from the root.
        scores: [n] how sure the drafter is; ranks guesses, is never verified on.
        origins: [n] index into `origin_names`, or None when all come from the drafter itself.
        origin_names: names of candidate sources, for traces and per-source counters.
        probs: where the guesses were drawn from; only of drafts for verification by rejection,
            whose siblings stand in the order of their draws.
    """

    tokens: Ints
    parents: Ints
    scores: Floats | None = None
    origins: Ints | None = None
    origin_names: tuple[str, ...] = ()
    probs: DraftProbs | None = None

    @staticmethod
    def empty() -> DraftTree:
        """No guess."""
        return DraftTree(empty_ints(), empty_ints())

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True)
class PackedTree:
    """A draft tree as one forward sees it: root first, then depth-first, best child first, so
    that the likeliest chain is contiguous and its cache entries need no move.

    Attributes:
        tokens: [n] ids, tokens[0] the root.
        parents: [n] packed index of the parent, parents[0] == -1.
        depths: [n] distance to the root, depths[0] == 0; position = root position + depth.
        ancestors: [n, 2] 128-bit rows: bit j of row i says that j is i or an ancestor of i.
        order: [n - 1] index in the draft tree that packed node i + 1 came from.
    """

    tokens: Ints
    parents: Ints
    depths: Ints
    ancestors: Words
    order: Ints

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """What the prompt's forward brought.

    Attributes:
        next_row_ids, next_row_logits: [K] row after the last prompt position.
        logits: [V] full logits after the last prompt position, on the target's device.
        positions: [m] prompt positions whose rows follow, ascending (see Needs.prompt_rows).
        row_ids, row_logits: [m, K] top-K predictions there, by descending logit, ties by lower id.
        extras: hidden states, visual tokens and the like, by the names of Needs.
    """

    next_row_ids: Ints
    next_row_logits: Floats
    logits: Any
    positions: Ints
    row_ids: Ints
    row_logits: Floats
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOut:
    """One verify forward over one packed tree.

    Attributes:
        row_ids, row_logits: [n, K] the target's top-K at every node, by descending logit, ties
            by the lower id; row_ids[:, 0] is the target's greedy token.
        logits: [n, V] full logits, on the target's device; only valid until the next forward.
        extras: what else `Needs` asked for.
    """

    row_ids: Ints
    row_logits: Floats
    logits: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is true: the accepted path and the target's own token after it.

    Attributes:
        path: [a] packed indices of accepted nodes, root excluded, from the root outwards.
        next: the target's token after the path; None when the path itself was cut.
        tokens: the ids to commit: those of the path, then `next`.
        cut: why generation ends with this step, or None.
    """

    path: Ints
    next: int | None
    tokens: tuple[int, ...]
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One round as a session observes it, after its tokens are final.

    Attributes:
        prefix: [P] all committed tokens before this round; prefix[-1] is the root.
        tree: what was verified.
        out: what the target said at every node.
        verdict: what was committed.
    """

    prefix: Ints
    tree: PackedTree
    out: TargetOut
    verdict: Verdict


class TokenLogprobs(NamedTuple):
    """What the target thought of one committed token: natural logarithms of its own distribution,
    before any option shaped it.

    Attributes:
        token_id: the committed token.
        logprob: of that token.
        top: (id, logprob) of the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One finished answer and what it cost. Holds no cache and no tensor.

    Attributes:
        text: decoded answer without special tokens, stop string excluded.
        token_ids: committed ids, the end id included when one was produced.
        finish: "eos", "length", "stop" or "cancelled".
        forwards: target forwards, the prefill included (it commits the first token).
        drafted: draft nodes sent to the target.
        accepted: draft tokens committed.
        accepted_by_depth: committed draft tokens at depth 1, 2, ...
        drafted_by_depth: rounds that offered at least one node at depth 1, 2, ...
        seconds: {"encode", "prefill", "decode"} wall seconds.
        stage_ms: total milliseconds of {propose, pack, forward, verify, commit, refresh}.
        stage_cpu_ms: the same of the processor, all threads together.
        plain_steps: rounds without a draft, by reason ("off", "empty", "no gain", "room").
        logprobs: one entry a token, or None when they were not asked for.
        near_ties: tokens that `strict` decided as plain decoding would.
        strict_forwards: one-token forwards that those decisions took, on top of `forwards`.
        reused: prompt tokens that were not read again, since a conversation had them in its cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    forwards: int
    drafted: int
    accepted: int
    accepted_by_depth: tuple[int, ...] = ()
    drafted_by_depth: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    stage_cpu_ms: Mapping[str, float] = field(default_factory=dict)
    plain_steps: Mapping[str, int] = field(default_factory=dict)
    logprobs: tuple[TokenLogprobs, ...] | None = None
    near_ties: int = 0
    strict_forwards: int = 0
    reused: int = 0

    @property
    def tau(self) -> float:
        """Committed tokens per target forward, the target's own tokens counted (RECAP eq. 10);
        forwards of `strict` count too.
        """
        forwards = self.forwards + self.strict_forwards
        return len(self.token_ids) / forwards if forwards else 0.0

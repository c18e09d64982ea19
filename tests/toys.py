"""A target without weights: its next token is a fixed function of the last few tokens, so tests of
the loop run in milliseconds and every answer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from eyespan.types import Ints, Needs, PackedTree, Prefill, TargetOut


def toy_row(history: Sequence[int], vocab: int, order: int = 2) -> np.ndarray:
    """[V] logits after a history; depends on its last `order` tokens only, so text repeats."""
    seed = 0
    for token in history[-order:]:
        seed = (seed * 1_000_003 + token + 7) % (2**31)
    return np.random.default_rng(seed).normal(size=vocab).astype(np.float32)


@dataclass
class ToyState:
    """Committed tokens but the root, and those of the last pack."""

    kept: list[int]
    pack: PackedTree | None = None
    closed: bool = False

    @property
    def length(self) -> int:
        return len(self.kept)

    @property
    def pending(self) -> int:
        return 0 if self.pack is None else len(self.pack)

    def close(self) -> None:
        self.closed = True


@dataclass
class ToyTarget:
    """Implements `eyespan.target.base.Target` over `toy_row`."""

    vocab: int = 16
    order: int = 2
    media_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset({1})
    max_context: int = 512
    passes: list[int] = field(default_factory=list)
    model: Any = None

    def __post_init__(self) -> None:
        self.tokenizer = None
        self.info = SimpleNamespace(
            name="toy", vocab_size=self.vocab, media_ids=self.media_ids, eos_ids=self.eos_ids,
            max_context=self.max_context, drafts="trees", recurrent=False, one_pass=True,
        )  # fmt: skip

    def prompt_from_ids(self, ids: Ints) -> Ints:
        return ids

    def prefill(self, prompt: Ints, needs: Needs) -> tuple[ToyState, Prefill]:
        ids = [int(token) for token in prompt]
        seen: set[int] = set()
        at = []
        for place, token in enumerate(ids):
            wanted = needs.prompt_rows == "all" or token not in seen
            if needs.prompt_rows != "none" and token not in self.media_ids and wanted:
                at.append(place)
                seen.add(token)
        rows = [self._row(ids[: place + 1]) for place in at]
        last_ids, last_logits = self._row(ids)
        prefill = Prefill(
            next_row_ids=last_ids,
            next_row_logits=last_logits,
            logits=toy_row(ids, self.vocab, self.order),
            extras=self._extras(ids, needs),
            positions=np.array(at, np.int32),
            row_ids=np.array([ids for ids, _ in rows], np.int32).reshape(-1, 8),
            row_logits=np.array([logits for _, logits in rows], np.float32).reshape(-1, 8),
        )
        return ToyState(ids), prefill

    def forward(
        self, states: Sequence[ToyState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        outs = []
        for state, tree in zip(states, trees, strict=True):
            assert not state.closed
            assert state.pack is None, "the last pack was not sorted out"
            state.pack = tree
            self.passes.append(len(tree))
            histories = [state.kept + path_tokens(tree, node) for node in range(len(tree))]
            rows = [self._row(history) for history in histories]
            outs.append(
                TargetOut(
                    row_ids=np.array([ids for ids, _ in rows]),
                    row_logits=np.array([logits for _, logits in rows]),
                    logits=np.array([toy_row(h, self.vocab, self.order) for h in histories]),
                    extras=self._extras(histories[0], needs),
                )
            )
        return outs

    def grow(self, state: ToyState, tree: PackedTree, needs: Needs) -> TargetOut:
        assert state.pack is not None
        done = len(state.pack)
        assert tree.tokens[:done].tolist() == state.pack.tokens.tolist()
        self.drop(state)
        out = self.forward([state], [tree], needs)[0]
        return TargetOut(
            row_ids=out.row_ids[done:], row_logits=out.row_logits[done:], logits=out.logits[done:]
        )

    def drop(self, state: ToyState) -> None:
        state.pack = None

    def keep(self, state: ToyState, path: Ints) -> None:
        assert state.pack is not None
        state.kept += [int(state.pack.tokens[node]) for node in [0, *path]]
        state.pack = None

    def _extras(self, history: list[int], needs: Needs) -> dict[str, Any]:
        """Attention on pictures: a fixed function of the text, as often high as low."""
        if not needs.visual_attention:
            return {}
        return {"visual_attention": (sum(history[-2:]) * 0.37) % 1.0}

    def _row(self, history: list[int]) -> tuple[Ints, np.ndarray]:
        logits = toy_row(history, self.vocab, self.order)
        order = np.argsort(-logits, kind="stable")[:8]
        return order.astype(np.int32), logits[order]

    def plain(self, prompt: Sequence[int], limit: int) -> list[int]:
        """The answer of plain greedy decoding, written without the loop."""
        ids, answer = list(prompt), []
        while len(answer) < limit:
            token = int(np.argmax(toy_row(ids, self.vocab, self.order)))
            ids.append(token)
            answer.append(token)
            if token in self.eos_ids:
                break
        return answer


def path_tokens(tree: PackedTree, node: int) -> list[int]:
    """Tokens from the root to a node."""
    path: list[int] = []
    while node >= 0:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]

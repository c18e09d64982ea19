"""A target without weights: its next token is a fixed function of the last few tokens, so tests of
the loop run in milliseconds and every answer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from eyespan.types import Ints, Needs, PackedTree, Prefill, TargetOut

if TYPE_CHECKING:
    from eyespan.target.weights import TargetWeights

WIDTH = 8
"""Of a toy target's states."""


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
    room: int | None = None

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
            device="cpu",
        )  # fmt: skip

    def weights(self) -> TargetWeights:
        """Random tables of a decoder that does not exist."""
        import torch

        from eyespan.target.weights import TargetShape, TargetWeights

        shape = TargetShape(
            name="toy", hidden_size=WIDTH, layers=8, heads=2, kv_heads=1, head_dim=4,
            intermediate_size=12, vocab_size=self.vocab,
        )  # fmt: skip
        tables = torch.from_numpy(np.random.default_rng(0).normal(size=(2, self.vocab, WIDTH)))
        return TargetWeights(
            shape=shape, embedding=tables[0].float(), lm_head=2 * tables[1].float()
        )

    def check_needs(self, needs: Needs) -> None:
        """It shows all that there is."""

    def room(self, prompt: Any) -> int | None:
        """Its cache grows."""
        return None

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
            positions=np.array(at, np.int32),
            row_ids=np.array([ids for ids, _ in rows], np.int32).reshape(-1, 8),
            row_logits=np.array([logits for _, logits in rows], np.float32).reshape(-1, 8),
            extras=self._extras([ids[: place + 1] for place in range(len(ids))], needs),
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
                    extras=self._extras(histories, needs),
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

    def _extras(self, histories: list[list[int]], needs: Needs) -> dict[str, Any]:
        """Attention on pictures at the first history, as often high as low, and states as wide as
        `weights` says: fixed functions of the text.
        """
        extras: dict[str, Any] = {}
        if needs.visual_attention:
            extras["visual_attention"] = (sum(histories[0][-2:]) * 0.37) % 1.0
        if needs.hidden_layers:
            count = len(needs.hidden_layers)
            states = np.random.default_rng(1).normal(size=(self.vocab, count, WIDTH))
            last = [history[-1] for history in histories]
            media = [token for token in last if token in self.media_ids]
            extras["hidden"] = states[last].astype(np.float32)
            extras["visual_tokens"] = states[media, 0].astype(np.float32) if media else None
        return extras

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

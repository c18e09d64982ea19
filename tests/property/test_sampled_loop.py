"""The whole loop draws as the target does: chains, trees and batches whose rows have a temperature
and a cut each, on a vocabulary of five with one-hot rows and zeros. Every transition of every
answer is counted against its exact probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.draw import Chooser, History, Pick, by_position, from_stream, new_generator
from eyespan.engine import Decoder
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.types import Ints, Needs, PackedTree, Prefill, Request, TargetOut
from tests.toy_drafters import RandomDrafter
from tests.toys import ToyState, ToyTarget
from tests.unit.test_rejection import ALPHA, CUTS, LOGITS, VOCAB, chi_square_p, target_rows

START = 0
SETTINGS = [*product((0.3, 1.0, 1.7), CUTS)]
"""(temperature, cut) of each row of a batch."""
LENGTH = 120
"""Tokens of one answer."""


class Markov(ToyTarget):
    """The next token depends on the last alone: row t of `LOGITS` follows the token t."""

    def __init__(self) -> None:
        super().__init__(vocab=VOCAB, eos_ids=frozenset())

    def prefill(self, prompt: Ints, needs: Needs) -> tuple[ToyState, Prefill]:
        logits, none = LOGITS[prompt[-1:]], np.empty(0, np.int32)
        best = np.argsort(-logits, kind="stable").astype(np.int32)
        return ToyState([int(token) for token in prompt]), Prefill(
            next_row_ids=best[0],
            next_row_logits=np.float32(-np.sort(-logits[0])),
            logits=logits[0],
            positions=none,
            row_ids=none.reshape(0, VOCAB),
            row_logits=np.empty((0, VOCAB), np.float32),
        )

    def forward(
        self, states: Sequence[ToyState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        outs = []
        for state, tree in zip(states, trees, strict=True):
            state.pack = tree
            logits = LOGITS[tree.tokens]
            best = np.argsort(-logits, axis=-1, kind="stable").astype(np.int32)
            outs.append(TargetOut(row_ids=best, row_logits=-np.sort(-logits), logits=logits))
        return outs

    def keep(self, state: ToyState, path: Ints) -> None:
        state.pack = None


def answer_of(at: int, pick: Pick, temperature: float, cut: str) -> Running:
    """A request whose tokens are drawn by a temperature and a cut."""

    def shape(ids: Any, scores: torch.Tensor) -> torch.Tensor:
        return CUTS[cut](scores / temperature)

    prompt = np.array([START], np.int32)
    request = Request(
        id=str(at), prompt_ids=prompt, media_ids=frozenset(), eos_ids=frozenset(),
        max_new_tokens=LENGTH,
    )  # fmt: skip
    draw = Chooser(History(torch.tensor([[START]]), LENGTH + 1), shape, pick)
    return Running(request, on_token=lambda token, source: None, draw=draw)


def transitions(
    deepest: int, settings: Sequence[tuple[float, str]], draws: int, by_stream: bool
) -> tuple[np.ndarray, int]:
    """[rows, V, V] counts of tokens after tokens, each row with a setting of its own, and how many
    guesses were accepted.
    """
    target = Markov()
    counts, accepted = np.zeros((len(settings), VOCAB, VOCAB)), 0
    for turn in range(max(1, draws // (LENGTH * len(settings)))):
        drafter = RandomDrafter(VOCAB, turn, deepest=deepest)
        drafter.fixed_budget = 6
        decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
        batch = []
        for at, setting in enumerate(settings):
            seed = turn * len(settings) + at
            pick = from_stream(new_generator(seed, "cpu")) if by_stream else by_position(seed)
            batch.append(answer_of(at, pick, *setting))
            decoder.start(batch[-1], batch[-1].request.prompt_ids)  # type: ignore[arg-type]
        while left := [running for running in batch if running.finish is None]:
            decoder.step(left)
        for at, running in enumerate(batch):
            assert "drafter fault" not in running.counters.plain_steps
            accepted += running.counters.accepted
            np.add.at(counts[at], (running.ids[:-1], running.ids[1:]), 1)
    return counts, accepted


@pytest.mark.parametrize(
    ("rows", "drafts", "numbers", "draws"),
    [
        ("one", "chain", "stream", 2_400),
        ("one", "tree", "position", 2_400),
        ("batch", "chain", "position", 4_800),
        pytest.param("one", "tree", "stream", 200_000, marks=pytest.mark.slow),
        pytest.param("batch", "chain", "stream", 200_000, marks=pytest.mark.slow),
        pytest.param("batch", "tree", "position", 200_000, marks=pytest.mark.slow),
    ],
)
def test_A23_every_transition_follows_the_target(
    rows: str, drafts: str, numbers: str, draws: int
) -> None:
    settings = SETTINGS if rows == "batch" else [(1.7, "top_p")]
    deepest = 1 if drafts == "chain" else 6
    counts, accepted = transitions(deepest, settings, draws, numbers == "stream")
    assert accepted > 0.05 * counts.sum(), "guesses count, so the walk goes through trees"
    for seen, setting in zip(counts, settings, strict=True):
        truth = target_rows(*setting)[:VOCAB]
        for before in range(VOCAB):
            assert chi_square_p(seen[before], truth[before]) > ALPHA, (setting, before)
        spread = np.abs(seen - seen.sum(-1, keepdims=True) * truth).sum() / (2 * seen.sum())
        assert spread < 2 * np.sqrt(VOCAB**2 / seen.sum())


def test_the_comparison_sees_a_wrong_temperature() -> None:
    counts, _ = transitions(6, [(1.0, "none")], 2_000, by_stream=True)
    assert chi_square_p(counts[0][0], target_rows(1.7, "none")[0]) < ALPHA

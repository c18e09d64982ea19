"""Tokens of both acceptance rules are distributed as the target's own draws: chi-square and total
variation against exact probabilities, on tiny vocabularies with one-hot rows, zeros and cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf
from transformers.generation.logits_process import TopHLogitsWarper

from eyespan.draw import by_position, from_stream, new_generator
from eyespan.types import Cut, PackedTree, Verdict
from eyespan.verify import Emit, inverse_draw, reject_siblings, verify, verify_by_rejection

VOCAB = 5
ALPHA = 1e-6
"""Of each comparison; the seeds are fixed, so a pass is a pass for ever."""

PROMPT = 5
"""Its row; row t is what follows the token t."""

Row = np.ndarray
Rule = Callable[[PackedTree, Row, Row, np.random.Generator, Emit], Verdict]
CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda scores: scores,
    "top_h": lambda scores: TopHLogitsWarper(0.5)(None, scores),
    "top_k": lambda scores: hf.TopKLogitsWarper(3)(None, scores),
    "top_p": lambda scores: hf.TopPLogitsWarper(0.7)(None, scores),
    "min_p": lambda scores: hf.MinPLogitsWarper(0.2)(None, scores),
    "typical_p": lambda scores: hf.TypicalLogitsWarper(0.7)(None, scores),
    "epsilon": lambda scores: hf.EpsilonLogitsWarper(0.1)(None, scores),
    "eta": lambda scores: hf.EtaLogitsWarper(0.1)(None, scores),
}
LOGITS = np.array(
    [
        [2.0, 1.5, 1.0, -1.0, 0.3],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [9.0, -30.0, 1.0, 1.0, 1.0],
        [-np.inf, 1.0, 2.0, -np.inf, 0.5],
        [-np.inf, -np.inf, 0.0, -np.inf, -np.inf],  # one-hot
        [1.0, 3.0, -2.0, 0.5, 0.5],
    ]
)
DRAFT = np.array(
    [
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.0, 0.9, 0.05, 0.05, 0.0],
        [1.0, 0.0, 0.0, 0.0, 0.0],  # one-hot
        [0.6, 0.1, 0.1, 0.1, 0.1],
        [0.0, 0.0, 0.5, 0.5, 0.0],
        [0.1, 0.1, 0.5, 0.1, 0.2],
    ]
)


@cache
def target_rows(temperature: float, cut: str) -> Row:
    """[6, V] exact probabilities after temperature and cut."""
    scores = CUTS[cut](torch.from_numpy(LOGITS) / temperature)
    return scores.softmax(-1).numpy()


def tree_of(rng: np.random.Generator, widths: tuple[int, ...], q: Row, root: int) -> PackedTree:
    """Guesses behind the row `root`: `widths` children a depth, drawn without replacement."""
    tokens, parents, level = [root], [-1], [0]
    for width in widths:
        below = []
        for node in level:
            weights = q[tokens[node]].copy()
            for _ in range(min(width, np.count_nonzero(weights))):
                total = weights.cumsum()
                token = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
                weights[token] = 0.0
                below.append(len(tokens))
                tokens.append(token)
                parents.append(node)
        level = below
    n = len(tokens)
    return PackedTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.zeros(n, np.int32),
        np.zeros((n, 2), np.uint64),
        np.arange(n - 1, dtype=np.int32),
    )


def walked(tree: PackedTree, p: Row, _q: Row, rng: np.random.Generator, emit: Emit) -> Verdict:
    """The default rule, drawing as position-keyed requests do."""
    return verify(
        tree, lambda at: int(inverse_draw(p[tree.tokens[at], None], rng.random(1))[0]), emit
    )


def rejected(tree: PackedTree, p: Row, q: Row, rng: np.random.Generator, emit: Emit) -> Verdict:
    """The rule for drafters that know their probabilities."""
    return verify_by_rejection(
        tree, lambda at: p[tree.tokens[at]], lambda at: q[tree.tokens[at]], rng.random, emit
    )


def careless(tree: PackedTree, p: Row, q: Row, rng: np.random.Generator, emit: Emit) -> Verdict:
    """The usual mistake: after a rejection, draw from p instead of what is left of it."""
    children = np.flatnonzero(tree.parents == 0)
    for child in children:
        token = int(tree.tokens[child])
        if rng.random() * q[tree.tokens[0], token] < p[tree.tokens[0], token]:
            return Verdict(np.array([child]), None, (token,), emit(token, int(child)))
    token = int(rng.choice(VOCAB, p=p[tree.tokens[0]]))
    return Verdict(np.empty(0, np.int32), token, (token,), emit(token, -1))


def first_two(rule: Rule, p: Row, q: Row, widths: tuple[int, ...], draws: int) -> tuple[Row, float]:
    """[V, V] counts of the first two tokens after the prompt, and accepted guesses an answer."""
    rng, counts, accepted = np.random.default_rng(0), np.zeros((VOCAB, VOCAB)), 0
    for _ in range(draws):
        said: list[int] = []

        def emit(token: int, _node: int, said: list[int] = said) -> Cut | None:
            said.append(token)
            return "length" if len(said) == 2 else None

        while len(said) < 2:
            tree = tree_of(rng, widths, q, said[-1] if said else PROMPT)
            accepted += len(rule(tree, p, q, rng, emit).path)
        counts[said[0], said[1]] += 1
    return counts, accepted / draws


def chi_square_p(counts: Row, probs: Row) -> float:
    """Probability of a worse fit by chance; cells of little expectation are pooled."""
    expected = probs.ravel() * counts.sum()
    seen = counts.ravel()
    assert not seen[expected == 0].any(), "a token of probability 0 was drawn"
    large = expected >= 5
    seen = np.append(seen[large], seen[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic = float(((seen - expected) ** 2 / expected).sum())
    if len(seen) < 2:
        return 1.0
    return float(
        torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2), torch.tensor(statistic / 2))
    )


def check(counts: Row, p: Row) -> None:
    """The first two tokens of an answer follow p."""
    truth = p[PROMPT][:, None] * p[:PROMPT]
    draws = counts.sum()
    assert chi_square_p(counts, truth) > ALPHA
    assert 0.5 * np.abs(counts / draws - truth).sum() < 2 * np.sqrt(VOCAB**2 / draws)


def many(p: Row, q: Row, width: int, draws: int) -> Row:
    """[V, V] counts of the first two tokens by `reject_siblings`, all answers at once."""
    rng, before, said = np.random.default_rng(0), np.full(draws, PROMPT), []
    for _ in range(2):
        weights, siblings = q[before].copy(), []
        for _ in range(min(width, int((q > 0).sum(-1).min()))):
            siblings.append(inverse_draw(weights, rng.random(draws)))
            weights[np.arange(draws), siblings[-1]] = 0.0
        guesses = np.array(siblings, np.int32).T.reshape(draws, -1)
        uniforms = rng.random((draws, guesses.shape[1] + 1))
        before, _ = reject_siblings(p[before], q[before], guesses, uniforms)
        said.append(before)
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (said[0], said[1]), 1)
    return counts


DRAWS = [20_000, pytest.param(200_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_A23_rejection_follows_the_target(
    temperature: float, cut: str, width: int, draws: int
) -> None:
    p, q = target_rows(temperature, cut), DRAFT + (0.01 if width > 1 else 0.0)
    check(many(p, q, width, draws), p)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_A23_draws_follow_the_target(temperature: float, cut: str, draws: int) -> None:
    p, rng = target_rows(temperature, cut), np.random.default_rng(0)
    first = inverse_draw(np.tile(p[PROMPT], (draws, 1)), rng.random(draws))
    counts = np.zeros((VOCAB, VOCAB))
    np.add.at(counts, (first, inverse_draw(p[first], rng.random(draws))), 1)
    check(counts, p)


@pytest.mark.parametrize("rule", [walked, rejected])
@pytest.mark.parametrize("widths", [(1, 1), (3, 2)], ids=["chain", "tree"])
@pytest.mark.parametrize("draws", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_A23_answers_follow_the_target(rule: Rule, widths: tuple[int, ...], draws: int) -> None:
    p = target_rows(1.0, "none")
    check(first_two(rule, p, DRAFT, widths, draws)[0], p)


def test_the_comparison_sees_a_wrong_rule() -> None:
    p = target_rows(1.0, "none")
    counts, _ = first_two(careless, p, DRAFT, (3,), 1500)
    assert chi_square_p(counts, p[PROMPT][:, None] * p[:PROMPT]) < ALPHA


def test_known_probabilities_let_more_guesses_through() -> None:
    p = target_rows(1.0, "none")
    _, walk = first_two(walked, p, DRAFT, (3, 2), 1000)
    _, rejection = first_two(rejected, p, DRAFT, (3, 2), 1000)
    assert rejection > 1.1 * walk


def test_a_draft_that_equals_the_target_is_always_taken() -> None:
    p = target_rows(1.0, "none")
    _, accepted = first_two(rejected, p, p, (1, 1), 300)
    assert accepted == 2


def test_a_guess_that_could_not_have_been_drawn_is_passed_over() -> None:
    p = target_rows(1.0, "none")
    counts, _ = first_two(
        lambda tree, p, _q, rng, emit: rejected(tree, p, np.zeros((6, VOCAB)), rng, emit),
        p, DRAFT, (2,), 1500,
    )  # fmt: skip
    assert chi_square_p(counts, p[PROMPT][:, None] * p[:PROMPT]) > ALPHA


def test_A24_all_likely_tokens_come() -> None:
    row, pick = torch.tensor([[2.0, 1.5, 1.0]]), by_position
    assert {pick(seed)(row, 7) for seed in range(300)} == {0, 1, 2}
    stream = [from_stream(new_generator(seed, "cpu"))(row, 7) for seed in range(300)]
    assert set(stream) == {0, 1, 2}


def test_an_inverse_draw_never_takes_a_token_of_probability_zero() -> None:
    uniforms = np.array([0.0, 0.3 - 1e-12, 0.3, 1 - 2**-53])
    rows = np.tile([0.0, 0.3, 0.0, 0.7, 0.0], (len(uniforms), 1))
    assert inverse_draw(rows, uniforms).tolist() == [1, 1, 3, 3]

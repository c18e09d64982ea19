"""Verification by rejection in the whole loop: drafters that draw, batches, options. Answers follow
the target's own distribution, and nothing that cannot be honoured runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import eyespan
from eyespan.drafters import DRAFTERS
from eyespan.drafters._drawing import Drawing, Sketch, shares, siblings
from eyespan.draw import Chooser, History, Lots, from_stream, new_generator
from eyespan.drawn import Drawn
from eyespan.dropin import fallbacks
from eyespan.engine import Decoder
from eyespan.errors import ConfigError, UnsupportedRequest
from eyespan.generation import Engine
from eyespan.policy import Policy
from eyespan.rejection import check_drawn
from eyespan.sequence import Running
from eyespan.testing import tiny_images, tiny_model, tiny_target
from eyespan.types import DraftProbs, DraftTree
from eyespan.verify import Doubles
from tests.drafting import request_of
from tests.toy_drafters import drafter_for
from tests.toys import ToyTarget, toy_row
from tests.unit.test_rejection import chi_square_p

VOCAB = 8
ROOT = 3
"""Last id of the prompt."""
LONG = 4
"""Tokens of an answer: a draft begins behind the first, which the prompt's own forward gives."""
ALPHA = 1e-6
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"draft_model": {"depth": 3}, "eagle3": {"nodes": 3, "depth": 3}},
    "tree": {
        "draft_model": {"depth": 2, "width": 3},
        "eagle3": {"nodes": 9, "depth": 3},
        "fovea": {"nodes": 8, "depth": 2},
    },
}
QUICK = {("draft_model", "chain", 1.7), ("draft_model", "tree", 0.3), ("eagle3", "tree", 1.0)}
CASES = [
    pytest.param(name, shape, temperature, marks=[] if quick else [pytest.mark.slow])
    for shape, names in SHAPES.items()
    for name in names
    for temperature in (0.3, 1.0, 1.7)
    for quick in [(name, shape, temperature) in QUICK]
]


def rows(temperature: float) -> Doubles:
    """[V, V] the target's distribution after every token."""
    logits = np.stack([toy_row([token], VOCAB, 1) for token in range(VOCAB)]).astype(np.float64)
    weights = np.exp(2.0 * logits / temperature)
    return weights / weights.sum(-1, keepdims=True)


class Peaked(ToyTarget):
    """A toy target whose logits differ more, so that temperatures matter."""

    def forward(self, states: Any, trees: Any, needs: Any) -> Any:
        outs = super().forward(states, trees, needs)
        return [replace(out, logits=2 * out.logits) for out in outs]

    def prefill(self, prompt: Any, needs: Any) -> Any:
        state, read = super().prefill(prompt, needs)
        return state, replace(read, logits=2 * read.logits)


def sampled(decoder: Decoder, temperature: float, draws: int, batch: int = 24) -> list[Running]:
    """Finished answers of many requests, several in a batch."""
    done: list[Running] = []
    for first in range(0, draws, batch):
        together = []
        for seed in range(first, min(draws, first + batch)):
            request = request_of([2, ROOT], limit=LONG)
            history = History(torch.from_numpy(request.prompt_ids)[None].long(), 2 + LONG)
            generator = new_generator(seed, "cpu")
            chooser = Chooser(
                history, lambda ids, scores: scores / temperature, from_stream(generator)
            )
            running = Running(request, on_token=lambda token, source: None, draw=chooser)
            running.lots = Lots(chooser, temperature, generator, key=seed)
            decoder.start(running, request.prompt_ids)  # type: ignore[arg-type]
            together.append(running)
        while together:
            decoder.step(together)
            done += [running for running in together if running.finish]
            together = [running for running in together if not running.finish]
    return done


def decoder_of(
    name: str, wrap: Callable[[Any], Any] = lambda drafter: drafter, **options: Any
) -> Decoder:
    target = Peaked(vocab=VOCAB, order=1, eos_ids=frozenset())
    drafter = wrap(drafter_for(name, target, **options))
    policy = Drawn("fixed", drafter, vocab_size=VOCAB)
    return Decoder(target, drafter, policy)  # type: ignore[arg-type]


def fit(answers: list[Running], temperature: float) -> float:
    """Chance of a worse fit of the second and third token: both lie in a draft or next to one."""
    p = rows(temperature)
    truth = p[ROOT][:, None, None] * p[:, :, None] * p[None]
    counts = np.zeros((VOCAB, VOCAB))
    for running in answers:
        _, second, third, _ = running.output_ids.tolist()
        counts[second, third] += 1
    return chi_square_p(counts, truth.sum(0))


@pytest.mark.parametrize("draws", [500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "shape", "temperature"), CASES)
def test_answers_follow_the_target(name: str, shape: str, temperature: float, draws: int) -> None:
    decoder = decoder_of(name, **SHAPES[shape][name])
    answers = sampled(decoder, temperature, draws)
    assert fit(answers, temperature) > ALPHA
    assert sum(running.counters.accepted for running in answers) > draws / 20


@pytest.mark.slow
def test_the_comparison_sees_a_drafter_that_lies() -> None:
    """The control: guesses drawn from one distribution and called another's."""

    def lying(drafter: Any) -> Any:
        honest = drafter.draw_many

        def draw_many(asks: Any, drawings: Any) -> list[DraftTree]:
            trees = honest(asks, drawings)
            return [
                replace(tree, probs=DraftProbs(tree.probs.rows**0.2, tree.probs.at))
                if tree.probs
                else tree
                for tree in trees
            ]

        drafter.draw_many = draw_many
        return drafter

    decoder = decoder_of("draft_model", lying, depth=2, width=2)
    assert fit(sampled(decoder, 1.0, 4000), 1.0) < ALPHA


def test_more_guesses_survive_than_in_the_walk() -> None:
    rejecting = sampled(decoder_of("draft_model", depth=2, width=3), 1.0, 300)
    target = Peaked(vocab=VOCAB, order=1, eos_ids=frozenset())
    drafter = drafter_for("draft_model", target, depth=2, width=3)
    walking = sampled(Decoder(target, drafter, Policy("fixed", drafter)), 1.0, 300)  # type: ignore[arg-type]
    accepted = [sum(r.counters.accepted for r in each) for each in (rejecting, walking)]
    assert accepted[0] > accepted[1]


def test_siblings_are_drawn_without_replacement() -> None:
    probs = np.array([0.5, 0.3, 0.0, 0.2])
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(4000):
        pair = tuple(siblings(probs, 2, np.random.default_rng(seed)).tolist())
        counts[pair] = counts.get(pair, 0) + 1
    pairs = [(a, b) for a, b in product((0, 1, 3), repeat=2) if a != b]
    truth = np.array([probs[a] * probs[b] / (1 - probs[a]) for a, b in pairs])
    assert chi_square_p(np.array([counts[pair] for pair in pairs]), truth) > ALPHA
    assert set(counts) == set(pairs)
    assert sorted(siblings(probs, 9, np.random.default_rng(0)).tolist()) == [0, 1, 3]


def test_a_sketch_keeps_within_its_size_and_its_depth() -> None:
    assert shares([0.6, 0.3, 0.0], 4) == [3, 1, 0]
    assert shares([0.0], 2) == [0]
    logits = np.log(np.tile([0.4, 0.3, 0.2, 0.1], (9, 1)))
    for chain, nodes in ((False, 7), (True, 3)):
        sketch = Sketch(Drawing(1.0, 5, 3, chain), 9, nodes, 3, frozenset({1}))
        while sketch.going:
            sketch.draw(logits[: len(sketch.layer)])
        tree = sketch.tree()
        check_drawn(tree, 4)
        assert len(tree) <= nodes
        parents = tree.parents.tolist()
        assert 1 not in tree.tokens[[parent for parent in parents if parent >= 0]]
        if chain:
            assert parents == list(range(-1, len(tree) - 1))
    with pytest.raises(ValueError, match="probabilities"):
        check_drawn(replace(tree, probs=None), 4)


@pytest.mark.parametrize(
    "name", sorted(set(DRAFTERS) - {"draft_model", "eagle3", "msd", "fovea", "dream", "vispec"})
)
def test_drafters_without_probabilities_are_refused(name: str) -> None:
    target = tiny_target("llama")
    with pytest.raises(UnsupportedRequest, match="not drawn from a distribution"):
        Engine(target, drafter_for(name, ToyTarget()), verification="rejection", budget=4)
    with pytest.raises(ConfigError, match="walk"):
        Engine(target, "none", verification="wlak", budget=0)  # type: ignore[arg-type]


def test_requests_and_options() -> None:
    target = tiny_target("qwen2_5_vl")
    options: dict[str, Any] = {"draft_model": tiny_target("llama"), "depth": 3, "width": 2}
    engine = Engine(target, "draft_model", verification="rejection", budget="fixed", **options)
    for bad in ({}, {"temperature": 0.0}, {"temperature": 1.0, "rng": "position"}):
        with pytest.raises(UnsupportedRequest, match="rejection"):
            engine.generate("Say", **bad)
    plain = Engine(target, "none", budget=0)
    pictures = tiny_images(1)
    greedy = plain.generate("Say it", pictures, max_new_tokens=12, repetition_penalty=1.2)
    cold = {"temperature": 1e-4, "repetition_penalty": 1.2, "max_new_tokens": 12, "logprobs": 2}
    answer = engine.generate("Say it", pictures, **cold)  # so cold that nothing is left to chance
    assert answer.token_ids == greedy.token_ids
    assert answer.logprobs is not None
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    warm = {"temperature": 1.0, "max_new_tokens": 10, "seed": 4}
    alone = engine.generate("Say it", **warm)
    assert alone.token_ids == engine.generate("Say it", **warm).token_ids
    both = engine.generate_many(["Say it", "And that"], **warm)
    assert both[0].token_ids == alone.token_ids


def test_an_enabled_model() -> None:
    model = tiny_model("llama")
    ids = torch.arange(20, 40)[None]
    greedy = model.generate(ids, max_new_tokens=12, do_sample=False)
    eyespan.enable(
        model,
        "draft_model",
        budget="fixed",
        verification="rejection",
        draft_model=tiny_model("llama", seed=1),
    )
    try:
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), greedy)
        assert list(fallbacks(model)) == [
            "greedy decoding, where guesses are verified by rejection"
        ]
        cold = model.generate(ids, max_new_tokens=12, do_sample=True, temperature=1e-4)
        assert torch.equal(cold, greedy)
        torch.manual_seed(3)
        one = model.generate(ids, max_new_tokens=12, do_sample=True)
        torch.manual_seed(3)
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=True), one)
        assert sum(fallbacks(model).values()) == 1
    finally:
        eyespan.disable(model)

"""Answers that follow a grammar: the same for every drafter, whole where the grammar ends, and no
node is spent on what it forbids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from eyespan.drafters.base import Ask
from eyespan.generation import Engine
from eyespan.grammar import Grammars
from eyespan.testing import tiny_tokenizer
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step
from tests.parity.choosing import DRAFTERS, PROMPT, ask, inputs_of, stock, target_of

xgrammar = pytest.importorskip("xgrammar")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["tea", "coffee"]},
        "sizes": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"type": "json_schema", "schema": SCHEMA},
    "openai": {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}},
    "regex": {"type": "regex", "regex": "[a-f]{3,9}x"},
    "ebnf": {"type": "ebnf", "grammar": 'root ::= "(" root ")" | [a-c]'},
    "choice": {"type": "choice", "choices": ["yes", "no way", "nobody"]},
    "after": {"type": "choice", "choices": ["yes", "no"], "after": "K"},
}


def right(name: str, text: str) -> bool:
    """Whether a whole answer has its form; written without the library."""
    if name in ("schema", "openai"):
        order = json.loads(text)
        return set(order) == {"name", "sizes"} and order["name"] in ("tea", "coffee")
    if name == "ebnf":
        depth = text.count("(")
        return text == "(" * depth + text[depth] + ")" * depth and text[depth] in "abc"
    if name == "choice":
        return text in FORMS["choice"]["choices"]
    if name == "after":
        return re.fullmatch("[^K]*K(yes|no)", text, re.DOTALL) is not None
    return re.fullmatch(FORMS[name]["regex"], text) is not None


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "name",
    [name if name != "openai" else pytest.param(name, marks=pytest.mark.slow) for name in FORMS],
)
def test_A27_every_drafter_writes_the_plain_answer(name: str, options: dict[str, Any]) -> None:
    asked = {"response_format": FORMS[name], "max_new_tokens": 200, **options}
    if name == "after":
        asked["logit_bias"] = {text_ids("K")[0]: 3.0}  # a random model hardly ever says it
    plain = ask("llama", "none", **asked)
    assert plain.finish == "eos"
    assert right(name, plain.text)
    for drafter in DRAFTERS[1:]:
        answer = ask("llama", drafter, **asked)
        assert (answer.token_ids, answer.finish) == (plain.token_ids, "eos"), drafter
        assert not answer.plain_steps.get("drafter fault")


def test_the_same_as_stock_with_xgrammars_own_processor() -> None:
    tokenizer = xgrammar.TokenizerInfo.from_huggingface(
        tiny_tokenizer(), vocab_size=target_of("llama").info.vocab_size, stop_token_ids=[2]
    )
    grammar = xgrammar.GrammarCompiler(tokenizer).compile_regex(FORMS["regex"]["regex"])
    from xgrammar.contrib.hf import LogitsProcessor

    expected = stock("llama", logits_processor=[LogitsProcessor(grammar)])
    assert ask("llama", "recap", response_format=FORMS["regex"]).token_ids == expected


class Scripted:
    """Guesses a fixed text, with an illegal token in one place."""

    name: ClassVar[str] = "scripted"
    needs = Needs()
    fixed_budget = 32
    extra_nodes = 0

    def __init__(self, ids: list[int], wrong_at: int, prompt: int) -> None:
        self.ids, self.wrong_at, self.prompt = ids, wrong_at, prompt

    def begin(self, request: Request, prefill: Prefill) -> Scripted:
        return self

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        said = len(prefix) - self.prompt
        guess = [3 if at == self.wrong_at else token for at, token in enumerate(self.ids)][said:]
        return DraftTree(np.array(guess, np.int32), np.arange(-1, len(guess) - 1, dtype=np.int32))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [self.propose(ask.prefix, ask.budget) for ask in asks]

    def observe(self, step: Step) -> None:
        pass

    def config_dict(self) -> dict[str, object]:
        return {}

    def is_warm(self, scope: str | None) -> bool:
        return False

    def reset(self) -> None:
        pass


def test_A27_an_illegal_guess_costs_no_node_wherever_it_stands() -> None:
    asked = {"response_format": FORMS["regex"], "max_new_tokens": 40}
    plain = ask("llama", "none", **asked)
    length = len(plain.token_ids)
    for wrong_at in range(1, length):
        drafter = Scripted(list(plain.token_ids), wrong_at, len(inputs_of("llama")))
        answer = Engine(target_of("llama"), drafter, budget="fixed").generate(PROMPT, **asked)
        assert answer.token_ids == plain.token_ids
        assert answer.drafted == answer.accepted, "only right guesses were sent"


def grammars() -> Grammars:
    return Grammars(tiny_tokenizer(), 264, [2])


def text_ids(text: str) -> list[int]:
    return list(tiny_tokenizer().encode(text, add_special_tokens=False))


def test_pruning_keeps_whole_legal_paths() -> None:
    run = grammars().begin({"type": "regex", "regex": "ab*c"}, 1)
    a, b, c = text_ids("abc")
    #  a - b - c - </s>    legal;  b - c below the root: illegal;  <image> under b: no text
    tokens = [a, b, c, 2, b, c, 3, a]
    parents = [-1, 0, 1, 2, -1, 4, 1, 1]
    draft = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
    kept = run.prune(draft, np.array([5], np.int32))
    assert kept.tokens.tolist() == [a, b, c, 2]
    assert kept.parents.tolist() == [-1, 0, 1, 2]
    kept = run.prune(draft, np.array([5, a], np.int32))  # the matcher itself moved by one only
    assert kept.tokens.tolist() == [b, c]


def test_masks_leave_special_tokens_out_and_the_scores_alone() -> None:
    run = grammars().begin({"type": "regex", "regex": ".*"}, 1)
    scores = torch.zeros(1, 264)
    masked = run(torch.tensor([[5]]), scores)
    assert torch.equal(scores, torch.zeros(1, 264))
    assert masked[0, 2] == 0, "the answer may end"
    assert torch.isinf(masked[0, [0, 1, 3, 4, 5, 6, 7]]).all()


def test_a_grammar_begins_in_mid_text_at_any_byte() -> None:
    form = {"type": "choice", "choices": ["é!"], "after": "</think>"}
    run = grammars().begin(form, 0)
    ids = torch.tensor([text_ids("so </thin </think>é")])
    legal = torch.isfinite(run(ids, torch.zeros(1, 264)))[0].nonzero().flatten().tolist()
    assert legal == text_ids("!")
    with_end = torch.isfinite(run(torch.cat([ids, torch.tensor([legal])], 1), torch.zeros(1, 264)))
    assert with_end[0].nonzero().flatten().tolist() == [2]

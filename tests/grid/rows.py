"""What one row of a case asks: its prompt, and its options as we and as stock take them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import EVERY_SEEING, WINDOW, tiny_images, tiny_prompt, tiny_target
from tests.grid.axes import FILMS, Case
from tests.parity.steps import MANY, WRAPPED

REGEX = "[a-f]{3,9}x"
CHOICES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 1.7},
    "top_k": {"temperature": 1.0, "top_k": 20},
    "top_p": {"temperature": 1.2, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "typical": {"temperature": 1.0, "typical_p": 0.8},
    "position": {"temperature": 1.0, "top_p": 0.95, "rng": "position"},
    "generator": {"temperature": 1.1, "top_k": 40},
    "frozen": {"temperature": 1e-6},
}
"""The values of the axis, and one that is drawn and leaves nothing to chance."""
SHAPES: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition": {"repetition_penalty": 1.3},
    "ngram": {"no_repeat_ngram_size": 2},
    "min_new": {"min_new_tokens": 6},
    "bad_words": {"bad_words_ids": [[65], [72], [66, 67]]},
    "bias": {"sequence_bias": {(100,): 5.0, (100, 101): -3.0}},
    "forced_end": {"forced_eos_token_id": 2},
    "allowed": {"prefix_allowed_tokens_fn": lambda _row, ids: [int(ids[-1]) % 50 + 40, 90, 2]},
    "guidance": {"guidance_scale": 1.5},
}
"""Options that we and stock call the same; the stateful and the grammar differ."""


class Counting:
    """Keeps state and writes in place: it bans one of the best by how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        scores[0, scores.topk(3).indices[0][self.calls % 3]] = -float("inf")
        return scores


class StopAt:
    """A criterion that ends the answer at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.tensor([input_ids.shape[1] >= self.length])


@dataclass(frozen=True, slots=True)
class Row:
    """One request; equal rows have equal answers."""

    family: str
    text: str
    images: str = "0"
    choice: str = "greedy"
    shape: str = "none"
    stop: str = "length"
    limit: int = 7
    seed: int = 5
    ends: bool = False
    """Whether a tenth of all tokens end an answer, as in cases whose stop is "eos"."""

    @property
    def comparable(self) -> bool:
        """Whether stock can be asked for the same."""
        wants_a_picture = self.family in WRAPPED and self.images == "0"
        return self.choice != "position" and not wants_a_picture


def rows_of(case: Case) -> list[Row]:
    """The case's own request first, then the others that run beside it."""
    ends, limit = case.stop == "eos", int(case.limit)
    own = Row(
        case.family, TEXTS.get(case.cache, MANY), case.images, case.choice, case.shape, case.stop,
        40 if ends and limit == 24 else limit, ends=ends,
    )  # fmt: skip
    if case.way not in ("ragged", "joining"):
        return [own]
    one = "1" if case.family in EVERY_SEEING else "0"
    short = Row(case.family, "hi", limit=5, ends=ends)
    twin = replace(
        own, text="so so so what", images=one, limit=9, seed=6, stop="length",
        choice=own.choice if own.choice != "generator" else "hot",
    )  # fmt: skip
    late = Row(case.family, "and this? it goes on", limit=12, shape="repetition", ends=ends)
    return [own, short, twin] if case.way == "ragged" else [own, short, twin, late]


TEXTS = {"below": "ab", "at": "abcabcabca"[: WINDOW - 3]}


@cache
def target_of(family: str, ends: bool = False) -> HuggingFaceTarget:
    """The tiny target; a second one over the same model where answers are to end soon."""
    if not ends:
        return tiny_target(family)
    target = copy.copy(target_of(family))
    letters = set(target.tokenizer("abcdefx")["input_ids"])
    more = {9 + (7 * at) % 255 for at in range(28)} - letters - target.info.media_ids
    target.info = replace(target.info, eos_ids=target.info.eos_ids | more)
    return target


@cache
def prompt_of(row: Row) -> Prompt:
    """Its inputs, lengthened up to the end of the context where that is what stops it."""
    prompt = _written(row, row.text)
    most = target_of(row.family).info.max_context
    if row.stop != "context" or most > 1000:
        return prompt
    more = most - row.limit - len(prompt)
    return _written(row, row.text + ("abcdefg" * most)[:more])


@cache
def _prompt(family: str, images: str, text: str) -> Prompt:
    target = target_of(family)
    if family not in EVERY_SEEING and images != "0":  # is refused
        return target.prepare(text, tiny_images(1))
    if images == "twins":
        return target.prepare(text, [tiny_images(1, seed=at)[0] for at in range(2)])
    if images in FILMS:
        return tiny_prompt(target, family, int(images == "mixed"), 1, text=text)
    return tiny_prompt(target, family, int(images), text=text)


def _written(row: Row, text: str) -> Prompt:
    return _prompt(row.family, row.images, text)


def options_of(row: Row, prompt: Prompt, stop: str | None) -> dict[str, Any]:
    """As our engine takes them; states are new with every call.

    Args:
        row: the request.
        prompt: its inputs.
        stop: a string of its answer, where it is to end there.
    """
    options: dict[str, Any] = {**CHOICES[row.choice], **SHAPES.get(row.shape, {})}
    options["max_new_tokens"] = 1000 if row.stop == "context" and _bounded(row) else row.limit
    if row.choice == "generator":
        options["generator"] = torch.Generator().manual_seed(row.seed)
    elif row.choice != "greedy":
        options["seed"] = row.seed
    if row.shape == "stateful":
        options["logits_processors"] = [Counting()]
    if row.shape == "grammar":
        options["response_format"] = {"type": "regex", "regex": REGEX}
    if row.stop == "criteria":
        options["stopping_criteria"] = [StopAt(len(prompt) + (row.limit + 1) // 2)]
    if stop is not None:
        options["stop"] = stop
    return options


def _bounded(row: Row) -> bool:
    return target_of(row.family).info.max_context < 1000


def stock_options(row: Row, prompt: Prompt, stop: str | None) -> dict[str, Any]:
    """As `generate()` takes them."""
    target = target_of(row.family, row.ends)
    options: dict[str, Any] = {
        "max_new_tokens": row.limit,
        "do_sample": row.choice != "greedy",
        "eos_token_id": sorted(target.info.eos_ids),
        **({} if row.choice == "greedy" else {"top_k": 0}),
        **CHOICES[row.choice],
        **SHAPES.get(row.shape, {}),
    }
    if row.shape == "stateful":
        options["logits_processor"] = [Counting()]
    if row.shape == "grammar":
        options["logits_processor"] = [_grammar(row)]
    if row.stop == "criteria":
        options["stopping_criteria"] = [StopAt(len(prompt) + (row.limit + 1) // 2)]
    if stop is not None:
        options |= {"stop_strings": [stop], "tokenizer": target.tokenizer}
    return options


def _grammar(row: Row) -> Any:
    import xgrammar
    from xgrammar.contrib.hf import LogitsProcessor

    info = target_of(row.family, row.ends).info
    tokenizer = xgrammar.TokenizerInfo.from_huggingface(
        target_of(row.family).tokenizer,
        vocab_size=info.vocab_size,
        stop_token_ids=sorted(info.eos_ids),
    )
    return LogitsProcessor(xgrammar.GrammarCompiler(tokenizer).compile_regex(REGEX))

"""A prompt on the cache of an earlier one says what it says alone, in every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.target.cache import length
from eyespan.target.prefix import Mark, Prefix
from eyespan.testing import EVERY_SEEING, EVERY_TEXT, packed, tiny_images, tiny_prompt, tiny_target
from eyespan.types import DraftTree, Needs
from tests.parity.steps import MANY, WORST, gap, target_of

NO = Needs()
ANSWER = [70, 71, 72, 70, 71, 72, 73]
SHORT = "ab"
WINDOWED = {
    "mistral", "gemma3_text", "qwen2_windows", "olmo3", "cohere2", "llama4_text", "gemma2",
    "gpt_oss", "gemma3n_text", "aya_vision", "cohere2_vision", "gemma3", "gemma4",
}  # fmt: skip
TWO_WAY = {"gemma3", "gemma4", "molmo2", "paligemma", "paligemma2"}
"""Tokens of a picture see each other, which transformers arranges in a whole prompt only."""

OWN_MASKS = {"paligemma", "paligemma2"}
"""Tokens of a whole prompt see each other."""


QUICK = {
    "llama", "mistral", "qwen3_5_text", "mamba2", "llava", "qwen2_5_vl", "qwen3_vl", "gemma3",
    "molmo2", "mllama", "idefics3", "paligemma",
}  # fmt: skip
"""Each kind of memory and of picture once; the rest on demand."""


def read(target: HuggingFaceTarget, prompt: Prompt) -> torch.Tensor:
    state, said = target.prefill(prompt, NO)
    state.close()
    return said.logits


def answered(
    target: HuggingFaceTarget, prompt: Prompt, pictures: list[bytes], answer: list[int]
) -> Prefix:
    """A prompt, and a few tokens after it."""
    state, _ = target.prefill(prompt, NO)
    for token in answer:
        target.forward([state], [packed(DraftTree.empty(), token)], NO)
        target.keep(state, np.empty(0, np.int32))
    ids = np.concatenate([prompt.ids, np.array(answer, np.int32)])
    cache = target.release(state)
    return target.prefix_after(prompt, ids, cache, pictures=pictures, before=[])


def digests(count: int) -> list[bytes]:
    return [bytes([at]) for at in range(count)]


def reused(prompt: Prompt) -> int:
    return 0 if prompt.cache is None else length(prompt.cache)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in (*EVERY_TEXT, *EVERY_SEEING)
    ],
)
def test_a_prompt_on_a_cache_says_what_it_says_alone(family: str) -> None:
    """The same pictures with other words behind them, and one picture more."""
    target = target_of(family)
    pictures = int(family in EVERY_SEEING)
    first = tiny_prompt(target, family, pictures, text=SHORT if family in WINDOWED else MANY)
    answer = ANSWER[:1] if family in WINDOWED else ANSWER
    prefix = answered(target, first, digests(pictures), answer)

    again = target.resume(first, prefix, digests(pictures))
    anew = target.info.recurrent or family in OWN_MASKS
    assert reused(again) == (0 if anew else len(first) - 1)
    assert gap(read(target, again), read(target, first)) < WORST

    if not pictures:
        return
    more = tiny_prompt(target, family, 2, text=MANY)
    on = target.resume(more, prefix, digests(2))
    if family in TWO_WAY:
        assert reused(on) == 0
    assert gap(read(target, on), read(target, more)) < WORST


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "gemma3"])
def test_a_window_that_moved_on_is_read_anew_unless_nothing_is_cut(family: str) -> None:
    target = target_of(family)
    pictures = int(family == "gemma3")
    prompt = tiny_prompt(target, family, pictures, text=MANY)
    prefix = answered(target, prompt, digests(pictures), ANSWER)
    assert reused(target.resume(prompt, prefix, digests(pictures))) == 0
    media = {k: v for k, v in prompt.media.items() if k != target.family.token_kinds}
    if pictures:
        kinds = torch.tensor([[*prompt.media["token_type_ids"][0].tolist(), *[0] * 10]])
        media["token_type_ids"] = kinds
    longer = target.prompt_from_ids([*prefix.ids, 80, 81, 82], **media)
    on = target.resume(longer, prefix, digests(pictures))
    assert reused(on) == len(prefix)
    assert gap(read(target, on), read(target, longer)) < WORST


def prompt_with(target: HuggingFaceTarget, seed: int, text: str = MANY) -> Prompt:
    return target.prepare(text, tiny_images(1, seed))


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_equal_placeholders_of_another_picture_are_not_equal(family: str) -> None:
    """Two pictures of one size have the same ids; one user's must never be read for another's."""
    target = target_of(family)
    one, other = (prompt_with(target, seed) for seed in (0, 1))
    assert one.ids.tolist() == other.ids.tolist()
    prefix = answered(target, one, [b"one"], ANSWER)
    place = int(np.argmax(np.isin(one.ids, list(target._picture_ids))))
    on = target.resume(other, prefix, [b"other"])
    assert reused(on) == place > 0
    assert gap(read(target, on), read(target, other)) < WORST
    assert gap(read(target, one), read(target, other)) > 0.01


def test_only_pictures_that_changed_are_read_anew() -> None:
    """Marks say how far the equal pictures reach."""
    target = target_of("qwen2_5_vl")
    prompt = tiny_prompt(target, "qwen2_5_vl", 2, text=MANY)
    places = np.flatnonzero(np.isin(prompt.ids, list(target._picture_ids)))
    second = int(places[np.flatnonzero(np.diff(places) > 1)[0] + 1])
    state, _ = target.prefill(prompt, NO)
    cache = target.release(state)
    for marks, expected in (([], int(places[0])), ([Mark(second - 1, 1)], second)):
        prefix = target.prefix_after(prompt, prompt.ids, cache, pictures=digests(2), before=marks)
        on = target.resume(prompt, prefix, [digests(1)[0], b"another"])
        assert reused(on) == expected


def test_other_weights_read_everything_anew() -> None:
    target = tiny_target("llama")
    prompt = tiny_prompt(target, "llama", 0, text=MANY)
    prefix = answered(target, prompt, [], ANSWER)
    assert reused(target.resume(prompt, prefix, [])) > 0
    with torch.no_grad():
        target.model.get_output_embeddings().weight.mul_(1.5)
    assert reused(target.resume(prompt, prefix, [])) == 0


def test_positions_are_compared_too() -> None:
    target = target_of("qwen2_5_vl")
    prompt = prompt_with(target, 0)
    prefix = answered(target, prompt, digests(1), ANSWER)
    moved = prefix.position_ids.clone()
    moved[2, :, 9:] += 1
    shifted = Prefix(prefix.ids, moved, prefix.pictures, (), prefix.weights, prefix.cache)
    assert prefix.common(prompt, digests(1), target._picture_ids) == len(prompt) - 1
    assert shifted.common(prompt, digests(1), target._picture_ids) <= 9


def test_a_fork_and_what_it_came_from_do_not_touch_each_other() -> None:
    target = target_of("qwen2_5_vl")
    prompt = prompt_with(target, 0)
    prefix = answered(target, prompt, digests(1), ANSWER)
    fork = prefix.fork()
    assert fork is not None
    before = [layer.keys.clone() for layer in prefix.cache.layers]
    longer = prompt_with(target, 0, text=MANY + "?")
    on = target.resume(longer, fork, digests(1))
    state, _ = target.prefill(on, NO)
    tree = packed(DraftTree(np.array([70, 71, 72], np.int32), np.array([-1, -1, 1], np.int32)), 69)
    target.forward([state], [tree], NO)
    target.keep(state, np.array([2, 3], np.int32))  # moves entries in place
    for layer, keys, shared in zip(prefix.cache.layers, before, fork.cache.layers, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(shared.keys, keys)

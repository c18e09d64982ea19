"""A real draft model: trees that grow in its cache, answers that stay the target's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.drafters.draft_model import _Pack
from eyespan.errors import ConfigError, InputError
from eyespan.generation import Engine, load
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import tiny_images, tiny_model, tiny_target, tiny_tokenizer
from eyespan.types import Needs

PROMPT = "abc abc, what is this? abc abc"
TOKENS = 24


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "mistral", "gemma3_text"])
def test_a_tree_that_grows_is_the_tree_run_at_once(family: str, attention: str) -> None:
    target = tiny_target(family, attention=attention)
    prompt = target.prepare(PROMPT)
    grown, _ = target.prefill(prompt, Needs())
    whole, _ = target.prefill(prompt, Needs())
    pack = _Pack([40, 50, 60])
    parts = [target.forward([grown], [pack.tree()], Needs())[0].logits.clone()]
    for layer in ([(70, 2), (71, 2)], [(80, 3), (81, 4), (82, 3)]):
        for token, parent in layer:
            pack.add(token, parent)
        parts.append(target.grow(grown, pack.tree(), Needs()).logits.clone())
    once = target.forward([whole], [pack.tree()], Needs())[0].logits
    torch.testing.assert_close(torch.cat(parts), once, atol=2e-4, rtol=1e-4)

    # dropped it is as if it had never been; kept it is as the tree run at once
    target.drop(grown)
    again = target.forward([grown], [_Pack([40, 50, 60]).tree()], Needs())[0].logits
    torch.testing.assert_close(again, once[:3], atol=2e-4, rtol=1e-4)
    target.drop(grown)
    target.forward([grown], [_Pack([40, 50, 60]).tree()], Needs())
    target.grow(grown, pack.tree(), Needs())
    path = np.array([1, 2, 4, 6], np.int32)
    after = []
    for state in (grown, whole):
        target.keep(state, path)
        after.append(target.forward([state], [_Pack([90]).tree()], Needs())[0].logits)
    torch.testing.assert_close(*after, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    ("family", "pictures"), [("llama", 0), ("mistral", 0), ("llava", 1), ("qwen2_5_vl", 2)]
)
def test_the_answer_is_stock_generates(family: str, pictures: int, width: int) -> None:
    target = target_of(family)
    images = tiny_images(pictures)
    inputs = target.prepare(PROMPT, images)
    stock = target.model.generate(
        input_ids=inputs.input_ids, **inputs.media, max_new_tokens=TOKENS, do_sample=False
    )
    draft = target_of("qwen3") if family == "mistral" else target_of("llama")
    engine = Engine(target, "draft_model", budget="fixed", draft_model=draft, width=width)
    answer = engine.generate(PROMPT, images, max_new_tokens=TOKENS)
    assert answer.token_ids == tuple(stock[0, len(inputs) :].tolist())
    assert answer.drafted > TOKENS // 2
    assert not answer.plain_steps.get("drafter fault")
    if family == "llama":  # the target drafts for itself
        assert answer.accepted >= TOKENS - 5


def test_A02_a_draft_model_that_could_see_reads_text_alone() -> None:
    """Two vision models: the pictures go to the target, once, and never to the other."""
    target, draft = target_of("qwen2_5_vl"), tiny_target("llava")
    images = tiny_images(2)
    plain = Engine(target, "none").generate(PROMPT, images, max_new_tokens=TOKENS)
    engine = Engine(target, "draft_model", budget="fixed", draft_model=draft, depth=2)
    answer = engine.generate(PROMPT, images, max_new_tokens=TOKENS)
    assert answer.token_ids == plain.token_ids
    assert answer.drafted > TOKENS // 2
    assert not answer.plain_steps.get("drafter fault")


def test_it_is_loaded_from_a_folder_beside_its_target(tmp_path: Path) -> None:
    tiny_model("llama", seed=3).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    engine = load(
        tiny_model("llama"), drafter="draft_model", draft_model=tmp_path, budget="fixed", depth=2
    )
    drafter: Any = engine.drafter
    assert drafter.model.info.dtype == "float32"
    assert drafter.config_dict()["draft_model"] == str(tmp_path)
    wrapped = Engine(target_of("llava"), "viskip", wrapped="draft_model", draft_model=tmp_path)
    assert wrapped.generate(PROMPT, tiny_images(1), max_new_tokens=4).token_ids


def test_another_vocabulary_or_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens that differ"):
        Engine(target_of("llama"), "draft_model", draft_model="demo")
    with pytest.raises(InputError, match="no such folder"):
        Engine(target_of("llama"), "draft_model", draft_model="./nowhere")

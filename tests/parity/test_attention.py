"""The share of attention on pictures is what an eager model's own attention map says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.errors import UnsupportedTarget
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.attention import Watched, row_watched
from eyespan.testing import SEEING, packed, random_tree, tiny_images, tiny_target
from eyespan.types import Needs

LOOK = Needs(visual_attention=True)
PROMPT = "what is this?"


@cache
def target_of(family: str, attention: str) -> HuggingFaceTarget:
    return tiny_target(family, attention=attention)


def stock_share(family: str, ids: list[int], pictures: int) -> float:
    """From the whole attention map of the last layer, over a forward without a cache."""
    target = target_of(family, "eager")
    prompt = target.prepare(PROMPT, tiny_images(pictures))
    whole = torch.tensor([ids])
    media = {key: value for key, value in prompt.media.items() if "type_ids" not in key}
    if len(media) < len(prompt.media):
        kinds = torch.zeros_like(whole)
        kinds[:, : len(prompt)] = prompt.media["mm_token_type_ids"]
        media["mm_token_type_ids"] = kinds
    with torch.no_grad():
        out = target.model(input_ids=whole, output_attentions=True, **media)
    row = out.attentions[-1][0, :, -1].mean(0)
    return float(row[torch.isin(whole[0], torch.tensor([3, 6]))].sum())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", SEEING)
def test_prompt_plain_step_and_tree(family: str, attention: str) -> None:
    target = target_of(family, attention)
    inputs = target.prepare(PROMPT, tiny_images(2))
    ids = inputs.ids.tolist()
    state, prefill = target.prefill(inputs, LOOK)
    shares: list[Any] = [prefill.extras["visual_attention"]]
    expected = [stock_share(family, ids, 2)]
    rng = np.random.default_rng(0)
    for root, size in ((40, 0), (50, 9), (60, 0)):
        tree = packed(random_tree(rng, size, 200, target.info.media_ids), root)
        out = target.forward([state], [tree], LOOK)[0]
        ids.append(root)
        shares.append(out.extras["visual_attention"])
        expected.append(stock_share(family, ids, 2))
        target.keep(state, np.empty(0, np.int32))
    assert shares == pytest.approx(expected, abs=1e-5)
    assert 0.01 < min(expected) < max(expected) < 1


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_a_text_has_no_pictures_to_look_at(family: str) -> None:
    target = target_of(family, "sdpa")
    state, prefill = target.prefill(target.prepare(PROMPT), LOOK)
    out = target.forward([state], [packed(random_tree(np.random.default_rng(0), 3, 99), 9)], LOOK)
    assert prefill.extras["visual_attention"] == out[0].extras["visual_attention"] == 0.0


def test_nobody_who_does_not_ask_is_looked_at() -> None:
    target = target_of("llama", "sdpa")
    _, prefill = target.prefill(target.prepare(PROMPT), Needs())
    assert prefill.extras == {}
    with row_watched((), 0) as watched:
        target.prefill(target.prepare(PROMPT), Needs())
    assert watched.weights is None


def test_a_sliding_layer_has_forgotten_the_first_positions() -> None:
    watched = Watched((), 0, torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    # ten tokens, of which the layer holds the last four: position 6 is its slot 0
    assert watched.share(torch.tensor([2, 6, 8]), 10, "t") == pytest.approx(0.4)


def test_a_model_that_hides_its_attention_is_refused() -> None:
    target = tiny_target("llama")
    target._packs.last_layer = ()
    with pytest.raises(UnsupportedTarget, match="know their index"):
        target.prefill(target.prepare(PROMPT), LOOK)

"""Training-free drafters on models with pictures: stock's answer, and no media in any guess."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import SEEING, tiny_images, tiny_target
from eyespan.trace import read_trace

TOKENS = 24
CHAT = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look: "},
            {"type": "image"},
            {"type": "text", "text": " so look: "},
        ],
    }
]
"""Its end also stands right before the picture: prompt lookup of transformers drafts placeholders
here and dies in the first step."""

DRAFTERS: list[tuple[str, dict[str, Any]]] = [
    ("prompt_lookup", {"variant": "transformers"}),
    ("token_recycling", {}),
    ("tree_recycling", {}),
    ("viskip", {"wrapped": "recap", "threshold": 0.3}),
    ("viskip", {"wrapped": "recap", "threshold": 0.3, "gate": "before"}),
]


@cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


@cache
def stock(family: str) -> tuple[int, ...]:
    target = target_of(family)
    inputs = target.prepare(CHAT, tiny_images(1))
    out = target.model.generate(
        input_ids=inputs.input_ids, **inputs.media, max_new_tokens=TOKENS, do_sample=False
    )
    return tuple(out[0, len(inputs) :].tolist())


@pytest.mark.parametrize(("name", "options"), DRAFTERS, ids=lambda part: str(part))
@pytest.mark.parametrize("family", SEEING)
def test_A01_hot_prompt(family: str, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    target = target_of(family)
    engine = Engine(target, name, budget="fixed", **options)
    for _ in range(2):  # the second answer may start with a warm memory
        answer = engine.generate(
            CHAT, tiny_images(1), max_new_tokens=TOKENS, trace=tmp_path / "trace"
        )
        assert answer.token_ids == stock(family)
        assert answer.drafted > 0
        assert not answer.plain_steps.get("drafter fault")
        ((_, _, *steps, _),) = read_trace(tmp_path / "trace")
        drafted = {token for step in steps for token in step["tokens"][1:]}
        assert not drafted & target.info.media_ids

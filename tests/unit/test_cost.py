"""Costs are a hint: a damaged file is measured again, and a short context is no obstacle."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from eyespan import cost
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget

DAMAGED = {
    "empty": "",
    "infinite size": '{"sizes": [1, Infinity], "ms": [1, 2]}',
    "no number": '{"sizes": [1, 2], "ms": [1, NaN]}',
    "infinite cost": '{"sizes": [1, 2], "ms": [1, Infinity]}',
    "huge cost": f'{{"sizes": [1, 2], "ms": [1, {"9" * 400}]}}',
    "deep": "[" * 100_000,
    "falling sizes": '{"sizes": [1, 4, 2], "ms": [1, 2, 3]}',
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_curve_is_measured_again(what: str, tmp_path: Path) -> None:
    (tmp_path / "curve.json").write_text(DAMAGED[what])
    assert cost._read(tmp_path / "curve.json") is None


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody-of-that-name")
    assert cost._cache_folder().name == "cost"


@pytest.mark.parametrize("context", [8, 16, 64, 200])
def test_a_short_context_is_measured_within(
    context: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GPT-2 has one learned position a token: one step too far is an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_positions=context, n_embd=32, n_layer=2, n_head=2, eos_token_id=1
    )
    engine = Engine(HuggingFaceTarget(GPT2LMHeadModel(config).eval()))
    assert engine.policy.auto

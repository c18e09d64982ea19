"""Half precision: `strict` writes plain decoding's answer bit for bit, and `verify` rates every
token of an answer that differs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from eyespan.bench.compare import NEAR_TIE, audit
from eyespan.generation import Engine
from eyespan.strict import STRICT_GAP
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import SEEING, RandomDrafter, tiny_images, tiny_target
from tests.cli import Shell

PROMPTS = ("what is this? what", "1 2 1 2 1 2")
TOKENS = 40


@cache
def target_of(family: str, dtype: torch.dtype, seed: int = 0) -> HuggingFaceTarget:
    return tiny_target(family, dtype=dtype, seed=seed)


def answers(target: HuggingFaceTarget, drafter: Any, **options: Any) -> list[Any]:
    images = tiny_images(1) if target.info.family in SEEING else []
    engine = Engine(target, drafter, budget=0 if drafter == "none" else "fixed")
    return [engine.generate(text, images, max_new_tokens=TOKENS, **options) for text in PROMPTS]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", ["llama", "qwen2_5_vl", pytest.param("mistral", marks=pytest.mark.slow)]
)
def test_A21_strict_bfloat16_is_plain_decodings(family: str, seed: int) -> None:
    target = target_of(family, torch.bfloat16, seed)
    for options in ({}, {"repetition_penalty": 1.2}):
        plain = answers(target, "none", **options)
        again = answers(target, "none", **options)
        assert [a.token_ids for a in again] == [a.token_ids for a in plain], "the control"
        for drafter in ("recap", RandomDrafter(target.info.vocab_size)):
            strict = answers(target, drafter, strict=True, **options)
            assert [a.token_ids for a in strict] == [a.token_ids for a in plain]
            assert all(a.near_ties > 0 and a.strict_forwards > 0 for a in strict)
            for answer in strict:
                assert answer.strict_forwards < len(answer.token_ids)
                forwards = answer.forwards + answer.strict_forwards
                assert answer.tau == len(answer.token_ids) / forwards


def test_strict_costs_nothing_where_nothing_is_near() -> None:
    target = target_of("llama", torch.float32)
    for plain, strict in zip(
        answers(target, "none"), answers(target, "recap", strict=True), strict=True
    ):
        assert strict.token_ids == plain.token_ids
        assert (strict.near_ties, strict.strict_forwards) == (0, 0)


def test_strict_looks_wherever_a_pack_may_be_wrong() -> None:
    """The bound is above the largest change of a gap between packs and single tokens."""
    target = target_of("llama", torch.bfloat16)
    worst = 0.0
    for text in PROMPTS:
        prompt = target.prepare(text)
        for answer in answers(target, "recap"):
            packed = torch.cat([prompt.input_ids, torch.tensor([answer.token_ids])], 1)
            with torch.no_grad():
                rows = target.model(packed).logits[0, len(prompt) - 1 :].float()
                cache: Any = None
                for at, token in enumerate(packed[0].tolist()):
                    out = target.model(torch.tensor([[token]]), past_key_values=cache)
                    cache = out.past_key_values
                    if at >= len(prompt) - 1:
                        row = out.logits[0, -1].float()
                        best = rows[at - len(prompt) + 1].topk(2).indices
                        change = (rows[at - len(prompt) + 1] - row)[best]
                        worst = max(worst, float(change.max() - change.min()))
    assert 0 < worst < STRICT_GAP["bfloat16"]


def test_A21_an_audit_rates_every_token() -> None:
    target = target_of("llama", torch.float32)
    prompt = target.prepare(PROMPTS[0])
    plain = answers(target, "none")[0].token_ids
    found = audit(target, prompt, plain)
    assert (found.tokens, found.near_ties, found.different, found.worst) == (TOKENS, 0, 0, 0.0)
    wrong = [*plain[:5], (plain[5] + 1) % 256 + 8, *plain[6:]]
    found = audit(target, prompt, wrong)
    ids, gaps = [*prompt.ids.tolist(), *wrong], []
    with torch.no_grad():
        rows = target.model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
    gaps = [float(row.max() - row[token]) for row, token in zip(rows, wrong, strict=True)]
    assert found.different == sum(gap > NEAR_TIE["float32"] for gap in gaps) > 1
    assert found.worst == pytest.approx(max(gaps), abs=1e-3)


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model whose bfloat16 answers waver."""
    folder = tmp_path_factory.mktemp("half")
    target = target_of("llama", torch.bfloat16)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


def test_A22_verify_rates_and_strict_repairs(shell: Shell, half_folder: Any, tmp_path: Any) -> None:
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("\n".join(f'{{"prompt": "{n} abc {n} what {n}"}}' for n in range(6)))
    asked = ("verify", "-m", half_folder, "--inputs", inputs, "-n", 30, "--budget", "fixed")
    done = shell(*asked, "--dtype", "bfloat16")
    assert done.code == 0, done
    assert "near tie" in done.out
    assert " tokens " in " ".join(done.out.split())
    strict = shell(*asked, "--dtype", "bfloat16", "--strict")
    assert strict.code == 0
    assert "6 of 6 equal" in strict.out
    assert "near ties decided by" in strict.out

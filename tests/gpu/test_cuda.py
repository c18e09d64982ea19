"""What only a GPU can show: kernels of another device, half precision in its own units, memory that
comes back. Run by `scripts/gpu_check.sh`, skipped without a CUDA device.
"""

from __future__ import annotations

import gc

import pytest
import torch

from eyespan.bench.clock import engine_side
from eyespan.generation import Engine
from eyespan.target import load_target
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import SEEING, RandomDrafter, tiny_images, tiny_model, tiny_processor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TOKENS = 32


def target_on_gpu(family: str, dtype: torch.dtype) -> HuggingFaceTarget:
    model = tiny_model(family, dtype=dtype).to("cuda")
    return HuggingFaceTarget(model, tiny_processor(family), name=f"tiny {family}")


@pytest.fixture(autouse=True)
def exact_matmul() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("family", SEEING)
@pytest.mark.parametrize("budget", [4, 63])
def test_float32_answers_are_plain_decodings(family: str, budget: int) -> None:
    target = target_on_gpu(family, torch.float32)
    plain = Engine(target, "none", budget=0)
    for drafter in ("recap", RandomDrafter(target.info.vocab_size)):
        engine = Engine(target, drafter, budget=budget)
        for count in (0, 2):
            images = tiny_images(count)
            want = plain.generate("abc abc", images, max_new_tokens=TOKENS).token_ids
            got = engine.generate("abc abc", images, max_new_tokens=TOKENS).token_ids
            assert got == want


@pytest.mark.parametrize("family", SEEING[:2])
def test_strict_bfloat16_is_plain_bfloat16(family: str) -> None:
    target = target_on_gpu(family, torch.bfloat16)
    plain, engine = Engine(target, "none", budget=0), Engine(target, "recap", budget="fixed")
    want = plain.generate("abc abc", max_new_tokens=TOKENS).token_ids
    assert engine.generate("abc abc", max_new_tokens=TOKENS, strict=True).token_ids == want


def test_the_demo_writes_one_text_at_every_budget() -> None:
    target = load_target("demo", dtype="float32", device="cuda")
    prompt = "What is the total?"
    want = Engine(target, "none", budget=0).generate(prompt, max_new_tokens=TOKENS)
    for budget in (1, 16, "fixed", "auto"):
        got = Engine(target, "recap", budget=budget).generate(prompt, max_new_tokens=TOKENS)
        assert got.token_ids == want.token_ids


def test_compiled_passes_write_the_same_text() -> None:
    """Recorded graphs: several requests in the same buffers, two of them in turns."""
    target = target_on_gpu("qwen2_5_vl", torch.float32)
    prompts = [target.prepare(text, tiny_images(1)) for text in ("abc abc", "what is this?")]
    plain = Engine(target, "none", budget=0)
    want = [plain.generate(prompt, max_new_tokens=TOKENS).token_ids for prompt in prompts]
    target.compile_passes(widths=(1, 8, 64))
    engine = Engine(target, "recap", budget="fixed")
    for _ in range(3):
        streams = [engine.stream(prompt, max_new_tokens=TOKENS) for prompt in prompts]
        for _ in range(TOKENS):
            for stream in streams:
                next(stream, None)
        assert [stream.finish().token_ids for stream in streams] == want
    assert target._packs.compiled is not None
    assert target._packs.compiled.width_of(2) == 8


def test_a_timed_answer_knows_its_peak() -> None:
    """Every answer's own: a larger one before it does not count."""
    target = target_on_gpu(SEEING[0], torch.float32)
    engine = Engine(target, "none", budget=0)
    held = sum(one.numel() * one.element_size() for one in target.model.parameters())
    large, small = (
        engine_side(engine, "abc abc", tiny_images(count), max_new_tokens=TOKENS)().peak_bytes
        for count in (3, 0)
    )
    assert large > small >= held


def test_memory_of_finished_requests_comes_back() -> None:
    engine = Engine(target_on_gpu(SEEING[0], torch.float32), "recap", budget="fixed")
    engine.generate("abc", tiny_images(2), max_new_tokens=TOKENS)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        engine.generate("abc abc", tiny_images(2), max_new_tokens=TOKENS)
    gc.collect()
    assert torch.cuda.memory_allocated() <= before

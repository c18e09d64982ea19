"""The shipped FOVEA on the demo model: its weights are found by the target they were trained for,
no word changes, trees stop where levels do not pay, and a replay says what decoding will accept.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import eyespan
from eyespan.budget import CostCurve
from eyespan.demo import MODEL_DIR, held_out
from eyespan.drafters import make_drafter, with_shipped_weights
from eyespan.drafters._pacing import Pacing
from eyespan.dropin import fallbacks
from eyespan.errors import ConfigError
from eyespan.generation import Engine
from eyespan.moment import Moment
from eyespan.policy import Policy
from eyespan.target import HuggingFaceTarget, load_target
from eyespan.testing import tiny_target
from eyespan.train.capture import CaptureConfig, capture
from eyespan.train.config import load_config
from eyespan.train.conversations import messages_of, open_source
from eyespan.train.data import Artifacts
from eyespan.train.report import Report
from eyespan.train.simulate import accept_length

RUNS = Path(__file__).parents[2] / "runs"
CURVE = CostCurve(sizes=(1, 2, 4, 8, 16, 32, 64), ms=(9.0, 11.0, 12.5, 14.0, 17.0, 21.0, 30.0))
LIMIT = 12


@pytest.fixture(scope="module")
def demo() -> HuggingFaceTarget:
    return load_target("demo")


@pytest.fixture(scope="module")
def plain(demo: HuggingFaceTarget) -> Engine:
    return Engine(demo, "none", budget=0)


def asks(count: int) -> list[tuple[str, list[Any]]]:
    return [(sample.turns[0].question, [sample.image]) for sample in held_out(count)]


def test_a_model_loaded_by_hand_finds_its_head(tmp_path: Path) -> None:
    """By its weights: neither the folder's name nor the way it was loaded counts."""
    folder = shutil.copytree(MODEL_DIR, tmp_path / "mine")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    ((question, pictures),) = asks(1)
    content = [{"type": "image", "image": pictures[0]}, {"type": "text", "text": question}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    expected = model.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)
    for drafter in ("fovea", "hybrid"):
        eyespan.enable(model, drafter=drafter, budget="fixed")
        assert torch.equal(model.generate(**inputs, max_new_tokens=LIMIT), expected)
        assert not fallbacks(model)
        eyespan.disable(model)
    engine = eyespan.load(str(folder), drafter="fovea", budget="fixed")
    assert engine.drafter.config_dict()["checkpoint"] == "demo"


def test_shipped_weights_are_for_their_target_alone(demo: HuggingFaceTarget) -> None:
    other = tiny_target("llava")
    for options in ({"checkpoint": "mine"}, {"nodes": 9, "checkpoint": ""}):
        assert with_shipped_weights("fovea", demo, options) == options
    assert with_shipped_weights("fovea", demo, {"nodes": 9}) == {"nodes": 9, "checkpoint": "demo"}
    assert with_shipped_weights("hybrid", demo, {}) == {"checkpoint": "demo"}
    for name in ("recap", "eagle3"):
        assert with_shipped_weights(name, demo, {}) == {}
    assert with_shipped_weights("hybrid", demo, {"second": "sam"}) == {"second": "sam"}
    assert with_shipped_weights("fovea", other, {}) == {}
    with pytest.raises(ConfigError, match="no checkpoint"):
        Engine(other, "fovea")


@pytest.mark.parametrize("drafter", ["fovea", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_no_word_changes(drafter: str, demo: HuggingFaceTarget, plain: Engine) -> None:
    """Without pictures, with several, beyond the memory's cap, sampled, in batches, cut off, and in
    a conversation.
    """
    engine = Engine(demo, drafter, budget="fixed")
    small = Engine(demo, drafter, budget="fixed", memory_limit=20)
    one, two = asks(2)
    every = (one, ("What is on these?", [*one[1], *two[1]]), ("Write a short note.", []))
    alone = [plain.generate(*ask, max_new_tokens=LIMIT).token_ids for ask in every]
    words, pictures = zip(*every, strict=True)
    together = engine.generate_many(words, pictures, max_new_tokens=LIMIT, max_rows=2)
    assert [said.token_ids for said in together] == alone
    assert all(said.drafted > 0 for said in together)
    for ask, expected in zip(every[:2], alone, strict=False):
        assert small.generate(*ask, max_new_tokens=LIMIT).token_ids == expected
    options: dict[str, Any] = {"max_new_tokens": LIMIT, "temperature": 0.8, "seed": 3}
    assert engine.generate(*two, **options).token_ids == plain.generate(*two, **options).token_ids
    cancel = Event()
    with engine.stream(*one, max_new_tokens=LIMIT, cancel=cancel) as stream:
        next(iter(stream))
        cancel.set()
        cut = stream.finish().token_ids
    assert cut == alone[0][: len(cut)]
    chats = [each.chat(max_new_tokens=LIMIT) for each in (engine, plain)]
    for text, shown in (one, ("And what else?", [])):
        told, asked = (chat.say(text, shown) for chat in chats)
        assert told.token_ids == asked.token_ids


class StillPolicy(Policy):
    """Rounds break even here, whatever this machine does."""

    def settle(self, rows: int, tokens: int, *, host_ms: float, ms: float) -> None:
        super().settle(rows, tokens, host_ms=0.1, ms=CURVE.ms[0] * tokens)


class StillClock:
    """Time that passes by forwards of the head alone."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> Moment:
        return Moment(self.ms / 1e3, self.ms / 1e3)


def levels_of(
    demo: HuggingFaceTarget, level_ms: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, list[Sequence[int]]]:
    """Forwards a round of a head that takes so long, with `budget="auto"`, in the second of two
    answers, and both of them.
    """
    engine = Engine(demo, "fovea", budget=0)
    drafter: Any = engine.drafter
    clock = StillClock()
    drafter._pacing = Pacing(on_cpu=True, clock=clock)
    stack, ran = drafter.head.stack, 0

    def timed(*args: Any) -> Any:
        nonlocal ran
        ran += 1
        clock.ms += level_ms
        return stack(*args)

    monkeypatch.setattr(drafter.head, "stack", timed)
    engine.decoder.policy = StillPolicy("auto", drafter, CURVE)
    answers, each = [], 0.0
    for ask in asks(2):
        ran = 0
        said = engine.generate(*ask, max_new_tokens=24)
        answers.append(said.token_ids)
        each = ran / said.forwards
    return each, answers


def test_a_dear_head_grows_fewer_levels_and_the_text_stays(
    demo: HuggingFaceTarget, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [plain.generate(*ask, max_new_tokens=24).token_ids for ask in asks(2)]
    cheap, first = levels_of(demo, 0.01, monkeypatch)
    dear, second = levels_of(demo, 8.0, monkeypatch)
    assert first == second == expected
    assert 1.0 <= dear < 0.6 * cheap


def test_replay_says_what_decoding_accepts(demo: HuggingFaceTarget, tmp_path: Path) -> None:
    """The accept length that training prints, on the captured answers, and tau where the same
    prompts are decoded: within ten percent. Only the rounding of captured states tells them apart.
    """
    config = load_config(
        CaptureConfig,
        RUNS / "capture_demo.toml",
        [f"store.out={tmp_path}", "data.count=2", "answers.max_new_tokens=40",
         "store.layers=[]", "store.mid=false"],
    )  # fmt: skip
    capture(config, demo, Report(silent=True))
    artifacts = Artifacts(tmp_path, demo.weights())
    drafter: Any = make_drafter("fovea", vocab_size=demo.info.vocab_size, checkpoint="demo")
    drafter.bind(demo)
    kept = [artifacts.sequence(entry) for entry in artifacts.entries]
    replayed = accept_length(drafter, kept, media_ids=demo.info.media_ids)
    engine = Engine(demo, drafter, budget="fixed")
    tokens = forwards = 0
    source = open_source("demo", seed=config.data.seed, count=2)
    for conversation in (source[at] for at in range(2)):
        said: list[str] = []
        for turn in range(len(conversation.turns)):
            messages = messages_of(conversation, said, turn)
            made = engine.generate(messages, list(conversation.images), max_new_tokens=40)
            said.append(made.text)
            tokens, forwards = tokens + len(made.token_ids), forwards + made.forwards
    assert replayed.tokens == tokens
    assert replayed.tau == pytest.approx(tokens / forwards, rel=0.1)
    assert replayed.tau > 2.0

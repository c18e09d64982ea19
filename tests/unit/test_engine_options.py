"""What callers of an engine may get wrong, and traces that cannot be written."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from eyespan import Sampling, disable, load, read_trace
from eyespan.drafters import DRAFTERS, make_drafter
from eyespan.errors import ConfigError, InputError, OutputError
from eyespan.generation import Engine
from eyespan.testing import RandomDrafter, tiny_target


@lru_cache(maxsize=1)
def engine() -> Engine:
    return Engine(tiny_target("llama"), budget="fixed")


def without_addresses(value: object) -> str:
    """A name that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    "options",
    [{"stop": 5}, {"stop": [5]}, {"stop": b"x"}, {"scope": ["a"]}, {"scope": 5}],
    ids=without_addresses,
)
def test_options_of_another_kind_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stop|scope"):
        engine().generate("hi", max_new_tokens=4, **options)


NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trace": 3}, "trace=3"),
        ({"cancel": True}, "cancel=True"),
        ({"sampling": {"temperature": 1}}, "sampling="),
        ({"logit_bias": [1]}, "logit_bias="),
        ({"logit_bias": {1: NAN}}, "logit_bias of 1"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of 1"),
        ({"sequence_bias": {(1, 2): "a"}}, "sequence_bias of"),
        ({"exponential_decay_length_penalty": (1,)}, "exponential_decay"),
        ({"prefix_allowed_tokens_fn": 3}, "prefix_allowed_tokens_fn"),
        ({"logits_processors": [lambda ids, scores: None]}, "logits_processors"),
        ({"logits_processors": [lambda ids, scores: scores[:, :3]]}, r"\(1, 3\)"),
    ],
    ids=without_addresses,
)
def test_options_that_would_fail_deep_inside_are_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        engine().generate("hi", max_new_tokens=4, **options)


def test_a_forbidden_token_may_have_minus_infinity() -> None:
    plain = engine().generate("hi", max_new_tokens=1).token_ids[0]
    other = engine().generate("hi", max_new_tokens=1, logit_bias={plain: -float("inf")})
    assert other.token_ids[0] != plain


def test_entries_of_each_are_mappings() -> None:
    with pytest.raises(ConfigError, match="NoneType among its entries"):
        engine().generate_many(["hi"], each=[None])  # type: ignore[list-item]


def test_ids_are_whole_numbers() -> None:
    with pytest.raises(InputError, match="whole numbers"):
        engine().target.prompt_from_ids([1.5])


def test_a_name_with_a_nul_is_no_trace() -> None:
    with pytest.raises(OutputError, match="null byte"):
        engine().generate("hi", trace="a\0b")


@pytest.mark.parametrize("args", [(None,), ("demo",), ("", Engine), ("", None), ("", 3)], ids=str)
def test_what_is_no_target_or_drafter_is_refused(args: tuple[Any, ...]) -> None:
    target = args[0] if len(args) == 1 else engine().target
    with pytest.raises((ConfigError, InputError), match=r"a target|a drafter object"):
        Engine(target, *args[1:])


def test_options_beside_a_drafter_that_is_made_are_refused() -> None:
    with pytest.raises(ConfigError, match="nodes"):
        Engine(engine().target, engine().drafter, nodes=5)


def test_a_budget_and_a_trees_nodes_are_two_things() -> None:
    made = Engine(engine().target, "recap", budget=10, nodes=20)
    assert (made.policy.cap, made.policy.ask) == (10, 20)


@pytest.mark.parametrize("name", sorted(DRAFTERS))
def test_no_drafters_option_has_the_name_of_one_of_loads(name: str) -> None:
    taken = set(inspect.signature(load).parameters)
    assert not taken & set(make_drafter(name, vocab_size=64).config_dict())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model": None}, "model None"),
        ({"model": torch.nn.Linear(2, 2)}, "live transformers model"),
        ({"model": "demo", "dtype": "float8"}, "dtype 'float8'"),
        ({"model": "demo", "dtype": torch.int8}, "dtype torch.int8"),
        ({"model": "demo", "device": 3.5}, "device '3.5'"),
        ({"model": "demo", "device": "toaster"}, "device 'toaster'"),
        ({"model": "demo", "device": "meta"}, "device 'meta'"),
    ],
    ids=without_addresses,
)
def test_what_cannot_be_loaded_is_refused_before_any_weight(
    asked: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigError, InputError), match=says):
        load(**asked)


def test_disable_leaves_what_was_never_enabled() -> None:
    assert disable(None) is None


def test_a_full_disk_is_one_sentence_and_the_answer_is_kept() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("a device that is always full is needed")
    stream = engine().stream("hi", max_new_tokens=4, trace="/dev/full")
    with pytest.raises(OutputError, match="No space left"):
        stream.finish()
    assert len(stream.generation.token_ids) == 4


def test_a_scope_of_other_bytes_is_traced(tmp_path: Path) -> None:
    engine().generate("hi", max_new_tokens=4, scope="caf\udce9", trace=tmp_path / "trace")
    assert read_trace(tmp_path / "trace")[0][0]["scope"] == "caf\udce9"


def test_drafters_of_the_test_kit_are_traced(tmp_path: Path) -> None:
    target = engine().target
    drafter = RandomDrafter(target.info.vocab_size)
    Engine(target, drafter, budget="fixed").generate(
        "hi", max_new_tokens=4, trace=tmp_path / "trace"
    )
    assert read_trace(tmp_path / "trace")[0][0]["memory"] == "fresh"


def test_a_prepared_prompt_is_answered_as_its_text_is() -> None:
    target = engine().target
    ids = target.prepare("hi").ids
    prepared = engine().generate(target.prompt_from_ids(ids), max_new_tokens=6)
    assert prepared.token_ids == engine().generate("hi", max_new_tokens=6).token_ids


def test_pictures_beside_a_prepared_prompt_are_refused() -> None:
    prompt = engine().target.prompt_from_ids([1, 2])
    with pytest.raises(InputError, match="prepared"):
        engine().generate(prompt, ["a.png"], max_new_tokens=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"foo": 1}, "option 'foo'"),
        ({"images": ["a.png"]}, "option 'images'"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -1}, "temperature=-1"),
        ({"stop": [""]}, "stop string"),
        ({"granularity": "word"}, "granularity 'word'"),
        ({"trace": "t.jsonl"}, "trace of a chat"),
        ({"response_format": {"type": "poem"}}, "poem"),
    ],
    ids=without_addresses,
)
def test_a_chat_is_refused_before_its_first_turn(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        engine().chat(**options)


class Third:
    """A criterion with a state: it ends an answer when it is called for the third time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: Any, scores: Any) -> bool:
        self.calls += 1
        return self.calls >= 3


def test_a_state_given_once_starts_anew_with_every_answer() -> None:
    """Of an engine, of a chat, and of a chat's sampling; two answers at once do not share it."""
    criteria: dict[str, Any] = {"stopping_criteria": [Third()]}
    made = Engine(engine().target, budget="fixed", sampling=Sampling(**criteria))
    streams = [made.stream("hi", max_new_tokens=8) for _ in range(2)]
    while [stream for stream in streams if next(stream, None) is not None]:
        pass
    said = [len(stream.generation.token_ids) for stream in streams]
    given: list[dict[str, Any]] = [criteria, {"sampling": Sampling(**criteria)}]
    for options in given:
        with engine().chat(max_new_tokens=8, **options) as chat:
            said += [len(chat.say(text).token_ids) for text in ("abc?", "and?")]
    assert said == [3] * 6

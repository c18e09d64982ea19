"""What callers of an engine may get wrong, and traces that cannot be written."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from eyespan import read_trace
from eyespan.errors import ConfigError, InputError, OutputError
from eyespan.generation import Engine
from eyespan.testing import RandomDrafter, tiny_target


@lru_cache(maxsize=1)
def engine() -> Engine:
    return Engine(tiny_target("llama"), budget="fixed")


@pytest.mark.parametrize(
    "options",
    [{"stop": 5}, {"stop": [5]}, {"stop": b"x"}, {"scope": ["a"]}, {"scope": 5}],
    ids=str,
)
def test_options_of_another_kind_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stop|scope"):
        engine().generate("hi", max_new_tokens=4, **options)


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

"""The demo model with everything of an everyday request: a form, a seed, penalties, streaming."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

import eyespan
from eyespan.demo import showcase

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    "drawn schema": {
        "response_format": {"type": "json_schema", "schema": SCHEMA}, "temperature": 0.8, "seed": 3,
    },
    "drawn": {"temperature": 0.9, "top_p": 0.95, "seed": 5},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_new_tokens": 12},
}  # fmt: skip


@cache
def engine(drafter: str) -> eyespan.Engine:
    return eyespan.load("demo", drafter, budget="fixed" if drafter == "recap" else 0)


@pytest.mark.parametrize("cases", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIONS)
def test_drafting_changes_no_word(name: str, cases: int) -> None:
    for case in showcase()[:cases]:
        asked = (case.question, [case.path])
        options = {"max_new_tokens": 40, **OPTIONS[name]}
        plain = engine("none").generate(*asked, **options)
        stream = engine("recap").stream(*asked, granularity="token", **options)
        text = "".join(chunk.text for chunk in stream)
        assert text == plain.text == stream.generation.text
        assert stream.generation.token_ids == plain.token_ids
        if "schema" in name and plain.finish == "eos":
            assert set(json.loads(plain.text)) == {"answer", "sure"}

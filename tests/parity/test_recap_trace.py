"""What RECAP did, by its own trace, is what the slow twin does from the target's rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import tiny_images, tiny_target
from eyespan.trace import Trace, read_trace
from tests.parity.recap_switches import SWITCHES
from tests.reference.recap import replay

PROMPTS = ("abcabc what is this? abcabc", "what is this? abc", "abcabc abcabc abcabc")


@pytest.fixture(scope="module", params=["llava", "qwen2_5_vl"])
def target(request: pytest.FixtureRequest) -> HuggingFaceTarget:
    return tiny_target(request.param)


def traced(target: HuggingFaceTarget, options: dict[str, Any], file: Path, **run: Any) -> list[Any]:
    """Three requests on one memory, as their trace tells."""
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size, **options)
    engine = Engine(target, drafter, **{"budget": "fixed", **run})
    with Trace(file) as trace:
        for at, prompt in enumerate(PROMPTS):
            engine.generate(prompt, tiny_images(at), max_new_tokens=40, trace=trace)
    return read_trace(file)


def assert_same_rounds(requests: list[Any], *, whole_trees: bool) -> int:
    """Compare a trace with the twin; returns how many rounds were compared."""
    rounds = replay(line for lines in requests for line in lines)
    compared = 0
    for lines, expected in zip(requests, rounds, strict=True):
        steps = [line for line in lines if line["type"] == "step"]
        room = lines[0]["max_new_tokens"] - 1
        for step, twin in zip(steps, expected, strict=True):
            full = len(step["accepted"]) == len(twin.path) and "cut" not in step
            if full:
                assert (step["accepted"], step["next"]) == (twin.path, twin.next)
            # near its end an answer has no room for deep nodes, which the loop then leaves out
            if whole_trees and room > 21:
                assert step["tokens"] == twin.tokens
                assert step["parents"] == twin.parents
                assert step["origin"] == twin.origins
                compared += 1
            room -= len(step["accepted"]) + (step["next"] is not None)
    return compared


@pytest.mark.parametrize("name", SWITCHES)
def test_trees_seeding_and_acceptance(target: HuggingFaceTarget, name: str, tmp_path: Path) -> None:
    requests = traced(target, SWITCHES[name], tmp_path / "trace.jsonl")
    assert [lines[0]["memory"] for lines in requests] == (
        ["fresh"] * 3 if name == "per request" else ["fresh", "warm", "warm"]
    )
    assert assert_same_rounds(requests, whole_trees=True) > 10


def test_a_budget_rule_cuts_trees_and_changes_nothing_else(
    target: HuggingFaceTarget, tmp_path: Path
) -> None:
    """The rule sends a part of the twin's tree; what is learned from it is learned the same way."""
    requests = traced(target, {"suffix_reach": 0}, tmp_path / "trace.jsonl", budget="auto")
    rounds = replay(line for lines in requests for line in lines)
    cut = 0
    for lines, expected in zip(requests, rounds, strict=True):
        for step, twin in zip([x for x in lines if x["type"] == "step"], expected, strict=True):
            assert step["budget_used"] == step["origin"].count("recap")
            paths, whole = (
                set(_paths(step["tokens"], step["parents"])),
                set(_paths(twin.tokens, twin.parents)),
            )
            assert paths <= whole
            cut += len(paths) < len(whole)
    assert cut > 0


def _paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """Root path of every node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths

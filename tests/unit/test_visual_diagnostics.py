"""Visual budget, focus movement and retrieval maps: rules on known values, runs on tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eyespan.bench.tables import Results
from eyespan.diagnostics import focus, visual_budget
from eyespan.diagnostics.questions import Question, questions
from eyespan.diagnostics.readings import read
from eyespan.diagnostics.retrieval import draw, even, trajectory
from eyespan.diagnostics.visual_budget import State, kept_tokens
from eyespan.drafters.base import Ask
from eyespan.drafters.fovea import Fovea
from eyespan.errors import ConfigError
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.testing import random_checkpoint, tiny_target
from eyespan.types import DraftTree, Needs
from tests.cli import Shell


@pytest.fixture(scope="module")
def target() -> HuggingFaceTarget:
    return tiny_target("llava")


@pytest.fixture(scope="module")
def query() -> Question:
    return questions(["demo"], 1)[0]


@pytest.fixture(scope="module")
def drafter(target: HuggingFaceTarget, tmp_path_factory: pytest.TempPathFactory) -> Fovea:
    folder = random_checkpoint("fovea", target.weights(), tmp_path_factory.mktemp("head"))
    made = Fovea(vocab_size=target.info.vocab_size, checkpoint=folder, retrieval="top_k", top_k=3)
    made.bind(target)
    return made


def test_budgets_keep_the_most_attended_tokens_in_order() -> None:
    importance = np.array([0.1, 0.4, 0.2, 0.4, 0.0, 0.3, 0.1], np.float32)
    assert kept_tokens(importance, 0).tolist() == []
    assert kept_tokens(importance, 0.25).tolist() == [1]
    assert kept_tokens(importance, 0.5).tolist() == [1, 3, 5]
    assert kept_tokens(importance, 0.75).tolist() == [0, 1, 2, 3, 5], "of equals the earlier"
    assert kept_tokens(importance, 1).tolist() == list(range(7))
    assert kept_tokens(importance[:2], 0.25).tolist() == [1], "never none"


def test_a_state_prefers_the_least_that_is_best() -> None:
    one = State("a", "s", 0.6, (1, 2, 3, 3, 0))
    assert (one.preferred, one.spread, one.supply, one.late) == (0.5, 3, "under", True)
    same = State("a", "s", 0.5, (2, 2, 2, 2, 2))
    assert (same.preferred, same.spread, same.supply, same.late) == (0.0, 0, "matched", False)
    assert State("a", "s", None, (0, 3, 0, 1, 0)).supply == "over"


def test_tables_of_known_states() -> None:
    states = [State("a", "s", at / 4, (0, at, 1, 1, 0)) for at in range(5)]
    made = visual_budget.results([*states, State("b", "t", None, (1, 1, 1, 1, 1))], "toy", "head")
    preferred, places, samples = made.tables
    shown = {row[0]: dict(zip(preferred.columns, row, strict=True)) for row in preferred.rows}
    assert shown["a"]["prefers 50% (%)"] == pytest.approx(20.0), "only where 25% accepts nothing"
    assert shown["a"]["prefers 25% (%)"] == pytest.approx(80.0)
    assert (shown["a"]["under-supplied %"], shown["a"]["over-supplied %"]) == (20.0, 60.0)
    assert shown["all"]["States"] == 6
    late = next(row for row in places.rows if row[:2] == ("a", "late"))
    assert late[2:] == (2, 0.25, 3.5, 100.0)
    assert samples.rows == ((1, 0, 0.0),)
    assert made.figures[0].series[0].x == (0, 2, 5, 7, 9)


def test_focus_moves_by_the_sets_of_the_most_attended() -> None:
    same = np.tile(np.arange(32, dtype=np.float32), (3, 1))
    assert focus.distances(same) == [0.0, 0.0]
    turned = np.stack([same[0], same[0][::-1], np.roll(same[0], 8)])
    assert focus.distances(turned)[0] == 1.0
    assert focus.distances(turned)[1] == pytest.approx(1 - 8 / 24)
    steps = np.stack([same[0], same[0], same[0], same[0], same[0], same[0][::-1]])
    one = focus.movement("a", "s", steps)
    assert (one.early, one.late) == (0.0, pytest.approx(0.5))
    made = focus.results([one, focus.movement("a", "t", same[:2])], "toy")
    assert made.tables[0].rows[-1] == ("all", 1, 0.0, pytest.approx(0.5), 1, 100.0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_columns_are_the_rows_of_decoding(attention: str, query: Question) -> None:
    """What the whole forward says of its last token is what the watched row of a prefill says."""
    target = tiny_target("qwen2_5_vl", attention=attention)
    prompt = target.prepare(query.messages, query.pictures)
    prefill, pictures, columns = target.read_attention(prompt, Needs(visual_attention=False))
    assert columns.shape == (len(prompt), len(pictures))
    assert np.all(columns[: pictures[0]] == 0), "nobody looks ahead"
    _, watched = target.prefill(prompt, Needs(visual_attention=True))
    assert columns[-1].sum() == pytest.approx(watched.extras["visual_attention"], abs=1e-5)
    assert np.allclose(prefill.next_row_logits, watched.next_row_logits)


def test_frozen_states_draft_what_decoding_drafts(
    target: HuggingFaceTarget,
    drafter: Fovea,
    query: Question,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all visual tokens a state's tree is the one of live decoding at the same prefix."""
    one = read(target, query, drafter.needs, max_new_tokens=24)
    assert one is not None
    seen: list[tuple[int, list[int]]] = []
    propose = drafter.propose_many

    def heard(asks: Sequence[Ask]) -> list[DraftTree]:
        trees = propose(asks)
        seen.extend((len(a.prefix), t.tokens.tolist()) for a, t in zip(asks, trees, strict=True))
        return trees

    with monkeypatch.context() as patch:
        patch.setattr(drafter, "propose_many", heard)
        engine = Engine(target, drafter, budget="fixed")
        engine.generate(query.messages, query.pictures, max_new_tokens=24)
    assert len(seen) > 2
    for end, tokens in seen:
        session, prefix = one.open(drafter, end)
        assert session.propose(prefix, drafter.fixed_budget).tokens.tolist() == tokens


def test_a_budget_is_what_the_drafter_gets(
    target: HuggingFaceTarget, drafter: Fovea, query: Question
) -> None:
    one = read(target, query, drafter.needs, max_new_tokens=12)
    assert one is not None
    end, count = one.prompt + 1, len(one.pictures)
    for kept in (kept_tokens(one.importance(end), ratio) for ratio in visual_budget.RATIOS):
        session, prefix = one.open(drafter, end, kept)
        assert len(prefix) == end - count + len(kept)
        assert session.context.condition["mask"].shape[1] == len(kept)  # type: ignore[attr-defined]
    lengths = visual_budget.states_of(one, drafter)
    assert 0 < len(lengths) < len(one.ids) - one.prompt + 1


def test_maps_lie_over_the_picture(
    target: HuggingFaceTarget, drafter: Fovea, query: Question, tmp_path: Path
) -> None:
    looks = trajectory(target, drafter, query, max_new_tokens=12)
    assert looks
    assert [one.step for one in looks] == sorted({one.step for one in looks})
    for one in looks:
        assert one.weights.shape[0] == one.weights.shape[1]
        assert one.weights.sum() == pytest.approx(1.0, abs=1e-5)
        assert one.entries == min(3, one.weights.size)
    png, svg = draw(query.pictures[0], even(looks, 2), tmp_path)
    assert Image.open(png).width > 200
    assert "<svg" in svg.read_text()[:600]
    assert [one.step for one in even(looks, 1)] == [looks[0].step]
    blind = Fovea(
        vocab_size=target.info.vocab_size, checkpoint=drafter.checkpoint, interface="fixed_prefix"
    )
    with pytest.raises(ConfigError, match="fixed_prefix"):
        trajectory(target, blind, query, max_new_tokens=4)


def test_the_verbs_write_tables_and_maps(
    target: HuggingFaceTarget,
    drafter: Fovea,
    query: Question,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eyespan.verbs.options.Setup.load_target", lambda self: target)
    shell, weights = Shell(capsys), f"checkpoint={drafter.checkpoint}"
    common = ("--max-inputs", 1, "--max-new-tokens", 8, "--out")
    budget = tmp_path / "budget"
    assert shell("diagnose", "visual-budget", "-o", weights, *common, budget).code == 0
    assert {one.id for one in Results.read(budget).tables} == {
        "visual_budget", "visual_budget_position", "visual_budget_samples",
    }  # fmt: skip
    assert shell("diagnose", "focus", *common, tmp_path / "focus").code == 0
    assert Results.read(tmp_path / "focus").tables[0].rows
    query.pictures[0].save(tmp_path / "page.png")
    done = shell("diagnose", "retrieval", "Read it.", "--image", tmp_path / "page.png", "-o",
                 weights, "--max-new-tokens", 8, "--out", tmp_path / "maps")  # fmt: skip
    assert done.code == 0, done.err
    assert {one.name for one in (tmp_path / "maps").iterdir()} == {
        "retrieval.png", "retrieval.svg", "retrieval.json", "manifest.json",
    }  # fmt: skip
    said = shell.refused("diagnose", "visual-budget", "-d", "recap", "--out", tmp_path / "no")
    assert "trained drafter" in said

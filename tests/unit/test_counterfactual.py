"""Counterfactual pictures: the controls, reading a given answer again, and what is made of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eyespan.bench.tables import Results
from eyespan.diagnostics.controls import mean_picture, mean_pictures, read_answer, wrong_pictures
from eyespan.diagnostics.counterfactual import (
    Aligned,
    Anchor,
    Found,
    log_softmax,
    measure,
    support,
)
from eyespan.diagnostics.counterfactual_tables import macro, quintiles, results
from eyespan.diagnostics.questions import questions
from eyespan.generation import Engine
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.testing import tiny_target
from tests.cli import Shell


@pytest.fixture(scope="module")
def target() -> HuggingFaceTarget:
    return tiny_target("llava")


def test_the_mean_picture_has_one_colour_and_the_same_size() -> None:
    picture = Image.new("RGB", (8, 4), (0, 100, 200))
    picture.paste((100, 200, 0), (0, 0, 4, 4))
    mean = mean_picture(picture)
    assert mean.size == (8, 4)
    assert mean.getcolors() == [(32, (50, 150, 100))]


def test_a_wrong_picture_is_another_sample_of_the_same_kind() -> None:
    every = questions(["demo"], 12)
    for at, query in enumerate(every):
        (wrong,) = wrong_pictures(every, at) or ()
        assert wrong.size == query.pictures[0].size
        donors = [
            one for one in every if np.array_equal(np.asarray(one.pictures[0]), np.asarray(wrong))
        ]
        assert donors
        assert query.group not in {one.group for one in donors}
        if len({one.group for one in every if one.match == query.match}) > 1:
            assert {one.match for one in donors} == {query.match}
    assert wrong_pictures(every[:1], 0) is None


def test_reading_an_answer_again_says_what_decoding_said(target: HuggingFaceTarget) -> None:
    """Under its own picture every token is chosen again, in passes of any length."""
    query = questions(["demo"], 1)[0]
    plain = Engine(target, "none", budget=0)
    made = plain.generate(query.messages, query.pictures, max_new_tokens=150)
    answer = np.array(made.token_ids, np.int32)
    assert len(answer) > 64, "more than one pass"
    chosen: list[int] = []
    for start, out in read_answer(target, query, query.pictures, answer):
        assert start == len(chosen)
        chosen += out.row_ids[:, 0].tolist()
    assert chosen[:-1] == answer[1:].tolist()
    other = [out.row_logits for _, out in read_answer(target, query, mean_pictures(query), answer)]
    own = [out.row_logits for _, out in read_answer(target, query, query.pictures, answer)]
    assert not np.allclose(np.concatenate(other), np.concatenate(own)), "the picture is read"


def test_visual_support_is_the_smaller_drop_of_the_candidates_mass() -> None:
    own, mean, wrong = (
        np.log(np.array(p))
        for p in ([0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4], [0.4, 0.1, 0.25, 0.25])
    )
    assert support([own, mean, wrong], [0, 1]) == pytest.approx(math.log(0.8) - math.log(0.5))
    assert support([own, mean, wrong], [0]) == pytest.approx(math.log(0.5) - math.log(0.4))
    assert support([own, own, own], [2, 3]) == 0.0


def test_log_probabilities_sum_to_one() -> None:
    logs = log_softmax(np.array([1000.0, 999.0, -1000.0]))
    assert np.exp(logs).sum() == pytest.approx(1.0)
    assert logs[0] - logs[1] == pytest.approx(1.0)


def test_benchmarks_count_alike() -> None:
    many = [Anchor("a", f"p{i}", 0, 1.0, True, False) for i in range(9)]
    few = [Anchor("b", f"q{i}", 0, 3.0, False, False) for i in range(2)]
    assert macro([*many, *few], lambda one: one.drop) == (2.0, 2.0, 2.0)
    assert macro([*many, *few], lambda one: one.changed)[0] == 0.5
    assert macro([], lambda one: one.drop) == (None, None, None)


def test_quintiles_are_made_within_benchmarks() -> None:
    low = [Aligned("low", str(i), 10.0, float(i), 0) for i in range(10)]
    high = [Aligned("high", str(i), 0.0, float(i), 0) for i in range(5)]
    few = [Aligned("few", "x", 0.0, 0.0, 0)] * 4
    bins = quintiles([*reversed(low), *high, *few])
    assert [len(one) for one in bins] == [3] * 5
    assert [one.relative for one in bins[0]] == [-10.0, -9.0, 0.0]
    assert [one.relative for one in bins[4]] == [-2.0, -1.0, 4.0]


def test_the_softmax_share_of_support() -> None:
    one = Aligned("a", "g", token_support=1.0, context_support=1.0 + math.log(3.0), gain=0)
    assert one.context_share == pytest.approx(0.75)


def test_tables_and_figures_of_known_findings() -> None:
    anchors = [
        Anchor("a", f"p{i}", accepted, drop=float(accepted), changed_mean=i % 2 == 0,
               changed_wrong=False)
        for accepted in (0, 1, 7)
        for i in range(4)
    ]  # fmt: skip
    aligned = [Aligned("a", f"p{i}", 0.0, float(i), gain=i - 2) for i in range(5)]
    made = results(Found(tuple(anchors), tuple(aligned), rounds=20, answers=4), "toy")
    left, right = made.tables
    by_length = {row[0]: row for row in left.rows}
    assert by_length["0"][1:4] == (4, 4, 50.0)
    assert by_length["5+"][8] == 7.0
    assert by_length["3"][1:4] == (0, 0, None)
    assert [row[5] for row in right.rows] == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert [row[3] + row[4] for row in right.rows] == pytest.approx([1.0] * 5)  # type: ignore[operator]
    assert [one.series[0].x for one in made.figures] == [
        ("0", "1", "5+"), ("0", "1", "5+"), ("Q1", "Q2", "Q3", "Q4", "Q5"),
        ("Q1", "Q2", "Q3", "Q4", "Q5"),
    ]  # fmt: skip


def test_a_model_is_measured(target: HuggingFaceTarget) -> None:
    every = questions(["demo"], 7)
    told: list[str] = []
    found = measure(target, every, tell=told.append, max_new_tokens=24)
    assert found.answers == len(told) == len(every)
    assert 0 < len(found.anchors) <= found.rounds
    assert {one.benchmark for one in found.anchors} <= {one.benchmark for one in every}
    assert {one.group for one in found.anchors} <= {one.group for one in every}
    assert any(one.accepted for one in found.anchors)
    for one in found.anchors:
        assert one.changed == (one.changed_mean or one.changed_wrong)
        assert np.isfinite(one.drop)
        if not one.changed:
            continue
        assert one.drop < 20


def test_the_verb(shell: Shell, tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell(
        "diagnose", "counterfactual", "-m", tiny_folder, "--max-inputs", 3, "-n", 80, "--out", out
    )
    assert done.code == 0, done
    assert [one.id for one in Results.read(out).tables] == [
        "recap_figure1_left", "recap_figure1_right",
    ]  # fmt: skip
    assert (out / "manifest.json").exists()
    assert shell("bench", "report", out, "--no-pictures").code == 0


def test_bad_input(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "result folder" in shell.refused(
        "diagnose", "counterfactual", "--out", tmp_path / "file"
    )
    assert "--max-inputs" in shell.refused("diagnose", "counterfactual", "--max-inputs", 1)
    assert "none" in shell.refused(
        "diagnose", "counterfactual", "-m", tmp_path / "none", "--out", tmp_path / "out"
    )

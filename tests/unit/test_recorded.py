"""Reading traces for replay: what is kept of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyespan.diagnostics.playback import check_feeds, prefill_of
from eyespan.diagnostics.recorded import read_recordings, vocabulary
from eyespan.errors import ConfigError, InputError
from eyespan.types import Needs

ROW = [[50, 41, 42, 43, 44, 45, -1, -1], [9.0, 5.0, 4.0, 3.0, 2.0, 1.0, None, None]]
REQUEST = {
    "type": "request", "version": 1, "id": "r0", "drafter": "recap", "config": {},
    "prompt_ids": [9, 3, 3, 9, 8], "media_ids": [3], "eos_ids": [2], "max_new_tokens": 20,
    "memory": "fresh", "scope": None, "model": "somewhere", "greedy": True,
}  # fmt: skip
PREFILL = {"type": "prefill", "id": "r0", "rows": [[0, *ROW], [3, *ROW], [4, *ROW]], "next": 40}
STEP = {
    "type": "step", "id": "r0", "i": 0, "tokens": [40, 41, 42, 43], "parents": [-1, 0, 1, 0],
    "scores": [1.0, 0.5, 0.2, 0.1], "origin": ["root", "recap", "recap", "recap"],
    "budget_used": None, "row_ids": [ROW[0]] * 4, "row_logits": [ROW[1]] * 4,
    "accepted": [1, 2], "next": 50, "ms": {},
}  # fmt: skip
LAST = {
    **STEP, "i": 1, "tokens": [50, 2], "parents": [-1, 0], "row_ids": [ROW[0]] * 2,
    "row_logits": [ROW[1]] * 2, "accepted": [1], "next": None, "cut": "eos",
}  # fmt: skip
END = {"type": "end", "id": "r0", "output_ids": [40, 41, 42, 50, 2], "finish": "eos"}
LINES = (REQUEST, PREFILL, STEP, LAST, END)


def write(folder: Path, *lines: dict[str, Any], name: str = "trace.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def changed(number: int, **fields: Any) -> list[dict[str, Any]]:
    """The lines, one of them with other fields."""
    return [{**line, **fields} if at == number else line for at, line in enumerate(LINES)]


def test_what_is_kept(tmp_path: Path) -> None:
    (recording,) = read_recordings([write(tmp_path, *LINES)])
    (one,) = recording.requests
    assert recording.name == "trace"
    assert one.output.tolist() == [40, 41, 42, 50, 2]
    assert one.prefix(1).tolist() == [9, 3, 3, 9, 8, 40, 41]
    assert one.states == recording.states == 4
    assert one.rows.at.tolist() == [0, 1, 2, 3, 4]
    assert one.rows.ids.shape == (5, 8)
    assert np.isneginf(one.rows.logits[0, -1])
    assert [(each.root, each.path, each.cut) for each in one.rounds] == [
        (0, (1, 2), False),
        (3, (1,), False),
    ]
    assert one.group == "r0"
    assert one.swapped is None
    assert vocabulary([recording]) == 51


def test_groups_and_swapped_rows(tmp_path: Path) -> None:
    swapped = {"type": "swapped", "id": "r0", "rows": [[1, *ROW], [0, *ROW]]}
    file = write(tmp_path, {**REQUEST, "group": "page 7"}, PREFILL, STEP, LAST, swapped, END)
    ((one,),) = [recording.requests for recording in read_recordings([file])]
    assert one.group == "page 7"
    assert one.swapped is not None
    assert one.swapped.at.tolist() == [0, 1]


def test_a_prompt_gives_first_occurrences_or_all(tmp_path: Path) -> None:
    ((one,),) = [each.requests for each in read_recordings([write(tmp_path, *LINES)])]
    for which, positions in (("none", []), ("first", [0, 4]), ("all", [0, 3, 4])):
        needs = Needs(rows=True, prompt_rows=which)  # type: ignore[arg-type]
        assert prefill_of(one, needs).positions.tolist() == positions
    assert prefill_of(one, Needs()).next_row_ids[0] == 40


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "no request"),
        ((REQUEST, PREFILL, STEP), "no end"),
        (changed(0, version=2), "format 2"),
        (changed(0, prompt_ids="abc"), "another shape"),
        (changed(0, media_ids=[-4]), "another shape"),
        (changed(0, prompt_ids=[1 << 30]), "another shape"),
        (changed(1, rows=[[99, *ROW]]), "does not exist"),
        (changed(1, type="else"), "0 lines of type prefill"),
        (changed(2, accepted=[3]), "did not commit"),
        (changed(2, parents=[-1, 2, 1, 0]), "before their children"),
        (changed(2, parents=[-1, 0, -1, 0]), "no tree of all"),
        (changed(2, row_ids=[ROW[0]]), "another shape"),
        (changed(2, row_logits=[["x"] * 8] * 4), "another shape"),
        (changed(2, accepted=[77]), "another shape"),
        (changed(4, output_ids=[40, 41, 42, 50, 2, 2]), "commit 5 of 6"),
        (changed(4, output_ids=[]), "without tokens"),
        (changed(4, output_ids=None), "another shape"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read_recordings([write(tmp_path, *lines)])
    assert "trace.jsonl" in str(refused.value)


def test_a_cut_last_line_and_a_missing_file(tmp_path: Path) -> None:
    file = write(tmp_path, *LINES)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(InputError, match="line 5 is no trace line"):
        read_recordings([file])
    with pytest.raises(InputError, match="No such file"):
        read_recordings([tmp_path / "none.jsonl"])


def test_each_file_is_a_data_set_of_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [write(tmp_path, *LINES), write(tmp_path / "other", *LINES)]
    with pytest.raises(InputError, match="two files named 'trace'"):
        read_recordings(files)
    with pytest.raises(InputError, match="none"):
        read_recordings([])


def test_answers_of_two_models_do_not_go_together(tmp_path: Path) -> None:
    other = [{**line, "id": "r1"} for line in changed(0, model="elsewhere")]
    two = [write(tmp_path, *LINES), write(tmp_path, *other, name="other.jsonl")]
    for files in (two, [write(tmp_path, *LINES, *other, name="both.jsonl")]):
        with pytest.raises(InputError, match=r"different models \(somewhere, elsewhere\)"):
            read_recordings(files)


def test_what_a_trace_cannot_feed(tmp_path: Path) -> None:
    bare = [{k: v for k, v in line.items() if not k.startswith("row_")} for line in LINES]
    (rich,) = read_recordings([write(tmp_path, *LINES)])
    (poor,) = read_recordings([write(tmp_path, *bare, name="bare.jsonl")])
    for needs in (
        Needs(hidden_layers=(1,)),
        Needs(visual_attention=True),
        Needs(visual_tokens=True),
    ):
        with pytest.raises(ConfigError, match="a trace holds no more"):
            check_feeds(rich, needs, "some")
    with pytest.raises(InputError, match="--budget fixed --trace"):
        check_feeds(poor, Needs(rows=True), "some")
    check_feeds(poor, Needs(), "some")
    check_feeds(rich, Needs(rows=True, prompt_rows="all"), "some")
    (few,) = read_recordings([write(tmp_path, *changed(1, rows=[[0, *ROW]]), name="few.jsonl")])
    with pytest.raises(InputError, match="first occurrences"):
        check_feeds(few, Needs(rows=True, prompt_rows="all"), "some")

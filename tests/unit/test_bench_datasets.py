"""Sets of inputs: small local copies in formats and columns of the public ones, values made up."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eyespan.bench.datasets import Record, Source, load_selection, open_source, record_of, select
from eyespan.bench.datasets.public import PUBLIC, is_held_out
from eyespan.bench.datasets.record import image_hash
from eyespan.demo import held_out
from eyespan.errors import ConfigError, InputError, OutputError
from eyespan.testing import tiny_images

PICTURES = tiny_images(3)


def png(number: int) -> bytes:
    """A picture as file bytes."""
    out = io.BytesIO()
    PICTURES[number % 3].save(out, "PNG")
    return out.getvalue()


def cell(number: int) -> dict[str, Any]:
    """A picture as the hub's parquet files hold it."""
    return {"bytes": png(number), "path": None}


def choices(number: int) -> dict[str, Any]:
    return {f"choice_{letter}": f"{letter}{number}" for letter in "abcd"}


def seed_row(number: int) -> dict[str, Any]:
    return {
        "question_id": f"q{number}", "image": [cell(number)], "question": f"What {number}?",
        **choices(number), "answer": "B", "question_type_id": 3, "data_type": "image",
        "data_id": "x",
    }  # fmt: skip


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "seed_bench": seed_row,
    "seed_bench_2": seed_row,
    "scienceqa": lambda n: {
        "image": cell(n), "question": f"Which {n}?", "choices": ["red", "blue"], "answer": 1,
        "hint": "Look.", "task": "closed choice", "grade": "grade2", "subject": "natural science",
        "topic": "physics", "category": "x", "skill": "y", "lecture": "", "solution": "",
    },
    "ocrbench": lambda n: {
        "dataset": "IIIT5K", "question": f"what is written {n}?",
        "question_type": "Regular Text Recognition", "answer": ["CENTRE"], "image": cell(n),
    },
    "chartqa": lambda n: {
        "type": "human_test", "question": f"How many {n}?", "answer": "14", "image": cell(n),
    },
    "mathvista": lambda n: {
        "pid": str(n), "question": f"Find {n}", "image": f"images/{n}.jpg",
        "decoded_image": cell(n), "choices": None, "unit": None, "precision": 1.0, "answer": "1.2",
        "question_type": "free_form", "answer_type": "float", "query": f"Hint: round. Find {n}",
    },
    "textvqa": lambda n: {
        "image_id": f"i{n}", "question_id": 100 + n, "question": f"what brand {n}?",
        "question_tokens": ["what"], "image": cell(n), "answers": ["dakota", "dakota digital"],
        "set_name": "val",
    },
    "mme": lambda n: {
        "question_id": "code/0020.png", "image": cell(n), "question": f"Is it {n}? Yes or no.",
        "answer": "Yes", "category": "code_reasoning",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def parquet(folder: Path, name: str, rows: list[dict[str, Any]], split: str) -> Path:
    """A set as the hub lays it out: data/SPLIT-00000-of-00001.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = folder / name / "data"
    where.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), where / f"{split}-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:1]), where / "other-00000-of-00001.parquet")
    return folder / name


def records(source: Source) -> Iterator[Record]:
    assert source.size is not None
    for row in range(source.size):
        found = source.record(row)
        if found is not None:
            yield found


@pytest.mark.parametrize("name", ROWS)
def test_a_local_copy_of_a_public_set(name: str, tmp_path: Path) -> None:
    folder = parquet(tmp_path, name, [ROWS[name](n) for n in range(3)], PUBLIC[name].split)
    found = list(records(open_source(f"{name}@{folder}")))
    assert len(found) == 3
    assert len({record.id for record in found}) == 3
    row = ROWS[name](1)
    assert str(row.get("query", row["question"])) in found[1].turns[0]
    assert [image_hash(one) for one in found[1].images] == [image_hash(PICTURES[1])]
    assert found[1].category
    assert found[1].reference


def test_options_are_lettered_and_the_answer_is_kept(tmp_path: Path) -> None:
    folder = parquet(tmp_path, "scienceqa", [ROWS["scienceqa"](0)], "test")
    (record,) = records(open_source(f"scienceqa@{folder}"))
    assert record.turns[0].startswith("Look.\nWhich 0?\nA. red\nB. blue")
    assert record.reference == ("blue",)


def test_rows_that_are_no_picture_question_are_left_out(tmp_path: Path) -> None:
    video = {**seed_row(0), "data_type": "video"}
    folder = parquet(tmp_path, "seed", [video, seed_row(1)], "test")
    assert [record.id for record in records(open_source(f"seed_bench@{folder}"))] == ["q1"]
    blind = {**ROWS["scienceqa"](0), "image": None}
    folder = parquet(tmp_path, "science", [blind, ROWS["scienceqa"](1)], "test")
    assert len(list(records(open_source(f"scienceqa@{folder}")))) == 1


def test_the_pictures_of_seed_bench_2_are_called_by_their_numbers(tmp_path: Path) -> None:
    """They stand before the question; marks within it and choices that are files would mean
    nothing, and some models read `<img>` as a mark of their own.
    """
    between = {
        **seed_row(0), "image": [cell(0), cell(1)], "question": "<img> and <img>: which?",
        "data_type": "Interleaved Image", "data_id": ["a.jpg", "b.jpg"],
    }  # fmt: skip
    chosen = {
        **seed_row(1), "image": [cell(at) for at in range(5)], "question": "What comes next?",
        "data_type": "Image Generation", "data_id": ["x"] * 5,
        **{f"choice_{letter}": f"9_{letter}.jpg" for letter in "abcd"},
    }  # fmt: skip
    folder = parquet(tmp_path, "seed", [between, chosen], "test")
    one, other = records(open_source(f"seed_bench_2@{folder}"))
    assert one.turns[0].startswith("[picture 1] and [picture 2]: which?\nA. a0\nB. b0")
    assert other.turns[0].startswith("What comes next?\nA. [picture 2]\nB. [picture 3]")
    assert "D. [picture 5]" in other.turns[0]
    assert len(other.images) == 5


def test_of_a_whole_download_only_the_measured_part_is_read(tmp_path: Path) -> None:
    """ScienceQA has two configurations with the same names of files, MMT-Bench a table whose name
    goes on where another's ends.
    """
    for config, count in (("ScienceQA-FULL", 3), ("ScienceQA-IMG", 2)):
        made = parquet(
            tmp_path / "made", config, [ROWS["scienceqa"](n) for n in range(count)], "test"
        )
        (made / "data").rename(tmp_path / "made" / "data")
        (tmp_path / "science" / config).parent.mkdir(exist_ok=True)
        (tmp_path / "made" / "data").rename(tmp_path / "science" / config)
    assert open_source(f"scienceqa@{tmp_path / 'science'}").size == 2
    assert open_source(f"scienceqa@{tmp_path / 'science' / 'ScienceQA-IMG'}").size == 2
    head = "index\timage\tquestion\tA\tB\tanswer\tcategory\n"
    (tmp_path / "mmt").mkdir()
    for part, rows in (("VAL", 1), ("VAL_MI", 2), ("ALL", 3)):
        line = f"0\t{base64.b64encode(png(0)).decode()}\tWhat?\tred\tblue\tB\tcounting\n"
        (tmp_path / "mmt" / f"MMT-Bench_{part}.tsv").write_text(head + line * rows)
    assert open_source(f"mmt_bench@{tmp_path / 'mmt'}").size == 1


def test_mmt_bench_is_a_table_with_pictures_as_text(tmp_path: Path) -> None:
    lines = ["index\timage\tquestion\tA\tB\tC\tanswer\tcategory\tl2-category"]
    for number in range(3):
        picture = base64.b64encode(png(number)).decode()
        lines.append(f"{number}\t{picture}\tWhat {number}?\tred\tblue\t\tB\tcounting\tcounting")
    (tmp_path / "MMT-Bench_VAL.tsv").write_text("\n".join(lines) + "\n")
    found = list(records(open_source(f"mmt_bench@{tmp_path}")))
    assert [record.id for record in found] == ["0", "1", "2"]
    assert found[2].turns[0].startswith("What 2?\nA. red\nB. blue\n")
    assert "C." not in found[2].turns[0]
    assert image_hash(found[2].images[0]) == image_hash(PICTURES[2])


def test_mmspec_has_turns_and_pictures_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    lines = []
    for number in range(2):
        (tmp_path / "images" / f"mmspec_{number}.png").write_bytes(png(number))
        turns = [f"<image>\nDescribe {number}.", "And then?"]
        lines.append(
            {"id": f"mmspec_{number}", "image": f"mmspec_{number}.png", "turns": turns,
             "category": "x", "topic": "multi-turn"}
        )  # fmt: skip
    (tmp_path / "mmspec.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(records(open_source(f"mmspec@{tmp_path}")))
    assert found[1].turns == ("Describe 1.", "And then?")
    assert found[1].category == "multi-turn"
    assert image_hash(found[1].images[0]) == image_hash(PICTURES[1])
    (tmp_path / "images" / "mmspec_1.png").unlink()
    with pytest.raises(InputError, match=r"mmspec_1\.png"):
        list(records(open_source(f"mmspec@{tmp_path}")))


def test_the_llava_hold_out_is_decided_by_ids(tmp_path: Path) -> None:
    ids = [f"{number:012d}" for number in range(400)]
    held = [one for one in ids if is_held_out(one)]
    assert 0 < len(held) < 20
    (tmp_path / "coco").mkdir()
    (tmp_path / "coco" / "a.png").write_bytes(png(0))
    said = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
    lines = [{"id": one, "image": "coco/a.png", "conversations": said} for one in ids]
    lines.append({"id": held[0], "conversations": said})
    lines.append({"id": 7, "conversations": said})  # some ids are numbers, as in the real file
    (tmp_path / "llava_v1_5_mix665k.json").write_text(json.dumps(lines))
    found = list(records(open_source(f"llava_665k@{tmp_path}")))
    assert [record.id.partition("/")[0] for record in found] == held
    assert found[0].turns == ("What?",)
    assert found[0].reference == ("A cat.",)
    assert found[0].category == "coco"


def test_a_row_of_nonsense_is_one_inputs_problem(tmp_path: Path) -> None:
    rows = [ROWS["scienceqa"](n) for n in range(2)]
    rows[0]["answer"] = 9
    folder = parquet(tmp_path, "scienceqa", rows, "test")
    source = open_source(f"scienceqa@{folder}")
    with pytest.raises(InputError, match="scienceqa row 0: values of another kind"):
        source.record(0)
    chosen = select(source, inputs=2, warm_up=0, seed=1).inputs
    assert sorted(one.problem is None for one in chosen) == [False, True]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    row = ROWS["chartqa"](0)
    del row["answer"]
    folder = parquet(tmp_path, "chartqa", [row], "test")
    with pytest.raises(InputError, match="no column answer"):
        open_source(f"chartqa@{folder}")


def test_unreadable_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data file"):
        open_source(f"chartqa@{tmp_path}")
    (tmp_path / "test.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(InputError, match="cannot be read"):
        open_source(f"chartqa@{tmp_path}")
    with pytest.raises(InputError, match="local copy"):
        open_source("mmspec")
    with pytest.raises(ConfigError, match="Did you mean 'chartqa'"):
        open_source("chartq")
    with pytest.raises(ConfigError, match="receipt"):
        open_source("demo:reciept")


def test_without_the_datasets_package_the_rest_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OutputError, match="eyespan\\[bench\\]"):
        open_source(f"chartqa@{tmp_path}")
    assert open_source("demo:receipt").record(0) is not None


def test_the_demo_is_the_held_out_set() -> None:
    whole, scenes = open_source("demo"), open_source("demo:scene")
    for number, sample in enumerate(held_out(12)):
        record = whole.record(number)
        assert record is not None
        assert record.id == sample.id
        assert record.turns == tuple(turn.question for turn in sample.turns)
    second = scenes.record(1)
    assert second is not None
    assert second.id == [s.id for s in held_out(12) if s.kind == "scene"][1]


def questions(tmp_path: Path, *lines: object) -> Path:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (tmp_path / "questions.jsonl").write_text(text)
    return tmp_path


def test_a_users_folder(tmp_path: Path) -> None:
    folder = questions(
        tmp_path,
        {"images": ["0.png"], "question": "What?"},
        {"id": "x", "images": ["0.png", "1.png"], "turns": ["A?", "B?"], "category": "mine"},
    )
    for name in (f"folder:{folder}", f"folder:{folder / 'questions.jsonl'}"):
        one, two = records(open_source(name))
        assert (one.id, one.turns, len(one.images)) == ("1", ("What?",), 1)
        assert (two.id, two.turns, two.category) == ("x", ("A?", "B?"), "mine")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 1"),
        ({"images": []}, "line 1"),
        ({"question": "a", "image": "b"}, "unknown fields"),
        ({"question": 3}, "lists of text"),
        ({"turns": []}, "lists of text"),
        ({"question": "a", "images": "b.png"}, "lists of text"),
    ],
)
def test_bad_questions_are_refused(tmp_path: Path, line: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_source(f"folder:{questions(tmp_path, line)}")


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_source(f"folder:{tmp_path / 'missing'}")
    with pytest.raises(InputError, match="no lines"):
        open_source(f"folder:{questions(tmp_path)}")
    line = {"id": "a", "question": "b"}
    with pytest.raises(InputError, match="two lines"):
        open_source(f"folder:{questions(tmp_path, line, line)}")


def test_a_selection_takes_as_many_of_each_category(tmp_path: Path) -> None:
    kinds = ["a"] * 12 + ["b"] * 5 + ["c"] * 3
    lines = [{"id": f"{at}", "question": "b", "category": kind} for at, kind in enumerate(kinds)]
    source = open_source(f"folder:{questions(tmp_path, *lines)}")
    file = tmp_path / "inputs" / "x.json"
    asked = {"inputs": 12, "warm_up": 2, "seed": 17}
    made = load_selection(file, source, **asked, per_category=4)
    taken = Counter(kinds[one.row] for one in made.inputs)
    assert taken == {"a": 4, "b": 4, "c": 3}
    assert len(made.warm_up) == 2
    assert not {one.id for one in made.inputs} & {one.id for one in made.warm_up}
    assert load_selection(file, source, **asked, per_category=4) == made
    for other in (0, 5):
        with pytest.raises(
            InputError, match="12 inputs, at most 4 of a category, and 2 for warming"
        ):
            load_selection(file, source, **asked, per_category=other)


def test_inputs_that_cannot_be_read_are_of_no_category(tmp_path: Path) -> None:
    lost = [{"id": f"x{at}", "question": "b", "images": ["missing.png"]} for at in range(3)]
    good = [{"id": f"{at}", "question": "b", "category": ""} for at in range(3)]
    source = open_source(f"folder:{questions(tmp_path, *lost, *good)}")
    made = select(source, inputs=6, warm_up=0, seed=1, per_category=2)
    assert Counter(one.problem is None for one in made.inputs) == {False: 3, True: 2}


def test_a_set_without_an_end_has_no_share_of_each_category() -> None:
    with pytest.raises(ConfigError, match="has no end"):
        select(open_source("demo"), inputs=4, warm_up=0, seed=1, per_category=1)


def test_a_selection_is_drawn_once_and_read_again(tmp_path: Path) -> None:
    folder = parquet(tmp_path, "chartqa", [ROWS["chartqa"](n) for n in range(20)], "test")
    source = open_source(f"chartqa@{folder}")
    file = tmp_path / "inputs" / "chartqa.json"
    asked = {"inputs": 5, "warm_up": 2, "seed": 17}
    made = load_selection(file, source, **asked)
    assert len(made.inputs) == 5
    assert not {one.id for one in made.inputs} & {one.id for one in made.warm_up}
    assert [one.row for one in made.inputs] != list(range(5)), "drawn at random"
    written = file.read_text()
    assert load_selection(file, source, **asked) == made
    assert file.read_text() == written
    assert select(source, **{**asked, "seed": 18}).inputs != made.inputs
    assert all(record_of(source, one).id == one.id for one in made.inputs)
    for changed in ({"inputs": 4}, {"seed": 18}, {"warm_up": 1}):
        with pytest.raises(InputError, match="manifest"):
            load_selection(file, source, **{**asked, **changed})
    file.write_text(written[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        load_selection(file, source, **asked)


def test_a_set_that_changed_is_refused(tmp_path: Path) -> None:
    line = {"images": ["0.png"], "question": "What?"}
    folder = questions(tmp_path, line, {**line, "question": "Which?"})
    source = open_source(f"folder:{folder}")
    chosen = select(source, inputs=2, warm_up=0, seed=1).inputs
    questions(tmp_path, line, {**line, "question": "Why?"})
    changed = open_source(f"folder:{folder}")
    assert record_of(changed, chosen[0]).turns == ("What?",)
    with pytest.raises(InputError, match="not those that the run's manifest lists"):
        record_of(changed, chosen[1])
    (tmp_path / "0.png").write_bytes(png(1))
    with pytest.raises(InputError, match="manifest lists"):
        record_of(changed, chosen[0])


def test_a_missing_picture_is_one_inputs_problem(tmp_path: Path) -> None:
    folder = questions(
        tmp_path,
        {"images": ["0.png"], "question": "What?"},
        {"images": ["gone.png"], "question": "What?"},
    )
    source = open_source(f"folder:{folder}")
    fine, broken = select(source, inputs=2, warm_up=0, seed=1).inputs
    assert fine.problem is None
    assert broken.problem is not None
    assert "gone.png" in broken.problem
    with pytest.raises(InputError, match=r"gone\.png"):
        record_of(source, broken)


def test_a_picture_has_one_hash_in_every_format(tmp_path: Path) -> None:
    picture = Image.new("RGB", (5, 4), (1, 2, 3))
    picture.save(tmp_path / "a.png")
    picture.save(tmp_path / "a.bmp")
    hashes = {image_hash(one) for one in (picture, tmp_path / "a.png", tmp_path / "a.bmp")}
    assert len(hashes) == 1
    assert image_hash(Image.new("RGB", (4, 5), (1, 2, 3))) not in hashes


def test_pictures_of_the_hubs_own_picture_type_stay_bytes(tmp_path: Path) -> None:
    """Files of the hub declare their picture columns, single or in lists; both are read alike."""
    import datasets

    single = {**ROWS["chartqa"](0), "image": PICTURES[0]}
    many = {**seed_row(1), "image": [PICTURES[1], PICTURES[2]]}
    for name, row, kind in (
        ("chartqa", single, datasets.Image()),
        ("seed_bench", many, datasets.List(datasets.Image())),
    ):
        data = datasets.Dataset.from_list([{**row, "image": None}]).remove_columns("image")
        column = datasets.Dataset.from_dict(
            {"image": [row["image"]]}, features=datasets.Features({"image": kind})
        )
        whole = datasets.concatenate_datasets([data, column], axis=1)
        (tmp_path / name).mkdir()
        whole.to_parquet(tmp_path / name / "test-00000-of-00001.parquet")
        (record,) = records(open_source(f"{name}@{tmp_path / name}"))
        given = row["image"] if isinstance(row["image"], list) else [row["image"]]
        assert [image_hash(one) for one in record.images] == [image_hash(one) for one in given]
        assert all(isinstance(one, bytes) for one in record.images)


def test_inputs_that_a_set_calls_alike_are_kept_apart(tmp_path: Path) -> None:
    rows = [{**seed_row(number), "question_id": "same"} for number in range(3)]
    folder = parquet(tmp_path, "seed", rows, "test")
    source = open_source(f"seed_bench@{folder}")
    chosen = select(source, inputs=3, warm_up=0, seed=1).inputs
    assert len({one.id for one in chosen}) == 3
    assert {record_of(source, one).turns for one in chosen} == {
        record.turns for record in records(source)
    }

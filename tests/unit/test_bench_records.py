"""Results on disk: whole inputs or nothing, one writer a folder, damage is named."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eyespan.bench.manifest import write_json
from eyespan.bench.records import Done, Run, Store, read_runs
from eyespan.errors import InputError, OutputError


def some(name: str) -> tuple[list[Run], Done]:
    common = {"stream": "s", "dataset": "d", "input": name}
    runs = [
        Run(
            **common, turn=0, method=method, repeat=0, category="c", image="i", status="equal",
            tokens=3, forwards=2, seconds={"decode": 0.3, "total": 0.5}, drafted_by_depth=(2, 1),
            accepted_by_depth=(1, 0), plain_tokens=len(beside) and 3, plain_seconds=beside,
        )
        for method, beside in (("plain", {}), ("recap", {"decode": 0.4, "total": 0.7}))
    ]  # fmt: skip
    return runs, Done(**common, answers=("caf\u00e9 \ud800",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store(tmp_path / "run") as store:
        for name in ("a", "b"):
            store.append(*some(name))
    return tmp_path / "run"


def test_what_was_written_is_read_again(folder: Path) -> None:
    with Store(folder) as store:
        assert store.runs == some("a")[0] + some("b")[0]
        assert store.done[("s", "d", "b")] == some("b")[1]
    assert read_runs(folder) == store.runs


def test_a_kill_at_any_byte_loses_only_the_input_that_was_being_written(folder: Path) -> None:
    whole = (folder / "records.jsonl").read_bytes()
    first = whole.index(b'"type":"input"')
    first = whole.index(b"\n", first) + 1
    for cut in sorted({*range(0, len(whole), 13), first - 1, first, first + 1, len(whole) - 1}):
        (folder / "records.jsonl").write_bytes(whole[:cut])
        read = read_runs(folder)
        with Store(folder) as store:
            assert list(store.done) == [("s", "d", "a")] * (cut >= first)
            assert store.runs == read == some("a")[0] * (cut >= first)
        assert len((folder / "records.jsonl").read_bytes()) == (first if cut >= first else 0)
    with Store(folder) as store:
        store.append(*some("b"))
    assert (folder / "records.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "damage",
    [
        b"{}\n", b"no json\n", b'{"type":"run"}\n', b'{"type":"other"}\n', b"[1]\n", b"\xff\n",
        b'{"type":"input","stream":"s"}\n',
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(folder: Path, damage: bytes) -> None:
    file = folder / "records.jsonl"
    file.write_bytes(damage + file.read_bytes())
    with pytest.raises(InputError, match="line 1"):
        Store(folder)
    with pytest.raises(InputError, match="line 1"):
        read_runs(folder)
    file.write_bytes(file.read_bytes()[len(damage) :])
    Store(folder).close()  # the lock was let go


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b'"tokens":3', b'"tokens":"3"'), (b'"total":0.5', b'"total":null'),
        (b'"drafted_by_depth":[2,1]', b'"drafted_by_depth":[2,"1"]'),
        (b'"error":null', b'"error":5'), (b'"image":"i"', b'"image":null'),
        (b'"total":0.5', b'"total":NaN'), (b'"total":0.5', b'"total":0'),
        (b'"total":0.5', b'"other":0.5'), (b'"tokens":3', b'"tokens":0'),
        (b'"forwards":2', b'"forwards":0'), (b'"decode":0.3', b'"other":0.3'),
        (b'"plain_seconds":{}', b'"plain_seconds":{"total":1}'),  # nothing was written in it
        (b'"method":"plain"', b'"method":"recap"'),  # with no plain run beside it
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_damage(folder: Path, whole: bytes, damaged: bytes) -> None:
    file = folder / "records.jsonl"
    assert whole in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(whole, damaged, 1))
    with pytest.raises(InputError, match="line 1 is no result"):
        Store(folder)


def test_an_unknown_status_is_damage(folder: Path) -> None:
    file = folder / "records.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"equal"', b'"fine"', 1))
    with pytest.raises(InputError, match="fine"):
        read_runs(folder)


def test_two_runs_never_write_one_folder(folder: Path) -> None:
    with Store(folder), pytest.raises(OutputError, match="another run is writing"):
        Store(folder)
    Store(folder).close()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_no_space_is_a_sentence_and_what_fitted_stays(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append(*some("a"))
    size = (tmp_path / "records.jsonl").stat().st_size
    with room_for(size + 100):
        with pytest.raises(OutputError, match="File too large"), Store(tmp_path) as store:
            store.append(*some("b"))
        assert (tmp_path / "records.jsonl").stat().st_size == size + 100, "it was cut short"
    with Store(tmp_path) as store:
        assert list(store.done) == [("s", "d", "a")]
        store.append(*some("b"))
    assert read_runs(tmp_path) == some("a")[0] + some("b")[0]


def test_a_result_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "tables.json"
    write_json(file, {"tables": []})
    with room_for(50), pytest.raises(OutputError, match="File too large"):
        write_json(file, {"tables": ["x" * 100]})
    assert json.loads(file.read_text()) == {"tables": []}
    assert [one.name for one in tmp_path.iterdir()] == ["tables.json"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        Store(tmp_path / "file")
    with pytest.raises(InputError, match="results in"):
        read_runs(tmp_path / "missing")

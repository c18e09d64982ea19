"""The public sets of both papers: where each lives, its columns, and how a row becomes an input.

Questions ask for an explanation rather than a letter, since runs measure generation: an answer of
one token cannot be made faster by guessing ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from eyespan.bench.datasets.hub import Rows, lettered, pictures_of
from eyespan.bench.datasets.record import Record, Source
from eyespan.errors import InputError

Row = Mapping[str, Any]
MakeRecord = Callable[[Row, "Path | None", str], "Record | None"]
"""(row, the folder it came from, its name for messages) -> an input, or None for no input."""

EXPLAIN = "Explain your answer step by step."
OPTION_LETTERS = "ABCDEFGHI"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """Where a set lives and how its rows are read.

    Attributes:
        hub: its id on the Hugging Face hub; None where it is only published elsewhere.
        split: part that is measured on.
        columns: that every row must have.
        record: makes an input of a row.
        config: the hub's configuration.
        files: data files on the hub where the repository has no configuration.
        home: where to get it, for messages.
    """

    hub: str | None
    split: str
    columns: tuple[str, ...]
    record: MakeRecord
    config: str | None = None
    files: str | None = None
    home: str = ""


def _choice(question: Any, options: str) -> str:
    return f"{question}\n{options}\n{EXPLAIN}"


def _answers(value: Any) -> tuple[str, ...]:
    """One right answer or several, as text."""
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)


def _seed_bench(row: Row, folder: Path | None, what: str) -> Record | None:
    if str(row.get("data_type", "image")).lower() == "video":
        return None
    images = pictures_of(row["image"], folder, what)
    question, choices = _numbered(
        str(row["question"]), [str(row[f"choice_{letter}"]) for letter in "abcd"], len(images)
    )
    return Record(
        id=str(row["question_id"]),
        images=images,
        turns=(_choice(question, lettered(choices)),),
        category=str(row["question_type_id"]),
        reference=_answers(row["answer"]),
    )


_PICTURE_FILE = re.compile(r"\S+\.(jpe?g|png)", re.IGNORECASE)


def _numbered(question: str, choices: list[str], pictures: int) -> tuple[str, list[str]]:
    """SEED-Bench-2 marks pictures within a question, and its choices may be pictures, named by
    their files. All pictures stand first in our inputs, so both are called by their numbers.
    """
    count = iter(range(1, 1 + question.count("<img>")))
    question = re.sub("<img>", lambda _: f"[picture {next(count)}]", question)
    if all(map(_PICTURE_FILE.fullmatch, choices)):
        first = pictures - len(choices) + 1
        choices = [f"[picture {at}]" for at in range(first, pictures + 1)]
    return question, choices


def _mmt_bench(row: Row, folder: Path | None, what: str) -> Record | None:
    options = lettered([row.get(letter) for letter in OPTION_LETTERS])
    return Record(
        id=str(row["index"]),
        images=pictures_of(row["image"], folder, what),
        turns=(_choice(row["question"], options),),
        category=str(row["category"]),
        reference=_answers(row["answer"]),
    )


def _science_qa(row: Row, folder: Path | None, what: str) -> Record | None:
    images = pictures_of(row["image"], folder, what)
    if not images:
        return None  # a third of the set is text alone
    hint = f"{row['hint']}\n" if row.get("hint") else ""
    choices = list(row["choices"])
    return Record(
        id=f"{row['task']}/{what.rsplit(' ', 1)[-1]}",
        images=images,
        turns=(hint + _choice(row["question"], lettered(choices)),),
        category=str(row["subject"]),
        reference=(str(choices[int(row["answer"])]),),
    )


def _ocr_bench(row: Row, folder: Path | None, what: str) -> Record | None:
    return Record(
        id=what.rsplit(" ", 1)[-1],
        images=pictures_of(row["image"], folder, what),
        turns=(str(row["question"]),),
        category=str(row["question_type"]),
        reference=_answers(row["answer"]),
    )


def _chart_qa(row: Row, folder: Path | None, what: str) -> Record | None:
    return Record(
        id=what.rsplit(" ", 1)[-1],
        images=pictures_of(row["image"], folder, what),
        turns=(f"{row['question']}\n{EXPLAIN}",),
        category=str(row["type"]),
        reference=_answers(row["answer"]),
    )


def _math_vista(row: Row, folder: Path | None, what: str) -> Record | None:
    return Record(
        id=str(row["pid"]),
        images=pictures_of(row["decoded_image"], folder, what),
        turns=(str(row["query"] or row["question"]),),
        category=str(row["question_type"]),
        reference=_answers(row["answer"]),
    )


def _text_vqa(row: Row, folder: Path | None, what: str) -> Record | None:
    return Record(
        id=str(row["question_id"]),
        images=pictures_of(row["image"], folder, what),
        turns=(f"{row['question']}\n{EXPLAIN}",),
        category="textvqa",
        reference=_answers(row["answers"]),
    )


def _mme(row: Row, folder: Path | None, what: str) -> Record | None:
    return Record(
        id=f"{row['question_id']}/{what.rsplit(' ', 1)[-1]}",  # a picture has two questions
        images=pictures_of(row["image"], folder, what),
        turns=(f"{row['question']}\n{EXPLAIN}",),
        category=str(row["category"]),
        reference=_answers(row["answer"]),
    )


def _mm_spec(row: Row, folder: Path | None, what: str) -> Record | None:
    turns = tuple(_without_placeholder(turn) for turn in row["turns"])
    return Record(
        id=str(row["id"]),
        images=pictures_of(row["image"], folder, what),
        turns=turns,
        category=str(row["topic"]),
    )


HELD_OUT_SHARE = 100
"""One conversation in so many is held out of LLaVA-665K."""


def is_held_out(conversation_id: str) -> bool:
    """Whether a conversation of LLaVA-665K is for measuring only: training must leave it out.

    Decided by the id alone, so that all conversations about one picture fall on the same side.
    """
    digest = sha256(conversation_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def _llava(row: Row, folder: Path | None, what: str) -> Record | None:
    if not row["image"] or not is_held_out(str(row["id"])):
        return None  # conversations without a picture, and those that one may train on
    said = [(turn["from"], _without_placeholder(turn["value"])) for turn in row["conversations"]]
    return Record(
        id=f"{row['id']}/{what.rsplit(' ', 1)[-1]}",  # ids repeat from source to source
        images=pictures_of(row["image"], folder, what),
        turns=tuple(text for who, text in said if who == "human"),
        category=str(row["image"] if isinstance(row["image"], str) else "llava").split("/")[0],
        reference=tuple(text for who, text in said if who == "gpt"),
    )


def _without_placeholder(text: Any) -> str:
    return re.sub(r"\s*<image>\s*", "", str(text)).strip()


PUBLIC: Mapping[str, PublicSet] = {
    "mmt_bench": PublicSet(
        hub="Kaining/MMT-Bench",
        files="MMT-Bench_VAL.tsv",
        split="MMT-Bench_VAL",
        columns=("index", "image", "question", "A", "B", "answer", "category"),
        record=_mmt_bench,
    ),
    "seed_bench": PublicSet(
        hub="lmms-lab/SEED-Bench",
        split="test",
        columns=(
            "question_id", "image", "question", "choice_a", "choice_b", "choice_c", "choice_d",
            "answer", "question_type_id", "data_type",
        ),
        record=_seed_bench,
    ),
    "seed_bench_2": PublicSet(
        hub="lmms-lab/SEED-Bench-2",
        split="test",
        columns=(
            "question_id", "image", "question", "choice_a", "choice_b", "choice_c", "choice_d",
            "answer", "question_type_id", "data_type",
        ),
        record=_seed_bench,
    ),
    "scienceqa": PublicSet(
        hub="lmms-lab/ScienceQA",
        config="ScienceQA-IMG",
        split="test",
        columns=("image", "question", "choices", "answer", "hint", "task", "subject"),
        record=_science_qa,
    ),
    "ocrbench": PublicSet(
        hub="echo840/OCRBench",
        split="test",
        columns=("image", "question", "question_type", "answer"),
        record=_ocr_bench,
    ),
    "chartqa": PublicSet(
        hub="lmms-lab/ChartQA",
        split="test",
        columns=("image", "question", "answer", "type"),
        record=_chart_qa,
    ),
    "mathvista": PublicSet(
        hub="AI4Math/MathVista",
        split="testmini",
        columns=("pid", "decoded_image", "question", "query", "answer", "question_type"),
        record=_math_vista,
    ),
    "textvqa": PublicSet(
        hub="lmms-lab/textvqa",
        split="validation",
        columns=("question_id", "image", "question", "answers"),
        record=_text_vqa,
    ),
    "mme": PublicSet(
        hub="lmms-lab/MME",
        split="test",
        columns=("question_id", "image", "question", "answer", "category"),
        record=_mme,
    ),
    "mmspec": PublicSet(
        hub=None,
        split="mmspec",
        columns=("id", "image", "turns", "topic"),
        record=_mm_spec,
        home="https://github.com/killthefullmoon/MMSpec, folder dataset/MMSpec/test",
    ),
    "llava_665k": PublicSet(
        hub=None,
        split="llava_v1_5_mix665k",
        columns=("id", "image", "conversations"),
        record=_llava,
        home="https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K, the file "
        "llava_v1_5_mix665k.json beside its picture folders",
    ),
}  # fmt: skip


def public_source(name: str, origin: str | None) -> Source:
    """Open a public set.

    Args:
        name: a key of `PUBLIC`.
        origin: a local copy, or None for the hub.

    Raises:
        InputError: it cannot be read, or has other columns.
        OutputError: the package `datasets` is missing.
    """
    known = PUBLIC[name]
    origin = origin or known.hub
    if origin is None:
        raise InputError(
            f"dataset '{name}'",
            found="it is not on the Hugging Face hub in a form that can be read from there",
            needed=f"a local copy is needed: {known.home}",
            todo=f"Download it and write {name}@FOLDER.",
        )
    rows = Rows(
        name,
        origin,
        config=known.config,
        split=known.split,
        columns=known.columns,
        files=known.files,
    )

    def record(row: int) -> Record | None:
        what = f"{name} row {row}"
        try:
            return known.record(rows[row], rows.folder, what)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                what,
                found=f"values of another kind ({error})",
                needed="a row as the set publishes it is needed",
                todo="Download the set's files again; the other rows are used.",
            ) from error

    return Source(name, origin, len(rows), record)

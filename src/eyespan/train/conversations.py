"""What the target is asked: pictures with questions, from the demo's generator or from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL.Image import Image

from eyespan.demo.generator import SUBJECTS, training_sample
from eyespan.errors import ConfigError, InputError

FOLDER = "folder:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question; `answer` is None where the data set has none."""

    question: str
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Pictures and turns about them; all pictures stand before the first question."""

    id: str
    images: tuple[Image | Path, ...]
    turns: tuple[Turn, ...]


class Source(Protocol):
    """A data set whose items can be read in any order, so that ranks share it without talking."""

    def __len__(self) -> int:
        """How many conversations there are."""
        ...

    def __getitem__(self, index: int) -> Conversation:
        """One of them; the same each time."""
        ...


class DemoSource:
    """The demo generator's training stream: the held-out set is drawn from other random numbers,
    whatever the seed, so no picture of it is ever seen here.
    """

    def __init__(self, *, seed: int, count: int) -> None:
        self._seed, self._count = seed, count
        self._weights = dict.fromkeys(SUBJECTS, 1.0)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Conversation:
        sample = training_sample(self._seed, index, self._weights)
        return Conversation(
            id=sample.id,
            images=(sample.image,),
            turns=tuple(Turn(question=t.question, answer=t.answer) for t in sample.turns),
        )


class FolderSource:
    """Records of the `*.jsonl` and `*.json` files of a folder, picture paths relative to it.

    A record is `{"images": [...], "question": ..., "answer": ...}`, or has `"turns"` (a list of
    question and answer), or the layout of LLaVA's data: `"image"` and `"conversations"` with
    `from` and `value`. `id` is optional.
    """

    def __init__(self, folder: Path, *, count: int | None) -> None:
        """Read all records; pictures are opened when they are asked for.

        Raises:
            InputError: nothing there, or a record of another shape, with its place.
        """
        self._folder = folder
        files = sorted([*folder.glob("*.jsonl"), *folder.glob("*.json")])
        self._found = [
            self._conversation(record, f"{file.name}:{number}")
            for file in files
            for number, record in enumerate(_records(file), 1)
        ][:count]
        if not self._found:
            raise InputError(
                f"data set 'folder:{folder}'",
                found="no records",
                needed="*.jsonl files with images, question and answer are needed",
                todo="See docs/train.md for the layout.",
            )

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> Conversation:
        return self._found[index]

    def _conversation(self, record: Any, where: str) -> Conversation:
        try:
            images = record.get("images") or record.get("image") or []
            images = [images] if isinstance(images, str) else images
            turns = tuple(_turns(record))
            if not turns or not all(isinstance(name, str) for name in images):
                raise ValueError("no question, or images that are no paths")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"record {where}",
                found=f"{error!r}",
                needed="images with question and answer, turns or conversations is needed",
                todo="See docs/train.md for the layout.",
            ) from None
        paths = tuple(self._folder / name for name in images)
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            raise InputError(
                f"record {where}",
                found=f"no picture {missing[0]}",
                needed="paths relative to the data set's folder are needed",
                todo="Move the pictures there, or drop the record.",
            )
        return Conversation(id=str(record.get("id", where)), images=paths, turns=turns)


def open_source(name: str, *, seed: int, count: int | None) -> Source:
    """A data set by name.

    Args:
        name: "demo" or "folder:PATH".
        seed: of the demo's stream.
        count: conversations at most; the demo's stream is endless and needs one.

    Raises:
        ConfigError: another name, or no count for the demo.
        InputError: see `FolderSource`.
    """
    if name.startswith(FOLDER):
        return FolderSource(Path(name.removeprefix(FOLDER)), count=count)
    if name == "demo" and count is not None:
        return DemoSource(seed=seed, count=count)
    raise ConfigError(
        f"data.source = '{name}' with data.count = {count}",
        found="no such data set" if name != "demo" else "an endless stream",
        needed="'demo' with a count, or 'folder:PATH', is needed",
        todo="See docs/train.md.",
    )


def messages_of(
    conversation: Conversation, answers: Sequence[str], turn: int
) -> list[dict[str, Any]]:
    """Chat messages up to the question of a turn.

    Args:
        conversation: its pictures stand in the first message.
        answers: [turn] what was answered before.
        turn: whose question comes last.
    """
    messages: list[dict[str, Any]] = []
    for index, asked in enumerate(conversation.turns[: turn + 1]):
        content: list[dict[str, Any]] = [{"type": "text", "text": asked.question}]
        if index == 0:
            content = [{"type": "image"} for _ in conversation.images] + content
        messages.append({"role": "user", "content": content})
        if index < turn:
            messages.append({"role": "assistant", "content": answers[index]})
    return messages


def _records(file: Path) -> Iterator[Any]:
    try:
        text = file.read_text("utf-8")
        if file.suffix == ".json":
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"data set file '{file}'",
            found=str(error),
            needed="one JSON record a line (*.jsonl), or a list of them (*.json), is needed",
            todo="Repair the file.",
        ) from error


def _turns(record: Any) -> Iterator[Turn]:
    if "conversations" in record:
        said = [(str(each["from"]), str(each["value"])) for each in record["conversations"]]
        for (who, question), (_, reply) in zip(said[::2], said[1::2], strict=True):
            if who not in ("human", "user"):
                raise ValueError(f"a turn that begins with '{who}'")
            yield Turn(question=question.replace("<image>", "").strip(), answer=reply)
        return
    for turn in record.get("turns") or [record]:
        reply = turn.get("answer")
        yield Turn(question=str(turn["question"]), answer=None if reply is None else str(reply))

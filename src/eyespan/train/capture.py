"""Ask the frozen target once, and keep what it said: `eyespan train capture`.

Conversation i lies in shard i // shard_samples, and shard s belongs to rank s mod WORLD_SIZE, so
any number of processes share the work without talking to each other. What is already there stays.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from eyespan.errors import ConfigError, InputError
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.target.images import open_pictures
from eyespan.target.weights import STATE_MEANING, weights_of
from eyespan.train.answers import Answer, answered, regenerated, reread
from eyespan.train.conversations import Conversation, Source, messages_of, open_source
from eyespan.train.leave_out import read_left_out
from eyespan.train.report import Report
from eyespan.train.shards import (
    DTYPES,
    bytes_per_sequence,
    is_whole,
    write_manifest,
    write_shard,
)
from eyespan.train.teacher import SUPERVISE_MEANING, Lesson, Teacher, image_token_of

_SPARE = 1.1
"""Room asked for beyond the estimate."""

_PROBES = 16
"""Conversations whose prompts are looked at for the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Which model is the teacher.

    Attributes:
        model: "demo", a folder or a hub id.
        dtype, device: as `eyespan.load` takes them.
    """

    model: str = "demo"
    dtype: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """What it is asked.

    Attributes:
        source: "demo" or "folder:PATH".
        count: conversations at most; None takes a whole folder.
        seed: of the demo's stream.
        max_length: longest sequence kept, in tokens.
        leave_out: what is measured on, see `read_left_out`.
    """

    source: str = "demo"
    count: int | None = None
    seed: int = 4711
    max_length: int = 4096
    leave_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """How it is answered.

    Attributes:
        regenerate: the target answers itself (as the paper does); False takes the data's answers.
        max_new_tokens: longest answer.
        drafter: speeds the answering up; the words are the target's own either way.
    """

    regenerate: bool = True
    max_new_tokens: int = 256
    drafter: str = "recap"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What is kept, and where.

    Attributes:
        out: folder of the shards.
        layers: "eagle3" (2, half, three before the last), or layer indices; [] keeps none.
        mid: the intermediate target of FOVEA and DREAM.
        top: predictions kept at a supervised position.
        dtype: of states.
        shard_samples: conversations a shard.
    """

    out: Path
    layers: Literal["eagle3"] | tuple[int, ...] = "eagle3"
    mid: bool = True
    top: int = 64
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    shard_samples: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """One capture; the tables of the TOML file."""

    store: StoreSettings
    target: TargetSettings = field(default_factory=TargetSettings)
    data: DataSettings = field(default_factory=DataSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)

    def __post_init__(self) -> None:
        """Refuse sizes that hold nothing."""
        sizes = {
            "store.top": self.store.top,
            "store.shard_samples": self.store.shard_samples,
            "answers.max_new_tokens": self.answers.max_new_tokens,
            "data.max_length": self.data.max_length,
            "data.count": 1 if self.data.count is None else self.data.count,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ConfigError(
                    f"config key '{name}'",
                    found=str(value),
                    needed="at least 1 is needed",
                    todo="See docs/train.md.",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a capture brought, on this rank.

    Attributes:
        sequences: written now.
        kept: shards that were there already.
        skipped: conversation ids left out, with the reason.
    """

    sequences: int
    kept: int
    skipped: dict[str, str]


def eagle3_layers(layers: int) -> tuple[int, ...]:
    """Layers whose entering states EAGLE-3 reads: 2, half, and three before the last."""
    return tuple(dict.fromkeys((min(2, layers - 1), layers // 2, max(0, layers - 3))))


def capture(
    config: CaptureConfig, target: HuggingFaceTarget, report: Report | None = None
) -> Captured:
    """Capture this rank's shards (RANK and WORLD_SIZE of the environment; one rank without them).

    Args:
        config: what to capture.
        target: `config.target`, loaded.
        report: where to say what happens.

    Raises:
        EyespanError: the data cannot be read, the target cannot be captured, another capture is in
            the folder, or the disk has no room. A single bad conversation is left out and listed.
    """
    report = report or Report()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    source = open_source(config.data.source, seed=config.data.seed, count=config.data.count)
    teacher = Teacher(
        target,
        layers=layers_of(config.store.layers, target.info.layers),
        mid=config.store.mid,
        top=config.store.top,
    )
    out, size = config.store.out, config.store.shard_samples
    shards = math.ceil(len(source) / size)
    first = source[0]
    teacher.check_layers(
        target.prepare(messages_of(first, (), 0), open_pictures(list(first.images)))
    )
    apart = read_left_out(config.data.leave_out)
    about = facts(config, target, teacher, len(source), shards)
    if config.data.leave_out:
        about["left_out"] = apart.digest()
    plan = write_manifest(out, about)
    mine = [shard for shard in range(rank, shards, world) if not is_whole(out, shard, plan)]
    kept = len(range(rank, shards, world)) - len(mine)
    _check_room(config, target, teacher, source, todo=len(mine) * size, report=report)
    answer = _answerer(config, target)
    skipped: dict[str, str] = {}
    written = 0
    with report.bar("capturing", len(mine) * size) as bar:
        for shard in mine:
            lessons: list[tuple[str, Lesson]] = []
            lost: dict[str, str] = {}
            for index in range(shard * size, min((shard + 1) * size, len(source))):
                asked = source[index]
                try:
                    apart.check(asked)
                    lessons.append((asked.id, _lesson(config, teacher, asked, answer)))
                except InputError as error:
                    lost[asked.id] = str(error)
                bar.advance(note=f"{sum(int(one.supervise.sum()) for _, one in lessons)} tokens")
            dtype = DTYPES[config.store.dtype]
            write_shard(out, shard, plan=plan, lessons=lessons, skipped=lost, dtype=dtype)
            written += len(lessons)
            skipped |= lost
    for name, reason in skipped.items():
        report.say(f"left out {name}: {reason}")
    report.say(f"captured {written} sequences into {out}; {kept} shards were there already")
    return Captured(sequences=written, kept=kept, skipped=skipped)


def layers_of(wanted: Literal["eagle3"] | tuple[int, ...], layers: int) -> tuple[int, ...]:
    """The layer indices that `store.layers` means for a target of so many layers."""
    return eagle3_layers(layers) if wanted == "eagle3" else wanted


def facts(
    config: CaptureConfig, target: HuggingFaceTarget, teacher: Teacher, count: int, shards: int
) -> dict[str, Any]:
    """What the manifest records; JSON-ready and the same on every rank."""
    return {
        "target": weights_of(target.model, target.info.name).record(),
        "revision": getattr(target.model.config, "_commit_hash", None),
        "target_dtype": target.info.dtype,
        "state_meaning": STATE_MEANING,
        "supervise_meaning": SUPERVISE_MEANING,
        "layers": list(teacher.layers),
        "mid_candidates": list(teacher.candidates),
        "top": teacher.top,
        "state_dtype": config.store.dtype,
        "image_token_id": image_token_of(target),
        "data": {key: value for key, value in asdict(config.data).items() if value != ()},
        "answers": asdict(config.answers),
        "conversations": count,
        "shard_samples": config.store.shard_samples,
        "shards": shards,
    }


def _answerer(config: CaptureConfig, target: HuggingFaceTarget) -> Answer:
    if not config.answers.regenerate:
        return reread(target)
    return regenerated(Engine(target, config.answers.drafter), config.answers.max_new_tokens)


def _lesson(config: CaptureConfig, teacher: Teacher, asked: Conversation, answer: Answer) -> Lesson:
    read = answered(teacher.target, asked, answer)
    length = len(read.prompt) + len(read.answer)
    if length > min(config.data.max_length, teacher.target.info.max_context):
        raise InputError(
            f"conversation '{asked.id}'",
            found=f"{length} tokens",
            needed=f"at most {config.data.max_length} (data.max_length) are captured",
            todo="It is left out.",
        )
    return teacher.read(read)


def _check_room(
    config: CaptureConfig,
    target: HuggingFaceTarget,
    teacher: Teacher,
    source: Source,
    *,
    todo: int,
    report: Report,
) -> None:
    """Say how large the capture will be, and refuse one that the disk cannot hold."""
    step = max(1, len(source) // _PROBES)
    tokens = _answer_tokens(config, target)
    sizes = [
        _estimate(config, target, teacher, source[index], tokens)
        for index in range(0, len(source), step)
    ]
    needed = int(_SPARE * todo * sum(sizes) / len(sizes))
    free = shutil.disk_usage(config.store.out).free
    report.say(
        f"{todo} conversations to capture, about {_gigabytes(needed)} on disk "
        f"({_gigabytes(free)} free in {config.store.out})"
    )
    if needed > free:
        raise InputError(
            f"capturing into '{config.store.out}'",
            found=f"{_gigabytes(free)} free",
            needed=f"about {_gigabytes(needed)} are needed",
            todo="Make room, lower data.count, or keep less: store.layers, store.mid, store.top.",
        )


def _answer_tokens(config: CaptureConfig, target: HuggingFaceTarget) -> Callable[[str | None], int]:
    """Tokens of an answer: the data's own length where it has one, else the longest allowed."""

    def count(known: str | None) -> int:
        if known is None:
            return config.answers.max_new_tokens
        return 1 + len(target.tokenizer(known, add_special_tokens=False)["input_ids"])

    return count


def _estimate(
    config: CaptureConfig,
    target: HuggingFaceTarget,
    teacher: Teacher,
    asked: Conversation,
    tokens: Callable[[str | None], int],
) -> int:
    """Bytes of one conversation, from its prompt and its answers' likely lengths."""
    answers = [turn.answer or "" for turn in asked.turns]
    prompt = target.prepare(
        messages_of(asked, answers, len(asked.turns) - 1), open_pictures(list(asked.images))
    )
    supervised = sum(tokens(turn.answer) for turn in asked.turns)
    media = sum(int(i) in target.info.media_ids for i in prompt.ids)
    return bytes_per_sequence(
        length=len(prompt) + tokens(asked.turns[-1].answer),
        supervised=supervised,
        visual=media,
        width=target.info.hidden_size,
        layers=len(teacher.layers),
        mid=bool(teacher.candidates),
        top=teacher.top,
        dtype=DTYPES[config.store.dtype],
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"

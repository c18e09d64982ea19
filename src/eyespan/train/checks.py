"""Before the first update: what a person should read before hours are spent, and what cannot learn
at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from eyespan.drafters._head import DraftHead
from eyespan.errors import ConfigError, InputError
from eyespan.train.report import Report
from eyespan.train.settings import TrainConfig
from eyespan.train.shards import Entry

_SHOWN = 2


def check_can_learn(
    config: TrainConfig, training: Sequence[Entry], head: nn.Module, world: int
) -> int:
    """Refuse a run that cannot learn.

    Args:
        config: of the run.
        training: sequences with at least one supervised token each.
        head: to be trained.
        world: processes.

    Returns:
        The number of updates.

    Raises:
        InputError: nothing to learn from.
        ConfigError: a batch that does not fit the processes, a warm-up that never ends, or a head
            without trainable weights.
    """
    schedule, micro = config.schedule, config.run.micro_batch
    if not training:
        raise InputError(
            "training",
            found="no sequence with a supervised token",
            needed="answers of the target are needed",
            todo="Capture more, or lower data.validation.",
        )
    if not any(parameter.requires_grad for parameter in head.parameters()):
        raise ConfigError(
            f"training '{config.drafter.method}'",
            found="no trainable parameter",
            needed="some are needed",
            todo="Check drafter.options.",
        )
    if schedule.batch > len(training):
        raise ConfigError(
            f"schedule.batch = {schedule.batch}",
            found=f"{len(training)} sequences",
            needed="at least one batch is needed",
            todo="Capture more, or lower schedule.batch.",
        )
    chunks = math.ceil(schedule.batch / micro)
    if chunks % world:
        raise ConfigError(
            f"schedule.batch = {schedule.batch} with run.micro_batch = {micro}",
            found=f"{chunks} micro-batches for {world} processes",
            needed="the same number for each is needed",
            todo="Choose a batch that is a multiple of micro_batch x processes.",
        )
    total = schedule.epochs * (len(training) // schedule.batch)
    if schedule.warmup >= total:
        raise ConfigError(
            f"schedule.warmup = {schedule.warmup}",
            found=f"{total} updates in all",
            needed="a warm-up that ends is needed: fewer updates than the run has",
            todo="Lower schedule.warmup, or train for more epochs.",
        )
    return total


def introduce(
    config: TrainConfig,
    head: DraftHead,
    training: Sequence[Entry],
    report: Report,
    *,
    kept_apart: int,
    updates: int,
    world: int,
    mixed: bool,
    show: Callable[[Entry], str],
) -> None:
    """Say what is about to be trained on what; most failed runs went wrong here.

    Args:
        config: of the run.
        head: to be trained.
        training: sequences that teach.
        report: where to say it.
        kept_apart: sequences for validation.
        updates: in all.
        world: processes.
        mixed: whether a curriculum draws from sequences with and without pictures.
        show: a few words on a sequence.
    """
    tokens = sum(entry.length for entry in training)
    taught = sum(entry.supervised for entry in training)
    schedule = config.schedule
    count = sum(p.numel() for p in head.parameters() if p.requires_grad)
    report.say(
        f"{config.drafter.method}: {count:,} trainable parameters; {len(training)} sequences, "
        f"{taught:,} of {tokens:,} tokens taught ({100 * taught / tokens:.1f}%), {kept_apart} "
        "kept apart"
    )
    report.say(
        f"{updates} updates ({schedule.epochs} epochs of {updates // schedule.epochs}), of which "
        f"{schedule.warmup} warm up; {schedule.batch} sequences an update, {world} process(es)"
    )
    for entry in training[:_SHOWN]:
        report.say(f"  {entry.id}: {show(entry)}")
    if head.visual_share(0.0) is not None and not mixed:
        report.say(
            "its curriculum from text to pictures needs sequences of both kinds; this capture has "
            "one, so all are drawn alike"
        )

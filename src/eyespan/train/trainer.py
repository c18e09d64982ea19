"""The training loop: `train` takes a head through its updates, evaluates, and keeps the last and
the best drafter.

Everything that is random follows from the seed, the number of the update and the micro-batch, so a
resumed run repeats a straight one bit for bit, and the number of processes changes nothing but the
order of float sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from eyespan.drafters._head import DraftHead, TrainState
from eyespan.errors import InputError
from eyespan.train.card import write_card
from eyespan.train.checks import check_can_learn, introduce
from eyespan.train.data import Artifacts, Order, split
from eyespan.train.means import Means, note, words
from eyespan.train.report import Report
from eyespan.train.schedule import share_of_peak
from eyespan.train.settings import TrainConfig
from eyespan.train.shards import Entry
from eyespan.train.simulate import AcceptLength
from eyespan.train.state import (
    append_log,
    check_same_run,
    evaluations,
    read_state,
    trim_log,
    write_state,
)
from eyespan.train.strategies import Single, summed, weights_in

STATE, LAST, BEST, LOG = "state", "last", "best", "log.jsonl"
_SHARE = 1_000_003

Measure: TypeAlias = Callable[[Path, Sequence[Entry]], AcceptLength | None]
"""The accept length of the drafter in a folder on some sequences; None where it cannot draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """What is trained, and what can be done with it.

    Attributes:
        head: attached to the target, with its initial weights.
        twin: another head of the same shape on the CPU, whose weights are written to disk.
        save: write a head as a drafter that can be served: (folder, head, how it was trained).
        measure: see `Measure`.
        show: a few words on a sequence, for people.
    """

    head: DraftHead
    twin: DraftHead
    save: Callable[[Path, DraftHead, Mapping[str, Any]], None]
    measure: Measure
    show: Callable[[Entry], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        updates: taken in all.
        loss: of the last update.
        validation: mean losses and accuracies by name, at the end.
        accept_length: of the last drafter, replayed.
        best: the best of all evaluations, by accept length or else by loss.
    """

    updates: int
    loss: float
    validation: Mapping[str, Any]
    accept_length: float | None
    best: float


def train(
    config: TrainConfig,
    trainee: Trainee,
    artifacts: Artifacts,
    strategy: Single,
    report: Report | None = None,
    *,
    stop_after: int | None = None,
) -> Outcome:
    """Train to the end of the schedule, going on from `run.out` where a run was interrupted.

    Args:
        config: of the run.
        trainee: the head and its surroundings.
        artifacts: what it learns from.
        strategy: single or of several processes; `prepare` is called here.
        report: where to say what happens.
        stop_after: leave after this update of the schedule, as an interruption would.

    Raises:
        ConfigError: a schedule that cannot learn.
        InputError: nothing to learn from, a loss that is not finite, or another run in the folder.
    """
    return _Run(config, trainee, artifacts, strategy, report or Report()).run(stop_after)


class _Run:
    """One call of `train`."""

    def __init__(
        self,
        config: TrainConfig,
        trainee: Trainee,
        artifacts: Artifacts,
        strategy: Single,
        report: Report,
    ) -> None:
        self.config, self.trainee, self.artifacts = config, trainee, artifacts
        self.strategy, self.report = strategy, report
        self.training, self.validation = split(artifacts.entries, config.data.validation)
        schedule = config.schedule
        self.total = check_can_learn(config, self.training, trainee.head, strategy.world)
        self.order = Order(self.training, batch=schedule.batch, seed=schedule.seed)
        self.every = config.run.evaluate_every or self.order.per_epoch
        kinds = {bool(entry.visual) for entry in self.training}
        self.mixed = trainee.head.visual_share(0.0) is not None and len(kinds) == 2
        self.best = -math.inf
        self.done = 0

    def run(self, stop_after: int | None) -> Outcome:
        self._introduce()
        self.strategy.prepare(self.trainee.head, self.config.optimizer)
        self._resume()
        end = self.total if stop_after is None else min(stop_after, self.total)
        loss, validation, length = math.nan, dict[str, Any](), None
        with self.report.bar("training", self.total, self.done) as bar:
            while self.done < end:
                record = self._update()
                loss = float(record["loss"])
                self.done += 1
                self._log({"update": self.done, **record})
                if self.done % self.every == 0 or self.done == self.total:
                    tensors = self.strategy.save()
                    self._save_drafter(LAST, tensors)
                    validation, length = self._evaluate()
                    self._keep(tensors, validation, length, record)
                elif self.done == end:
                    self._save_state(self.strategy.save())
                bar.advance(note=note(record, length))
        return Outcome(
            updates=self.done,
            loss=loss,
            validation=validation,
            accept_length=None if length is None else length.tau,
            best=self.best,
        )

    def _introduce(self) -> None:
        introduce(
            self.config,
            self.trainee.head,
            self.training,
            self.report,
            kept_apart=len(self.validation),
            updates=self.total,
            world=self.strategy.world,
            mixed=self.mixed,
            show=self.trainee.show,
        )

    def _resume(self) -> None:
        found = read_state(self.config.run.out / STATE)
        if found is not None:
            tensors, about = found
            check_same_run(about["run"], self.config.identity(), self.artifacts.about["target"])
            self.strategy.restore(tensors)
            self.done, self.best = int(about["update"]), float(about["best"])
            self.report.say(f"going on after update {self.done} of {self.total}")
        if self.strategy.rank == 0:
            trim_log(self.config.run.out / LOG, self.done)

    def _update(self) -> dict[str, Any]:
        """One update; returns what is logged."""
        config, number = self.config, self.done
        progress = number / self.total
        share = self.trainee.head.visual_share(progress) if self.mixed else None
        entries = self.order.update(number) if share is None else self.order.mixed(number, share)
        chunks = list(_chunks(entries, config.run.micro_batch))
        mine = list(enumerate(chunks))[self.strategy.rank :: self.strategy.world]
        all_taught = sum(entry.supervised for entry in entries)
        means = Means()

        def forward_of(place: int, chunk: Sequence[Entry]) -> Callable[[nn.Module], Tensor]:
            def forward(module: nn.Module) -> Tensor:
                weight = sum(entry.supervised for entry in chunk) / all_taught
                seed = (config.schedule.seed * _SHARE + number) * _SHARE + place
                losses = module(
                    self.artifacts.batch(chunk).to(self.strategy.device),
                    self._state(progress, seed),
                )
                means.add(losses, weight)
                return losses["loss"] * weight  # type: ignore[no-any-return]

            return forward

        rate = config.optimizer.lr * share_of_peak(
            number,
            warmup=config.schedule.warmup,
            total=self.total,
            shape=config.schedule.shape,
        )
        norm = self.strategy.step([forward_of(*one) for one in mine], rate)
        record = means.shared(self.strategy)
        if not math.isfinite(record["loss"]) or not math.isfinite(norm):
            raise InputError(
                f"update {number + 1}",
                found=f"a loss of {record['loss']} and a gradient of norm {norm} on sequences "
                f"{', '.join(entry.id for entry in entries)}",
                needed="finite numbers are needed",
                todo="The last checkpoint is whole. Lower optimizer.lr or look at the sequences.",
            )
        return {**record, "norm": norm, "lr": rate}

    def _state(self, progress: float, seed: int) -> TrainState:
        """All randomness of a micro-batch, seeded."""
        torch.manual_seed(seed % 2**63)
        generator = torch.Generator(self.strategy.device).manual_seed(seed % 2**63)
        return TrainState(progress=progress, generator=generator)

    @torch.no_grad()
    def _evaluate(self) -> tuple[dict[str, Any], AcceptLength | None]:
        """Validation losses, and the replayed accept length of the drafter that was written."""
        means = Means()
        ordered = sorted(self.validation, key=lambda entry: entry.length)
        self.strategy.module.eval()
        for place, chunk in enumerate(_chunks(ordered, self.config.run.micro_batch)):
            state = self._state(self.done / self.total, place)
            with self.strategy.autocast():
                losses = self.strategy.module(
                    self.artifacts.batch(chunk).to(self.strategy.device), state
                )
            means.add(losses, sum(entry.supervised for entry in chunk) / self.strategy.world)
        self.strategy.module.train()
        validation = means.shared(self.strategy) if ordered else {}
        length = None
        if self.strategy.rank == 0 and self.config.run.replay and ordered:
            step = max(1, len(ordered) // self.config.run.replay)
            chosen = ordered[::step][: self.config.run.replay]
            length = self.trainee.measure(self.config.run.out / LAST, chosen)
        return validation, length

    def _keep(
        self,
        tensors: Mapping[str, Tensor],
        validation: Mapping[str, Any],
        length: AcceptLength | None,
        record: Mapping[str, Any],
    ) -> None:
        """Save the state, the drafter when it is the best so far, and say how it does."""
        shown = validation or record
        score = length.tau if length is not None else -float(shown["loss"])
        first = score if self.strategy.rank == 0 else 0.0  # only the first process replays
        score = float(summed(torch.tensor(first, dtype=torch.float64), self.strategy.world))
        if score > self.best:
            self.best = score
            self._save_drafter(BEST, tensors)
        self._save_state(tensors)
        spoken = "" if length is None else f", accept length {length.tau:.2f} (replayed)"
        self.report.say(
            f"update {self.done} of {self.total}: loss {record['loss']:.4f}, validation "
            f"{words(shown)}{spoken}"
        )
        evaluated = {"update": self.done, "validation": dict(validation)}
        if length is not None:
            evaluated["accept_length"] = length.tau
        self._log(evaluated)
        self._write_card()

    def _write_card(self) -> None:
        """What the first process knows of the best head, beside its weights."""
        best = self.config.run.out / BEST
        if self.strategy.rank == 0 and best.is_dir():
            write_card(
                best,
                self.config,
                self.artifacts.about,
                evaluations(self.config.run.out / LOG),
                parameters=sum(
                    p.numel() for p in self.trainee.twin.parameters() if p.requires_grad
                ),
                sequences=(len(self.training), len(self.validation)),
            )

    def _save_drafter(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """The first process writes."""
        if self.strategy.rank == 0:
            self.trainee.twin.load_state_dict(weights_in(tensors))
            training = {"update": self.done, "of": self.total, **self.config.identity()}
            self.trainee.save(self.config.run.out / name, self.trainee.twin, training)

    def _save_state(self, tensors: Mapping[str, Tensor]) -> None:
        if self.strategy.rank == 0:
            about = {
                "update": self.done,
                "best": self.best,
                "run": {**self.config.identity(), "target": dict(self.artifacts.about["target"])},
            }
            write_state(self.config.run.out / STATE, tensors, about)

    def _log(self, record: Mapping[str, Any]) -> None:
        if self.strategy.rank == 0:
            append_log(self.config.run.out / LOG, record)


def _chunks(entries: Sequence[Entry], size: int) -> Iterator[Sequence[Entry]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]

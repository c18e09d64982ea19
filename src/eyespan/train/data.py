"""From shards to batches: padding, and an order that depends on the seed and the update alone, so
that a resumed run, or one with another number of processes, sees the same samples.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eyespan.errors import InputError, UnsupportedTarget
from eyespan.target.weights import TargetWeights
from eyespan.train.batch import TrainBatch
from eyespan.train.shards import Entry, read_about, read_entries, read_lesson
from eyespan.train.teacher import embeddings

_WINDOW = 16
"""Batches sorted by length together, so that little is padding."""


class Artifacts:
    """A capture as batches for one target.

    Attributes:
        about: the manifest's facts.
        entries: sequences that a head learns from; those without a supervised token are left out.
    """

    def __init__(self, folder: Path, weights: TargetWeights) -> None:
        """Check that the capture is whole and the target's own.

        Args:
            folder: what `eyespan train capture` wrote.
            weights: of the target.

        Raises:
            InputError: missing, incomplete, or of another meaning.
            UnsupportedTarget: captured from another target.
        """
        self.folder, self.about, self._weights = folder, read_about(folder), weights
        wrong = weights.mismatch(self.about["target"])
        if wrong is not None:
            field, here, recorded = wrong
            raise UnsupportedTarget(
                f"training for '{weights.shape.name}' on '{folder}'",
                found=f"{field} is {here!r}",
                needed=f"{recorded!r} of '{self.about['target'].get('name')}' is needed",
                todo="Load the target that was captured, or capture this one.",
            )
        listed = read_entries(folder, int(self.about["shards"]))
        self.entries = [entry for entry in listed if entry.supervised]

    def batch(self, entries: Sequence[Entry]) -> TrainBatch:
        """Read sequences and pad them on the right; on the CPU, states in float32.

        Raises:
            InputError: a shard that holds something else than it should, with the sequence's id.
        """
        kept = [self._whole(entry) for entry in entries]
        layers = [name for name in kept[0] if name.startswith("layer.")]

        def pad(name: str) -> Tensor:
            return pad_sequence([one[name] for one in kept], batch_first=True)

        visual = pad("visual")
        counts = torch.tensor([entry.visual for entry in entries])
        return TrainBatch(
            input_ids=pad("input_ids"),
            embeds=pad("embeds"),
            final=pad("final"),
            mid=pad("mid") if "mid" in kept[0] else None,
            layers={int(name.removeprefix("layer.")): pad(name) for name in layers},
            top_ids=pad("top_ids"),
            top_logits=pad("top_logits"),
            log_sum_exp=pad("log_sum_exp"),
            supervise=pad("supervise"),
            media=pad("media"),
            visual=visual,
            visual_mask=torch.arange(visual.shape[1]) < counts[:, None],
        )

    def token_counts(self) -> Tensor:
        """[V] how often the target said each token in all supervised places."""
        counts = torch.zeros(self._weights.shape.vocab_size, dtype=torch.int64)
        for entry in self.entries:
            said = read_lesson(self.folder, entry)["top_ids"][:, 0].long()
            counts += torch.bincount(said, minlength=len(counts))
        return counts

    def sequence(self, entry: Entry) -> dict[str, Tensor]:
        """One sequence's tensors by field name, states in float32, with `embeds`; layers as
        `layer.<index>`, and what only supervised positions have as rows of those alone.

        Raises:
            InputError: a shard that holds something else than it should, with the sequence's id.
        """
        try:
            kept = read_lesson(self.folder, entry)
            kept = {
                name: value.float() if value.is_floating_point() else value
                for name, value in kept.items()
            }
            table, image_id = self._weights.embedding, self.about["image_token_id"]
            kept["embeds"] = embeddings(kept["input_ids"].long(), table, kept["visual"], image_id)
            kept["embeds"] = kept["embeds"].float().cpu()
            if len(kept["top_ids"]) != int(kept["supervise"].sum()):
                raise InputError(
                    "its rows", found="too many or few", needed="one each", todo="Capture again."
                )
        except (KeyError, RuntimeError, IndexError, InputError) as error:
            raise InputError(
                f"sequence '{entry.id}' in shard {entry.shard} of '{self.folder}'",
                found=f"{error!r}",
                needed="tensors as capture writes them are needed",
                todo="Remove that shard and capture again; the others are kept.",
            ) from error
        return kept

    def _whole(self, entry: Entry) -> dict[str, Tensor]:
        """A sequence with one row for every position, zeros where nothing is supervised."""
        kept = self.sequence(entry)
        for name in ("mid", "top_ids", "top_logits", "log_sum_exp"):
            if name in kept:
                whole = kept[name].new_zeros(entry.length, *kept[name].shape[1:])
                whole[kept["supervise"]] = kept[name]
                kept[name] = whole
        kept["input_ids"], kept["top_ids"] = kept["input_ids"].long(), kept["top_ids"].long()
        return kept


def split(entries: Sequence[Entry], validation: int) -> tuple[list[Entry], list[Entry]]:
    """Training and validation sequences; the latter evenly spaced, so that every part of a data set
    that is sorted by source is in both.
    """
    if not validation:
        return list(entries), []
    step = len(entries) / validation
    held = {int(step * index) for index in range(validation)}
    return (
        [entry for index, entry in enumerate(entries) if index not in held],
        [entry for index, entry in enumerate(entries) if index in held],
    )


class Order:
    """Which sequences each update sees."""

    def __init__(self, entries: Sequence[Entry], *, batch: int, seed: int) -> None:
        """Prepare.

        Args:
            entries: to learn from; at least `batch` of them.
            batch: sequences an update, over all processes.
            seed: of all shuffling.
        """
        self._entries, self._batch, self._seed = list(entries), batch, seed
        self.per_epoch = len(self._entries) // batch
        self._epoch, self._groups = -1, [[]]  # type: tuple[int, list[list[Entry]]]

    def update(self, number: int) -> list[Entry]:
        """[batch] sequences of an update, by length; each epoch takes every sequence once, but for
        a rest smaller than a batch.
        """
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._groups = epoch, self._shuffled(epoch)
        return self._groups[place]

    def mixed(self, number: int, share: float) -> list[Entry]:
        """[batch] sequences of an update of which a share has pictures (MSD's curriculum); both
        kinds are drawn anew for each update.
        """
        rng = random.Random(f"{self._seed}/mixed/{number}")
        seeing = [entry for entry in self._entries if entry.visual]
        text = [entry for entry in self._entries if not entry.visual]
        count = round(share * self._batch)
        chosen = [rng.choice(seeing) for _ in range(count)]
        chosen += [rng.choice(text) for _ in range(self._batch - count)]
        return sorted(chosen, key=lambda entry: entry.length)

    def _shuffled(self, epoch: int) -> list[list[Entry]]:
        rng = random.Random(f"{self._seed}/{epoch}")
        entries = self._entries.copy()
        rng.shuffle(entries)
        groups: list[list[Entry]] = []
        span = _WINDOW * self._batch
        for start in range(0, self.per_epoch * self._batch, span):
            stop = min(start + span, self.per_epoch * self._batch)
            window = sorted(entries[start:stop], key=lambda entry: entry.length)
            cut = [window[at : at + self._batch] for at in range(0, len(window), self._batch)]
            rng.shuffle(cut)
            groups += cut
        return groups

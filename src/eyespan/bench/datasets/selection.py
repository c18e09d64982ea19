"""Which inputs a run is about: drawn once, written down with hashes, and read again ever after.

A figure is only comparable with another one on the same inputs. So a selection is a file: rows, ids
and picture hashes in order. A run that finds one uses it, and refuses when the set behind it has
changed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from eyespan.bench.datasets.record import Record, Source, cluster_of, image_hash
from eyespan.bench.manifest import write_json
from eyespan.errors import ConfigError, EyespanError, InputError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """One input of a selection.

    Attributes:
        row: its place in the set.
        id: as the set calls it.
        images: hashes of its pictures.
        questions: hash of its questions.
        problem: why it cannot be used, or None; such an input is recorded as failed.
    """

    row: int
    id: str
    images: tuple[str, ...] = ()
    questions: str = ""
    problem: str | None = None

    @property
    def cluster(self) -> str:
        """Inputs of one picture are resampled together."""
        return cluster_of(self.images, self.id)


@dataclass(frozen=True, slots=True)
class Selection:
    """The inputs of one set that a run uses.

    Attributes:
        dataset: name of the set.
        seed: it was drawn with.
        inputs: in the order of drawing.
        warm_up: further inputs that are not measured.
    """

    dataset: str
    seed: int
    inputs: tuple[Chosen, ...]
    warm_up: tuple[Chosen, ...]


def select(
    source: Source, *, inputs: int, warm_up: int, seed: int, per_category: int = 0
) -> Selection:
    """Draw inputs; those for warming up come after, or again from the front of a small set.

    Args:
        source: the set.
        inputs: most that are measured.
        warm_up: most of the others.
        seed: of the order, where the set is shuffled.
        per_category: most that are measured of each category; 0 is any number.

    Raises:
        InputError: the set has no input.
        ConfigError: `per_category` with a set that has no end, where it may never be filled.
    """
    if per_category and source.size is None:
        raise ConfigError(
            "per_category",
            found=f"dataset '{source.name}' has no end",
            needed="a set that can be looked through is needed",
            todo="Leave it out for this set.",
        )
    measured: list[Chosen] = []
    rest: list[Chosen] = []
    held: Counter[str | None] = Counter()
    for chosen, category in _draw(source, seed):
        full = per_category and category is not None and held[category] == per_category
        if len(measured) < inputs and not full:
            measured.append(chosen)
            held[category] += 1
        elif len(rest) < warm_up:
            rest.append(chosen)
        if len(measured) == inputs and len(rest) == warm_up:
            break
    if not measured:
        raise InputError(
            f"dataset '{source.name}'",
            found="no input in it",
            needed="at least one is needed",
            todo="Check the files.",
        )
    usable = [one for one in measured if one.problem is None]
    rest = [one for one in rest if one.problem is None] or usable[:warm_up]
    return Selection(source.name, seed, tuple(measured), tuple(rest))


def _draw(source: Source, seed: int) -> Iterator[tuple[Chosen, str | None]]:
    """Inputs and their categories (None: it cannot be read), without end where the set has none."""
    rows: Any = count() if source.size is None else range(source.size)
    if source.shuffled and source.size is not None:
        rows = random.Random(f"{source.name}/{seed}").sample(range(source.size), source.size)
    ids: set[str] = set()
    for row in rows:
        found = _look(source, row)
        if found is not None:
            chosen, category = found
            if chosen.id in ids:  # results are filed by id
                chosen = replace(chosen, id=_apart(chosen.id, row))
            ids.add(chosen.id)
            yield chosen, category


def _apart(name: str, row: int) -> str:
    """The id of an input whose set calls another one the same."""
    return f"{name}#{row}"


def _look(source: Source, row: int) -> tuple[Chosen, str | None] | None:
    try:
        record = source.record(row)
        return None if record is None else (_describe(row, record), record.category)
    except EyespanError as error:
        return Chosen(row, f"row {row}", problem=str(error)), None


def _describe(row: int, record: Record) -> Chosen:
    text = json.dumps(record.turns, ensure_ascii=False).encode("utf-8", "surrogatepass")
    hashes = tuple(image_hash(picture) for picture in record.images)
    return Chosen(row, record.id, hashes, sha256(text).hexdigest()[:16])


def load_selection(
    file: Path, source: Source, *, inputs: int, warm_up: int, seed: int, per_category: int = 0
) -> Selection:
    """The selection that a file holds, or a new one, which is written there; see `select`.

    Raises:
        InputError: a damaged file, or one drawn with another size or seed.
        ConfigError: see `select`.
        OutputError: it cannot be written.
    """
    sizes = [inputs, warm_up] + ([per_category] if per_category else [])
    if not file.exists():
        made = select(source, inputs=inputs, warm_up=warm_up, seed=seed, per_category=per_category)
        about = {"version": VERSION, "asked": sizes, "origin": source.origin}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {**about, **asdict(made)})
        return made
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        if held["version"] != VERSION:
            raise ValueError(f"version {held['version']}")
        read = Selection(
            held["dataset"], held["seed"], _chosen(held["inputs"]), _chosen(held["warm_up"])
        )
        asked = [int(size) for size in held["asked"]]
        drawn = _words(*asked)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _mismatch(file, f"it cannot be read ({error})") from error
    if (read.dataset, read.seed, asked) != (source.name, seed, sizes):
        raise _mismatch(file, f"it holds {drawn} of '{read.dataset}' drawn with seed {read.seed}")
    return read


def _words(inputs: int, warm_up: int, per_category: int = 0) -> str:
    """The sizes that a selection was drawn with, for people."""
    most = f", at most {per_category} of a category" if per_category else ""
    return f"{inputs} inputs{most}, and {warm_up} for warming up"


def repeated(selections: Iterable[Selection]) -> int:
    """Inputs whose pictures and questions an earlier one has too. Methods that remember recall its
    answer, which says nothing about inputs that are new.
    """
    seen: set[tuple[tuple[str, ...], str]] = set()
    count = 0
    for one in (one for selection in selections for one in selection.inputs):
        if one.problem is None:
            count += (one.images, one.questions) in seen
            seen.add((one.images, one.questions))
    return count


def _chosen(lines: list[dict[str, Any]]) -> tuple[Chosen, ...]:
    return tuple(Chosen(**{**line, "images": tuple(line["images"])}) for line in lines)


def record_of(source: Source, chosen: Chosen) -> Record:
    """The input behind an entry.

    Raises:
        InputError: it was unusable when it was drawn, or is no longer what it was then.
    """
    if chosen.problem is not None:
        raise InputError(
            f"input {chosen.id} of '{source.name}'",
            found=chosen.problem,
            needed="a usable input is needed",
            todo="Correct the set.",
        )
    record = source.record(chosen.row)
    if record is None or not _same(_describe(chosen.row, record), chosen):
        raise InputError(
            f"input {chosen.id} of '{source.name}'",
            found="its pictures or questions are not those that the run's manifest lists",
            needed="the set as it was when the manifest was written is needed",
            todo="Restore the set, or start a new run in another folder.",
        )
    return record


def _same(found: Chosen, chosen: Chosen) -> bool:
    """Whether a row is still the input that was chosen."""
    known = (chosen.images, chosen.questions) == (found.images, found.questions)
    return known and chosen.id in (found.id, _apart(found.id, found.row))


def _mismatch(file: Path, found: str) -> InputError:
    return InputError(
        f"input manifest {file}",
        found=found,
        needed="the manifest of this very run is needed",
        todo="Use another --out folder, or delete the file to draw anew.",
    )

"""What drafters remember, in the form in which it goes to a file and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan._core import RowMap

Tensors = Mapping[str, npt.NDArray[Any]]


class Memory(NamedTuple):
    """What one memory scope holds.

    Attributes:
        kind: what sort of memory it is; readers take their own sort only.
        settings: what its reader must have set alike, JSON-ready.
        tensors: arrays by name.
    """

    kind: str
    settings: Mapping[str, Any]
    tensors: Tensors


def check_memory(memory: Memory, kind: str, settings: Mapping[str, Any]) -> None:
    """Refuse a memory of another sort, or one that was written under other settings.

    Raises:
        ValueError: naming what differs.
    """
    if memory.kind != kind:
        raise ValueError(f"it holds {memory.kind!r}, not {kind!r}")
    for name, needed in settings.items():
        if memory.settings.get(name) != needed:
            raise ValueError(f"{name} was {memory.settings.get(name)!r}, not {needed!r}")


def ids_of(memory: Memory, name: str, lowest: int, beyond: int) -> npt.NDArray[np.int32]:
    """An array of ids from a memory.

    Raises:
        ValueError, KeyError: it is missing, no array of int32, or holds ids that are not in
            [lowest, beyond).
    """
    ids = memory.tensors[name]
    if ids.dtype != np.int32:
        raise ValueError(f"'{name}' holds {ids.dtype}, not ids")
    if ids.size and not lowest <= int(ids.min()) <= int(ids.max()) < beyond:
        raise ValueError(f"'{name}' holds ids outside the vocabulary")
    return ids


def rows_out(rows: RowMap, name: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a map of prediction rows, all their names beginning with `name`."""
    arrays: tuple[npt.NDArray[Any], ...] = rows.export_rows()
    return {f"{name}.{field}": array for field, array in zip(_FIELDS, arrays, strict=True)}


def rows_in(memory: Memory, name: str, rows: RowMap, vocab_size: int) -> None:
    """Fill an empty map; more rows than it holds lose the least recently written ones.

    Raises:
        ValueError, KeyError, TypeError: the arrays are no rows of this vocabulary.
    """
    ids_of(memory, f"{name}.ids", -1, vocab_size)  # -1 fills a row up
    keys, ids, probs, confidences = (memory.tensors[f"{name}.{field}"] for field in _FIELDS)
    rows.import_rows(keys, ids, probs, confidences)


_FIELDS = ("keys", "ids", "probs", "confidences")

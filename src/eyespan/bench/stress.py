"""A memory filled to the vocabulary (table 11): how large it is, how fast it answers.

Every filling has a process of its own: what one has left behind is not counted for the next.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from eyespan import _core
from eyespan.types import ROW_SIZE

TREE_NODES = 63
LOOKUPS = 1_000_000
LOOKUP_RUNS = 7
TREES = 2_000


def stress(occupancies: Sequence[int], *, vocab_size: int, seed: int) -> list[dict[str, float]]:
    """A U with made-up rows for so many ids: its bytes, look-ups and trees (appendix G.2).

    Args:
        occupancies: keys of each filling; those above the vocabulary are cut to it.
        vocab_size: ids there are.
        seed: of rows and keys.
    """
    found = []
    sizes = dict.fromkeys(min(keys, vocab_size) for keys in occupancies)
    for keys in sizes:  # an executor each: Python 3.10 has no `max_tasks_per_child`
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            found.append(fresh.submit(_fill, keys, vocab_size, seed).result())
    return found


def _fill(keys: int, vocab_size: int, seed: int) -> dict[str, float]:
    """One filling, measured."""
    rng = np.random.default_rng([seed, keys])
    everyone = rng.permutation(vocab_size)[:keys].astype(np.int32)
    ids = everyone[rng.integers(0, keys, (keys, ROW_SIZE))]
    logits = -np.sort(-rng.normal(0, 3, (keys, ROW_SIZE)).astype(np.float32), axis=1)
    places = np.arange(keys, dtype=np.int32)
    before = _resident()
    u = _core.RowMap(order=1, max_rows=vocab_size)
    memory, none = _core.Memory(u), _core.TokenSet(vocab_size, [])
    memory.seed(everyone, places, ids, logits, none)
    after = _resident()
    asked = rng.choice(everyone, LOOKUPS).astype(np.uint64)
    alone, many = np.min([u.time_lookups(asked) for _ in range(LOOKUP_RUNS)], axis=0)
    roots, rules, spent = rng.choice(everyone, TREES), _core.ProposeRules(), []
    for at in range(TREES):
        began = perf_counter_ns()
        memory.propose(roots[at : at + 1], rules, TREE_NODES, none, none)
        spent.append(perf_counter_ns() - began)
    return {
        "keys": len(u),
        "bytes": u.nbytes,
        "resident_bytes": -1 if before is None or after is None else after - before,
        "lookup_ns": float(many),
        "lookup_alone_ns": float(alone),
        "tree_us": float(np.median(spent)) / 1e3,
    }


def _resident() -> int | None:
    """Bytes of this process in memory; None where the system does not tell."""
    try:
        return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None

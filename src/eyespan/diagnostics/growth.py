"""How the persistent map grows while recorded requests are replayed over and over (RECAP figure 5).

The pool is shuffled anew at each pass, so the curve shows replacement on a fixed pool, not what
unseen requests would add (appendix G.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from eyespan._core import Memory, RowMap, TokenSet
from eyespan.diagnostics.recorded import Recorded
from eyespan.drafters._recap_config import RecapConfig

SEEDS = (17, 29, 43)
"""Orders of the pool (appendix D)."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One order's curve.

    Attributes:
        requests: replayed so far, at each mark.
        rows: keys of U then.
        mib: MiB that U has allocated then.
        propose_ns, refresh_ns: mean host time of an operation since the mark before.
    """

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    mib: tuple[float, ...]
    propose_ns: tuple[float, ...]
    refresh_ns: tuple[float, ...]


def marks(requests: int) -> list[int]:
    """1, 2, 5, 10, ... up to `requests`, which is the last."""
    steps = [step * 10**power for power in range(9) for step in (1, 2, 5)]
    return [*(step for step in steps if step < requests), requests]


def grow(pool: Sequence[Recorded], vocab_size: int, *, requests: int, seed: int) -> Growth:
    """Replay requests of a pool in shuffled passes, every recorded pack refreshing the maps.

    Args:
        pool: recorded requests with rows.
        vocab_size: ids of the recorded target.
        requests: how many to replay.
        seed: of the order.
    """
    config, rng = RecapConfig(), np.random.default_rng(seed)
    rules = config.rules()
    u = RowMap(order=1, max_rows=min(config.max_rows, vocab_size))
    stops, order = marks(requests), list[int]()
    curve: list[tuple[int, int, float, float, float]] = []
    spent, calls = [0, 0], 0
    for number in range(1, requests + 1):
        if not order:
            order = [int(at) for at in rng.permutation(len(pool))]
        one = pool[order.pop()]
        media = TokenSet(vocab_size, sorted(one.request.media_ids))
        eos = TokenSet(vocab_size, sorted(one.request.eos_ids))
        c, g = RowMap(order=2, max_rows=config.max_rows), RowMap(order=3, max_rows=config.max_rows)
        memory = Memory(u, c, g)
        seeds = one.seeds
        memory.seed(one.request.prompt_ids, seeds.at, seeds.ids, seeds.logits, media)
        for each in one.rounds:
            if each.row_ids is None or each.row_logits is None:
                continue
            prefix = one.prefix(each.root)
            begun = perf_counter_ns()
            memory.propose(prefix[-3:], rules, config.nodes, media, eos)
            between = perf_counter_ns()
            memory.refresh(
                prefix[-3:-1], each.tokens, each.parents, each.row_ids, each.row_logits, media
            )
            spent[0] += between - begun
            spent[1] += perf_counter_ns() - between
            calls += 1
        if number == stops[len(curve)]:
            times = [total / max(calls, 1) for total in spent]
            curve.append((number, len(u), u.nbytes / 2**20, times[0], times[1]))
            spent, calls = [0, 0], 0
    return Growth(*(tuple(values) for values in zip(*curve, strict=True)))

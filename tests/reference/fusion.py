"""Twin of cpp/src/fusion: equations 4 to 6, in the order in which the paper writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.rows import ROW_SIZE, Row


def fuse(rows: Sequence[Row], rule: str, priors: Sequence[float]) -> list[tuple[int, float]]:
    """(token, q) by descending q; `rows` most specific first."""
    if not rows:
        return []
    chosen: Row | None = None
    if len(rows) == 1 or rule == "backoff":
        chosen = rows[0]
    elif rule == "gate":
        chosen = max(rows, key=lambda row: row.confidence)  # the first of equals
    if chosen is not None:
        return list(zip(chosen.ids, chosen.probs, strict=True))

    alpha = priors if rule in ("entropy", "fixed_prior") else (1.0, 1.0, 1.0)
    weights = [
        prior * (row.confidence if rule in ("entropy", "no_prior") else 1.0)
        for prior, row in zip(alpha, rows, strict=False)
    ]
    total = 0.0
    for weight in weights:
        total += weight
    mass: dict[int, float] = {}  # in the order in which the walk sees tokens
    for row, weight in zip(rows, weights, strict=True):
        for token, p in zip(row.ids, row.probs, strict=True):
            mass[token] = mass.get(token, 0.0) + (weight / total) * p
    best = sorted(mass.items(), key=lambda item: -item[1])[:ROW_SIZE]
    total = 0.0
    for _, m in best:
        total += m
    return [(token, m / total) for token, m in best]

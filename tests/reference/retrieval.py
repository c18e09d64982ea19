"""FOVEA's retrieval (eq. 5-7), one node and one entry at a time."""

from __future__ import annotations

import math

from eyespan.drafters._visual_memory import Select


def select_one(
    scores: list[float], valid: list[bool], rule: Select, lots: list[float] | None = None
) -> list[float]:
    """Weights of the entries that one node takes; of equal ones the earlier ranks first."""
    there = [at for at in range(len(scores)) if valid[at]]
    if not there:
        return [0.0] * len(scores)
    ranks = scores if lots is None else lots
    ranked = sorted(there, key=lambda at: (-ranks[at], at))
    highest = max(scores[at] for at in there)
    mass = {at: math.exp(scores[at] - highest) for at in there}
    whole = sum(mass.values())
    if rule.retrieval == "dense":
        count = len(there)
    elif rule.retrieval == "top_k":
        count = min(len(there), rule.top_k)
    else:
        held, raw = 0.0, 0
        for at in ranked:
            raw += 1
            held += mass[at] / whole
            if held >= rule.mass:
                break
        count = min(len(there), rule.k_max, max(rule.k_min, raw))
    taken = ranked[:count]
    kept = sum(mass[at] for at in taken)
    return [mass[at] / kept if at in taken else 0.0 for at in range(len(scores))]

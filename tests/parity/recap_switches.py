"""Every switch of RECAP, as option sets that the trace tests run."""

from __future__ import annotations

from typing import Any

SWITCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "U": {"orders": "U"},
    "U+C": {"orders": "U+C"},
    "fixed_prior": {"fusion": "fixed_prior"},
    "no_prior": {"fusion": "no_prior"},
    "uniform": {"fusion": "uniform"},
    "gate": {"fusion": "gate"},
    "backoff": {"fusion": "backoff"},
    "soft": {"priors": "soft"},
    "sharp": {"priors": "sharp"},
    "own priors": {"priors": (0.5, 0.4, 0.1)},
    "flat eta": {"eta": (0.9,)},
    "small": {"nodes": 5, "width": 2, "depth": 3},
    "fixed search": {"search": "fixed"},
    "no suffix": {"suffix_tokens": 0},
    "long suffix": {"suffix_tokens": 12, "suffix_min_match": 2},
    "earliest": {"suffix_occurrence": "earliest"},
    "suffix inside": {"suffix_inside_budget": True},
    "contexts seeded": {"seed_context": True},
    "evicting": {"max_rows": 20},
    "short text": {"max_suffix_tokens": 16},
    "per request": {"persist": "request"},
}

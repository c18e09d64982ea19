"""RECAP's switches, their ranges, and the part of them that the core's search reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from eyespan import _core
from eyespan.config import check_choice, check_whole, refuse
from eyespan.types import MAX_PACK, ROW_SIZE

Orders = Literal["U", "U+C", "U+C+G"]
FusionRule = Literal["entropy", "fixed_prior", "no_prior", "uniform", "gate", "backoff"]
PriorSet = Literal["default", "soft", "sharp"]
Search = Literal["best_first", "fixed"]
Occurrence = Literal["latest", "earliest"]
Persist = Literal["stream", "request", "task"]
Fallback = Literal["none", "recency", "semantic"]

PRIORS: dict[str, tuple[float, float, float]] = {
    "default": (0.70, 0.20, 0.10),
    "soft": (0.55, 0.30, 0.15),
    "sharp": (0.85, 0.10, 0.05),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecapConfig:
    """Every switch of the method. Defaults are the paper's (appendix A) where it gives one.

    Attributes:
        row_size: predictions kept at a position, the paper's K. The core is built for 8.
        orders: which maps exist (section 3.3).
        fusion: how rows that answer one context are weighted (section 3.4, appendix I).
        priors: weights by specificity among the available rows, the paper's alpha: a name or three
            numbers.
        eta: what a path's score is multiplied by at depth 1, 2, ...; the last one repeats (eq. 8).
        nodes: of a tree besides root and suffix nodes (the paper's node budget).
        width: most children of a node.
        depth: longest path.
        search: "best_first", or "fixed", the control of table 4: the published static tree of Token
            Recycling (80 nodes), filled level by level and cut at `nodes`.
        suffix_tokens: longest continuation taken from the text itself; 0 turns it off.
        suffix_reach: the same where the budget rule keeps only what pays (`budget="auto"`), if that
            is more: a text that quotes another goes on for longer than 4 tokens. Ours.
        suffix_min_match: shortest match worth continuing.
        suffix_occurrence: which earlier occurrence of the match is continued.
        suffix_inside_budget: whether suffix nodes count within `nodes` (controls of table 7).
        seed_context: whether the prompt's rows also seed C and G.
        max_rows: most rows a map holds; the least recently written makes room.
        max_suffix_tokens: most tokens the suffix automaton keeps; then the recent half stays.
        persist: how long U lives: the whole "stream", one "request", or until `new_task`
            (appendix D).
        max_scopes: most memory scopes kept; the least recently used is forgotten.
        conversation: whether C and G live on when a request's prompt continues the last one of its
            conversation (of its scope, where requests name none) by text alone. The paper starts
            them empty.
        root_fallback: what stands in when no map answers at the root (appendix H): nothing, the
            latest row, or up to three rows with similar predecessor states.
    """

    row_size: int = ROW_SIZE
    orders: Orders = "U+C+G"
    fusion: FusionRule = "entropy"
    priors: PriorSet | tuple[float, ...] = "default"
    eta: tuple[float, ...] = (0.68, 0.63, 0.50, 0.43, 0.40, 0.38)
    nodes: int = 63
    width: int = 8
    depth: int = 10
    search: Search = "best_first"
    suffix_tokens: int = 4
    suffix_reach: int = 16
    suffix_min_match: int = 1
    suffix_occurrence: Occurrence = "latest"
    suffix_inside_budget: bool = False
    seed_context: bool = False
    max_rows: int = 1 << 18
    max_suffix_tokens: int = 1 << 16
    persist: Persist = "stream"
    max_scopes: int = 64
    conversation: bool = False
    root_fallback: Fallback = "none"

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_choice("recap", self, _CHOICES)
        check_whole("recap", self, _RANGES)
        for field in _SWITCHES:
            if type(getattr(self, field)) is not bool:
                refuse("recap", field, getattr(self, field), "true or false")
        for field in ("priors", "eta"):
            value = getattr(self, field)
            if isinstance(value, list):  # configs come from TOML and JSON too
                object.__setattr__(self, field, tuple(value))
        if not _weights(self.eta):
            refuse("recap", "eta", self.eta, "one or more numbers above 0, at most 1")
        if self.priors not in PRIORS and not (_weights(self.priors) and len(self.priors) == 3):
            refuse(
                "recap", "priors", self.priors, f"{', '.join(PRIORS)}, or three numbers in (0, 1]"
            )
        if self.nodes + self.extra_nodes >= MAX_PACK:
            refuse(
                "recap",
                "nodes",
                self.nodes,
                f"less than {MAX_PACK} with suffix_tokens and the root",
            )

    @property
    def extra_nodes(self) -> int:
        """Suffix nodes on top of `nodes`."""
        return 0 if self.suffix_inside_budget else self.suffix_tokens

    def continuation(self, *, cut: bool) -> int:
        """Longest continuation to offer; `cut`: the budget rule will choose among the nodes."""
        if not (cut and self.suffix_tokens):
            return self.suffix_tokens
        room = MAX_PACK - 1 - (0 if self.suffix_inside_budget else self.nodes)
        return max(self.suffix_tokens, min(self.suffix_reach, room))

    def rules(self) -> _core.ProposeRules:
        """The part that the core's search reads."""
        return _core.ProposeRules(
            fusion=_core.Fusion[self.fusion],
            priors=PRIORS[self.priors] if isinstance(self.priors, str) else self.priors,
            eta=self.eta,
            width=self.width,
            depth=self.depth,
            shape=_core.token_recycling_shape() if self.search == "fixed" else (),
            suffix_inside_budget=self.suffix_inside_budget,
        )


_CHOICES = {
    "orders": get_args(Orders),
    "fusion": get_args(FusionRule),
    "search": get_args(Search),
    "suffix_occurrence": get_args(Occurrence),
    "persist": get_args(Persist),
    "root_fallback": get_args(Fallback),
}
_RANGES = {
    "row_size": (ROW_SIZE, ROW_SIZE),
    "nodes": (1, MAX_PACK - 1),
    "width": (1, ROW_SIZE),
    "depth": (1, 21),
    "suffix_tokens": (0, MAX_PACK - 1),
    "suffix_reach": (0, MAX_PACK - 1),
    "suffix_min_match": (1, 1 << 16),
    "max_rows": (1, 1 << 24),
    "max_suffix_tokens": (2, 1 << 24),
    "max_scopes": (1, 1 << 16),
}
_SWITCHES = ("suffix_inside_budget", "seed_context", "conversation")


def _weights(values: object) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) > 0
        and all(type(value) in (int, float) and 0 < value <= 1 for value in values)
    )

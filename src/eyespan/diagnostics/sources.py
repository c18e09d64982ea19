"""U, C and G one by one on recorded answers: which has a row, which row names the next token, and
what the ways of fusing them make of it (RECAP tables 5, 14, 16 and 17, appendices C and I).

Every state asks before it learns. Memory is the compiled core's own, the method's: U lives through
a recording, C and G through a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan._core import Memory, ProposeRules, RowMap, TokenSet
from eyespan.diagnostics.recorded import Recorded, Recording, Rows
from eyespan.drafters._recap_config import PRIORS, RecapConfig
from eyespan.types import ROW_SIZE, Floats, Ints

ORDERS = ("U", "C", "G")
KEY_BITS = 21
"""Bits of a token in a key, the newest in the lowest (`_core.pack_key`)."""
_MASKS = tuple(np.uint64((1 << (KEY_BITS * order)) - 1) for order in (1, 2, 3))

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "RECAP": {},
    "w/o confidence": {"fusion": "fixed_prior"},
    "w/o prior": {"fusion": "no_prior"},
    "Uniform": {"fusion": "uniform"},
    "Confidence gate": {"fusion": "gate"},
    "Specificity backoff": {"fusion": "backoff"},
    "w/o conf., soft prior": {"fusion": "fixed_prior", "priors": "soft"},
    "w/o conf., sharp prior": {"fusion": "fixed_prior", "priors": "sharp"},
}
"""Fusion rules of appendix I, as fields of RECAP's config."""
REFERENCE = "w/o confidence"


class Row(NamedTuple):
    """What one map says after a history."""

    order: int
    ids: list[int]


class Maps:
    """The three maps of the method, open to questions about each.

    Args:
        vocab_size: ids of the recorded target.
        seeded: whether a prompt's rows seed U; without it retrieval begins empty.
    """

    def __init__(self, vocab_size: int, *, seeded: bool) -> None:
        config = RecapConfig()
        self._rows = config.max_rows
        self.u = RowMap(order=1, max_rows=min(self._rows, vocab_size))
        self._seeded, self._vocab_size = seeded, vocab_size

    def open(self, one: Recorded) -> None:
        """Begin a request: C and G are new."""
        self.c = RowMap(order=2, max_rows=self._rows)
        self.g = RowMap(order=3, max_rows=self._rows)
        self.memory = Memory(self.u, self.c, self.g)
        self.media_ids, self.eos_ids = one.request.media_ids, one.request.eos_ids
        self.media = TokenSet(self._vocab_size, sorted(one.request.media_ids))
        self.eos = TokenSet(self._vocab_size, sorted(one.request.eos_ids))
        if self._seeded:
            prompt, seeds = one.request.prompt_ids, one.seeds
            self.memory.seed(prompt, seeds.at, seeds.ids, seeds.logits, self.media)

    def rows(self, prefix: Ints) -> list[Row]:
        """The rows that answer a history, most specific first."""
        text: list[int] = []
        for token in reversed(prefix[-3:].tolist()):
            if token in self.media_ids:
                break
            text.insert(0, token)
        found = []
        for order, kept in ((3, self.g), (2, self.c), (1, self.u)):
            row = kept.get(text[-order:]) if len(text) >= order else None
            if row is not None:
                found.append(Row(order, row[0].tolist()))
        return found

    def candidates(self, prefix: Ints, rules: ProposeRules) -> list[int]:
        """The fused candidates for the next token, at most 8."""
        tokens, _, _, _ = self.memory.propose(prefix[-3:], rules, ROW_SIZE, self.media, self.eos)
        return [int(token) for token in tokens]

    def learn(self, prefix: Ints, rows: Rows, at: int) -> None:
        """Write the row after a history, under all its keys."""
        self.memory.refresh(
            prefix[-3:-1],
            prefix[-1:],
            np.full(1, -1, np.int32),
            rows.ids[at : at + 1],
            rows.logits[at : at + 1],
            self.media,
        )


def one_level(options: Mapping[str, str]) -> ProposeRules:
    """Rules of a look-up without a tree: the root's candidates alone."""
    return RecapConfig(**options, depth=1, suffix_tokens=0).rules()  # type: ignore[arg-type]


@dataclass(slots=True)
class Tally:
    """A share of states, and its parts by group.

    Attributes:
        hits: sum of what was counted (0 or 1 a state; a difference may be -1).
        states: how many states count.
        by_group: both, of each group.
    """

    hits: float = 0
    states: int = 0
    by_group: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, group: str, hit: float) -> None:
        """Count a state."""
        self.hits += hit
        self.states += 1
        total, count = self.by_group.get(group, (0.0, 0.0))
        self.by_group[group] = (total + hit, count + 1)

    @property
    def percent(self) -> float | None:
        """100 times the mean; None without states."""
        return 100.0 * self.hits / self.states if self.states else None


@dataclass(slots=True)
class Coverage:
    """Table 5: of each map, states with a row, and recall among them; and the paired comparison.

    Attributes:
        states: all states.
        recall: by map, over the states that it covers.
        paired: G minus U where both have a row.
    """

    states: int = 0
    recall: dict[str, Tally] = field(default_factory=lambda: {name: Tally() for name in ORDERS})
    paired: Tally = field(default_factory=Tally)

    def percent_covered(self, name: str) -> float | None:
        """Share of states with a row, in percent."""
        return 100.0 * self.recall[name].states / self.states if self.states else None


def coverage(recording: Recording, vocab_size: int, *, seeded: bool) -> Coverage:
    """Ask each map alone at every state of a recording with rows."""
    found, maps = Coverage(), Maps(vocab_size, seeded=seeded)
    for one in recording.requests:
        maps.open(one)
        for state in range(one.states):
            prefix, token = one.prefix(state), int(one.output[state + 1])
            found.states += 1
            hits = {ORDERS[row.order - 1]: token in row.ids for row in maps.rows(prefix)}
            for name, hit in hits.items():
                found.recall[name].add(one.group, hit)
            if "U" in hits and "G" in hits:
                found.paired.add(one.group, hits["G"] - hits["U"])
            maps.learn(prefix, one.rows, state)
    return found


@dataclass(slots=True)
class Fused:
    """Tables 14, 16 and 17: fusion rules on the same rows.

    Attributes:
        recall: by variant, over all states; uncovered ones are misses.
        disputed: of RECAP and of the confidence gate, over the states where two rows differ in
            their first choice; `gain` is the difference.
        gain: RECAP minus the gate on those states.
        weights: by number of available rows (2, 3): sum of the weights by specificity rank.
        calls: by the same, how many fusion calls.
    """

    recall: dict[str, Tally] = field(default_factory=lambda: {name: Tally() for name in VARIANTS})
    disputed: dict[str, Tally] = field(
        default_factory=lambda: {name: Tally() for name in ("RECAP", "Confidence gate")}
    )
    gain: Tally = field(default_factory=Tally)
    weights: dict[int, npt.NDArray[np.float64]] = field(
        default_factory=lambda: {rows: np.zeros(rows) for rows in (2, 3)}
    )
    calls: dict[int, int] = field(default_factory=lambda: {2: 0, 3: 0})


def fusion(recording: Recording, vocab_size: int) -> Fused:
    """Ask all fusion rules at every state; prompts seed U, C and G begin empty."""
    found, maps = Fused(), Maps(vocab_size, seeded=True)
    rules = {name: one_level(options) for name, options in VARIANTS.items()}
    tree = RecapConfig()
    for one in recording.requests:
        maps.open(one)
        for state in range(one.states):
            prefix, token = one.prefix(state), int(one.output[state + 1])
            rows = maps.rows(prefix)
            hits = dict.fromkeys(rules, False)
            if rows:
                hits = {n: token in maps.candidates(prefix, rule) for n, rule in rules.items()}
                count_weights(found, maps, prefix, tree)
            for name, hit in hits.items():
                found.recall[name].add(one.group, hit)
            if len({row.ids[0] for row in rows}) > 1:
                for name, tally in found.disputed.items():
                    tally.add(one.group, hits[name])
                found.gain.add(one.group, hits["RECAP"] - hits["Confidence gate"])
            maps.learn(prefix, one.rows, state)
    return found


def count_weights(found: Fused, maps: Maps, prefix: Ints, config: RecapConfig) -> None:
    """Add the fusion weights of every look-up that a candidate tree takes (table 17)."""
    tokens, parents, _, _ = maps.memory.propose(
        prefix[-3:], config.rules(), config.nodes, maps.media, maps.eos
    )
    contexts = _contexts(prefix, tokens, parents, maps, config.depth)
    confidence = np.full((len(contexts), 3), np.nan)
    for place, kept in enumerate((maps.g, maps.c, maps.u)):
        order = 3 - place
        at = [i for i, (_, known) in enumerate(contexts) if known >= order]
        keys = np.array([contexts[i][0] for i in at], np.uint64) & _MASKS[order - 1]
        confidence[at, place] = _confidences(kept, keys)
    there = ~np.isnan(confidence)
    ranks = np.cumsum(there, axis=1) - 1
    priors = np.array(PRIORS["default"])
    weights = np.where(there, priors[np.maximum(ranks, 0)] * np.nan_to_num(confidence), 0.0)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    for rows in (2, 3):
        chosen = there.sum(axis=1) == rows
        if chosen.any():
            found.weights[rows] += weights[chosen][there[chosen]].reshape(-1, rows).sum(axis=0)
            found.calls[rows] += int(chosen.sum())


def _contexts(
    prefix: Ints, tokens: Ints, parents: Ints, maps: Maps, depth: int
) -> list[tuple[int, int]]:
    """(last three tokens as one number, how many are text) of the root and of every node that is
    asked for children.
    """
    most = (1 << (3 * KEY_BITS)) - 1
    packed, known = 0, 0
    for token in prefix[-3:].tolist():
        media = token in maps.media_ids
        packed, known = (0, 0) if media else ((packed << KEY_BITS | token) & most, known + 1)
    found = [(packed, known)]
    every = [(packed, known, 0)]
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        above, count, level = every[parent + 1]
        node = ((above << KEY_BITS | token) & most, min(count + 1, 3), level + 1)
        every.append(node)
        if level + 1 < depth and token not in maps.eos_ids:
            found.append(node[:2])
    return found


def _confidences(kept: RowMap, keys: npt.NDArray[np.uint64]) -> Floats:
    """[n] confidence of each key's row, NaN where there is none."""
    there, _, _, confidence = kept.get_many(keys)
    by_key = dict(zip(there.tolist(), confidence.tolist(), strict=True))
    return np.array([by_key.get(key, np.nan) for key in keys.tolist()], np.float32)


@dataclass(slots=True)
class Swapped:
    """Appendix C: rows that the request's own picture gave, minus rows that another one gave.

    Attributes:
        own, other: fused recall on the states that both cover.
        gain: the difference, fused and by map ("U", "C", "G"), where both have that row.
    """

    own: Tally = field(default_factory=Tally)
    other: Tally = field(default_factory=Tally)
    gain: dict[str, Tally] = field(
        default_factory=lambda: {name: Tally() for name in ("fused", *ORDERS)}
    )


def swapped(recording: Recording, vocab_size: int) -> Swapped | None:
    """Hold question, answer and states fixed, and change the picture under which earlier rows were
    computed. Memory is the request's own and begins empty. None when no request has such rows.
    """
    found = Swapped()
    rule = one_level({"fusion": "fixed_prior"})
    for one in recording.requests:
        if one.swapped is None:
            continue
        pair = [Maps(vocab_size, seeded=False) for _ in range(2)]
        for maps in pair:
            maps.open(one)
        for state in range(min(one.states, len(one.swapped))):
            prefix, token = one.prefix(state), int(one.output[state + 1])
            rows = [{row.order: row.ids for row in maps.rows(prefix)} for maps in pair]
            if all(rows):
                own, other = (token in maps.candidates(prefix, rule) for maps in pair)
                found.own.add(one.group, own)
                found.other.add(one.group, other)
                found.gain["fused"].add(one.group, own - other)
            for order in rows[0].keys() & rows[1].keys():
                hits = [token in row[order] for row in rows]
                found.gain[ORDERS[order - 1]].add(one.group, hits[0] - hits[1])
            for maps, source in zip(pair, (one.rows, one.swapped), strict=True):
                maps.learn(prefix, source, state)
    return found if found.own.states or any(t.states for t in found.gain.values()) else None


def with_rows(recordings: Sequence[Recording]) -> bool:
    """Whether every request with states has the target's rows."""
    return all(
        len(one.rows) or not one.states for recording in recordings for one in recording.requests
    )

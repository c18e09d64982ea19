"""The whole of RECAP in plain Python, and its replay on recorded traces.

A trace (a JSON object a line: `request`, `prefill`, `step`, ...) holds what the target said. From
that every draft tree and every accepted path follows from the method alone; `replay` computes them.
Root fallbacks are left out: they read hidden states, which no trace holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.reference.fusion import fuse
from tests.reference.packing import pack
from tests.reference.rows import Memory, RowMap
from tests.reference.suffix import SuffixText
from tests.reference.trees import Node, best_first, insert_chain, static

PRIORS = {"default": (0.70, 0.20, 0.10), "soft": (0.55, 0.30, 0.15), "sharp": (0.85, 0.10, 0.05)}

# Token Recycling's published tree: a digit a level, the rank among siblings.
_TREE = """
0 1 2 3 4 5 6 7
00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070
100 101 110 200 300 400 500
0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
00000 00001 00002 00010 00020 00100 01000 10000
000000 000001 000100
"""
PATHS = _TREE.split()
SHAPE = [sum(len(p) == len(at) + 1 and p.startswith(at) for p in PATHS) for at in ["", *PATHS]]


class Session:
    """One request.

    Args:
        config: fields of `RecapConfig` by name.
        u: the scope's map, shared with other requests.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        u: RowMap,
        prompt: Sequence[int],
        rows: Sequence[tuple[int, Sequence[int], Sequence[float]]],
        media: frozenset[int],
        eos: frozenset[int],
    ) -> None:
        self.config, self.media, self.eos = config, media, eos
        extra = config["orders"].count("+")
        self.memory = Memory(
            u,
            RowMap(2, config["max_rows"]) if extra >= 1 else None,
            RowMap(3, config["max_rows"]) if extra >= 2 else None,
        )
        self.memory.seed(prompt, rows, media, contexts=config["seed_context"])
        self.text = SuffixText(config["max_suffix_tokens"])
        self.text.extend(prompt, media)
        self.committed = list(prompt)
        self.indexed = len(prompt)

    def commit(self, tokens: Iterable[int]) -> None:
        """Only committed tokens enter the text, and only after a verify pass: the first token of an
        answer is matched from outside (which differs where the text is full and sheds a half).
        """
        self.committed += tokens

    def propose(self, budget: int | None = None) -> list[Node]:
        """The draft tree after what is committed."""
        config = self.config
        budget = config["nodes"] if budget is None else min(budget, config["nodes"])
        if budget < 1:
            return []
        priors = config["priors"]
        priors = PRIORS[priors] if isinstance(priors, str) else priors

        def expand(path: tuple[int, ...]) -> list[tuple[int, float]]:
            found = self.memory.find([*self.committed, *path], self.media)
            fused = fuse(found, config["fusion"], priors)
            return [item for item in fused if item[0] not in self.media][: config["width"]]

        rules = {"eta": config["eta"], "eos": self.eos}
        if config["search"] == "fixed":
            nodes = static(expand, SHAPE, budget=budget, depth=config["depth"], **rules)
        else:
            nodes = best_first(expand, budget=budget, depth=config["depth"], **rules)
        chain, mass = self.continuation()
        cap = budget if config["suffix_inside_budget"] else None
        return insert_chain(nodes, chain, mass, cap=cap, **rules)

    def continuation(self) -> tuple[list[int], float]:
        """What followed the longest earlier match, and the mass of its tokens."""
        config = self.config
        new = self.committed[self.indexed :]
        length, end = self.text.match(config["suffix_occurrence"], new, self.media)
        if length < config["suffix_min_match"] or not config["suffix_tokens"]:
            return [], 1.0
        tokens = self.text.continuation(length, end, config["suffix_tokens"], new, self.media)
        return tokens, length / (length + 1)

    def observe(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        rows: Sequence[tuple[Sequence[int], Sequence[float]]],
        committed: Iterable[int],
    ) -> None:
        """Learn from one verify pass over a packed tree."""
        self.memory.refresh(self.committed[:-1], tokens, parents, rows, self.media)
        self.commit(committed)
        self.text.extend(self.committed[self.indexed :], self.media)
        self.indexed = len(self.committed)


def accepted_path(
    tokens: Sequence[int], parents: Sequence[int], greedy: Sequence[int]
) -> tuple[list[int], int]:
    """Follow the child that equals the target's token; that path, and the token that ends it."""
    path: list[int] = []
    at = 0
    while True:
        children = [
            i for i, p in enumerate(parents) if p == at and i > 0 and tokens[i] == greedy[at]
        ]
        if not children:
            return path, greedy[at]
        at = children[0]
        path.append(at)


class Round(NamedTuple):
    """What the method does in one round of a trace."""

    tokens: list[int]
    parents: list[int]
    origins: list[str]
    path: list[int]
    next: int


def replay(lines: Iterable[Mapping[str, Any]], u: RowMap | None = None) -> list[list[Round]]:
    """Every request's rounds, from what the target said alone.

    The tree of a round is drafted, never read from the trace; the trace's own tree is used after
    that, to learn from what was verified (they are the same where no budget rule cut it).

    Args:
        lines: the trace's objects, in order.
        u: the shared map; None starts an empty one that lives through the trace.
    """
    out: list[list[Round]] = []
    session: Session | None = None
    request: Mapping[str, Any] = {}
    for line in lines:
        if line["type"] == "request":
            request = line
        elif line["type"] == "prefill":
            config = request["config"]
            if u is None or config["persist"] == "request":
                u = RowMap(1, config["max_rows"])
            session = Session(
                config,
                u=u,
                prompt=request["prompt_ids"],
                rows=line["rows"],
                media=frozenset(request["media_ids"]),
                eos=frozenset(request["eos_ids"]),
            )
            session.commit([line["next"]])
            out.append([])
        elif line["type"] == "step":
            assert session is not None
            nodes = session.propose()
            packed = pack(
                [node.token for node in nodes],
                [node.parent for node in nodes],
                [float(np.float32(node.score)) for node in nodes],  # as a draft carries them
                session.committed[-1],
            )
            sources = [("recap", "suffix")[nodes[at].origin] for at in packed.order]
            tokens, parents = line["tokens"], line["parents"]
            path, after = accepted_path(tokens, parents, [row[0] for row in line["row_ids"]])
            out[-1].append(Round(packed.tokens, packed.parents, ["root", *sources], path, after))
            rows = list(zip(line["row_ids"], line["row_logits"], strict=True))
            kept = [tokens[i] for i in line["accepted"]]
            after_path = [] if line.get("next") is None else [line["next"]]
            session.observe(tokens, parents, rows, [*kept, *after_path])
    return out

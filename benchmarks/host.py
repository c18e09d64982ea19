"""What RECAP's host work costs a round, beside its Python twin: `python -m benchmarks.host`.

A stream of requests runs through the drafter as the engine drives it, with 63 nodes a tree; the
target is made up, so that only host work is timed. Ends in one line for scripts.
"""

from __future__ import annotations

import gc
import platform
import sys
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np
from tests.reference import packing
from tests.reference.recap import Session as TwinSession
from tests.reference.rows import RowMap as TwinMap

from benchmarks.language import Language
from eyespan import _core
from eyespan.drafters.recap import Recap
from eyespan.types import Ints, PackedTree, Prefill, Request, Step, TargetOut, Verdict

VOCAB = 152_064
REQUESTS, PROMPT, ANSWER = 120, 300, 200
WARM_REQUESTS = 60
TWIN_ROUNDS = 40
BUDGET = 63
STAGES = ("propose", "pack", "observe")
TARGETS = {"host_us": 100.0, "full_u_mib": 16.0, "lookup_ns": 60.0}

T = TypeVar("T")


class Laps:
    """Nanoseconds by stage."""

    def __init__(self) -> None:
        self.ns: dict[str, list[int]] = defaultdict(list)

    def time(self, stage: str, call: Callable[..., T], *args: Any) -> T:
        """Run a call and book its time."""
        begin = perf_counter_ns()
        result = call(*args)
        self.ns[stage].append(perf_counter_ns() - begin)
        return result

    def us(self, stage: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[rounds] microseconds."""
        return np.array(self.ns[stage], np.float64) / 1e3

    def total_us(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[rounds] microseconds of all stages of a round together."""
        return np.sum([self.us(stage) for stage in STAGES], axis=0)


def open_request(language: Language, drafter: Recap, name: str) -> tuple[Any, Ints, Prefill]:
    """A session over a random prompt, the prompt, and what its forward brought."""
    prompt = language.words(PROMPT)
    row_ids, row_logits = language.rows(np.append(prompt[:1], prompt[:-1]), prompt)
    _, first = np.unique(prompt, return_index=True)
    first.sort()
    prefill = Prefill(
        next_row_ids=row_ids[-1],
        next_row_logits=row_logits[-1],
        logits=None,
        positions=first.astype(np.int32),
        row_ids=row_ids[first],
        row_logits=row_logits[first],
    )
    request = Request(
        id=name,
        prompt_ids=prompt,
        media_ids=frozenset({VOCAB - 1}),
        eos_ids=frozenset({VOCAB - 2}),
        max_new_tokens=ANSWER,
    )
    return drafter.begin(request, prefill), prompt, prefill


def judge(language: Language, prefix: Ints, tree: PackedTree) -> tuple[TargetOut, Verdict]:
    """What the made-up target says to a packed tree."""
    before = np.where(tree.parents < 0, prefix[-2], tree.tokens[tree.parents])
    ids, logits = language.rows(before, tree.tokens)
    path: list[int] = []
    at = 0
    while True:
        token = language.sample(ids[at], logits[at])
        children = np.flatnonzero((tree.parents == at) & (tree.tokens == token))
        if children.size == 0:
            break
        at = int(children[0])
        path.append(at)
    tokens = (*(int(tree.tokens[node]) for node in path), token)
    return (
        TargetOut(row_ids=ids, row_logits=logits, logits=None),
        Verdict(np.array(path, np.int32), token, tokens),
    )


def pack(tree: Any, root: int) -> PackedTree:
    """As the engine does."""
    return PackedTree(*_core.pack(tree.tokens, tree.parents, tree.scores, root))


def look_up(text: _core.SuffixAutomaton) -> Ints:
    """What the longest earlier match says, as the session asks."""
    return text.continuation(*text.match(), 4)


def stream(language: Language, drafter: Recap) -> tuple[Laps, Laps, dict[str, float]]:
    """Time every round of the later requests; a second clock splits off the suffix automaton."""
    laps, suffix = Laps(), Laps()
    nodes, committed = [], 0
    none = _core.TokenSet(VOCAB, [VOCAB - 1])
    for number in range(REQUESTS):
        session, prompt, prefill = open_request(language, drafter, str(number))
        text = _core.SuffixAutomaton(max_tokens=1 << 16)
        text.extend(prompt, none)
        first = language.sample(prefill.next_row_ids, prefill.next_row_logits)
        prefix = np.append(prompt, np.int32(first))
        text.append(first)
        timed = number >= WARM_REQUESTS
        here, there = (laps, suffix) if timed else (Laps(), Laps())
        while len(prefix) < PROMPT + ANSWER:
            tree = here.time("propose", session.propose, prefix, BUDGET)
            packed = here.time("pack", pack, tree, int(prefix[-1]))
            out, verdict = judge(language, prefix, packed)
            step = Step(prefix, packed, out, verdict)
            here.time("observe", session.observe, step)
            there.time("look-up", look_up, text)
            there.time("update", text.extend, np.array(verdict.tokens, np.int32), none)
            prefix = np.append(prefix, np.array(verdict.tokens, np.int32))
            nodes.append(len(tree))
            committed += len(verdict.tokens)
    facts = {"nodes": float(np.mean(nodes)), "tokens": committed, "tau": committed / len(nodes)}
    return laps, suffix, facts


def twin_stream(language: Language) -> tuple[Laps, Laps]:
    """The core and its twin on the same rounds of one request."""
    drafter = Recap(vocab_size=VOCAB)
    core, twin = Laps(), Laps()
    session, prompt, prefill = open_request(language, drafter, "twin")
    media, eos = frozenset({VOCAB - 1}), frozenset({VOCAB - 2})
    seeds = [
        (int(at), ids.tolist(), logits.tolist())
        for at, ids, logits in zip(
            prefill.positions, prefill.row_ids, prefill.row_logits, strict=True
        )
    ]
    slow = TwinSession(
        drafter.config_dict(),
        u=TwinMap(1, VOCAB),
        prompt=prompt.tolist(),
        rows=seeds,
        media=media,
        eos=eos,
    )
    prefix = np.append(prompt, prefill.next_row_ids[0])
    slow.commit([int(prefix[-1])])
    for _ in range(TWIN_ROUNDS):
        root = int(prefix[-1])
        tree = core.time("propose", session.propose, prefix, BUDGET)
        packed = core.time("pack", pack, tree, root)
        nodes = twin.time("propose", slow.propose)
        columns = (
            [node.token for node in nodes],
            [node.parent for node in nodes],
            [float(np.float32(node.score)) for node in nodes],
        )
        twin_packed = twin.time("pack", packing.pack, *columns, root)
        assert packed.tokens.tolist() == twin_packed.tokens, "the core and its twin differ"
        out, verdict = judge(language, prefix, packed)
        rows = list(zip(out.row_ids.tolist(), out.row_logits.tolist(), strict=True))
        core.time("observe", session.observe, Step(prefix, packed, out, verdict))
        seen = twin_packed.tokens, twin_packed.parents, rows, verdict.tokens
        twin.time("observe", slow.observe, *seen)
        prefix = np.append(prefix, np.array(verdict.tokens, np.int32))
    return core, twin


def full_vocabulary(language: Language) -> tuple[_core.RowMap, Laps, float, float]:
    """A row for every id: the map, trees over it, and nanoseconds a look-up.

    A look-up reads the whole row of a random id. It waits for memory that everything else on the
    machine shares, so the fastest of many runs is the one that measures the map.
    """
    u = _core.RowMap(order=1, max_rows=VOCAB)
    everyone = np.random.default_rng(1).permutation(VOCAB).astype(np.int32)
    ids, logits = language.rows(everyone, everyone)
    memory, none = _core.Memory(u), _core.TokenSet(VOCAB, [])
    memory.seed(everyone, np.arange(VOCAB, dtype=np.int32), ids, logits, none)
    assert len(u) == VOCAB
    rules, laps = _core.ProposeRules(), Laps()
    for at in range(4000):
        laps.time("propose", memory.propose, everyone[at : at + 1], rules, BUDGET, none, none)
    keys = np.random.default_rng(2).integers(0, VOCAB, 1_000_000).astype(np.uint64)
    one, many = np.min([u.time_lookups(keys) for _ in range(15)], axis=0)
    return u, laps, float(one), float(many)


def main() -> None:
    """Print the table and the line."""
    gc.disable()
    language = Language(VOCAB)
    drafter = Recap(vocab_size=VOCAB)
    laps, suffix, facts = stream(language, drafter)
    core, twin = twin_stream(language)
    u, full, lookup_alone_ns, lookup_ns = full_vocabulary(language)
    total = laps.total_us()
    mib, row_bytes = u.nbytes / 2**20, u.nbytes / len(u)
    ratio = float(np.median(twin.total_us()) / np.median(core.total_us()))

    print(
        f"eyespan host work, {platform.processor() or platform.machine()}, Python "
        f"{sys.version.split()[0]}"
    )
    print(
        f"{facts['tokens']:.0f} tokens through U, C, G; {facts['nodes']:.1f} draft nodes a tree, "
        f"tau {facts['tau']:.2f}; {len(total)} rounds timed\n"
    )
    print(f"{'microseconds a round':<40}{'median':>10}{'p95':>10}{'twin':>12}")
    for stage, label in zip(
        STAGES, ("propose", "pack", "observe (refresh, suffix update)"), strict=True
    ):
        row(label, laps.us(stage), float(np.median(twin.us(stage))))
    row("all host stages", total, float(np.median(twin.total_us())))
    row("  of them: suffix look-up", suffix.us("look-up"))
    row("  of them: suffix update", suffix.us("update"))
    row(f"propose over a full U ({VOCAB} rows)", full.us("propose"))
    print(f"\n{'full U':<40}{mib:>10.2f} MiB, {row_bytes:.1f} bytes a row")
    print(f"{'look-up in it, 64 random keys a call':<40}{lookup_ns:>10.1f} ns")
    print(f"{'look-up in it, one key after another':<40}{lookup_alone_ns:>10.1f} ns")
    median, p95 = np.percentile(total, [50, 95])
    seen = {"host_us": median, "full_u_mib": mib, "lookup_ns": lookup_ns}
    for name, limit in TARGETS.items():
        print(
            f"{name:<40}{seen[name]:>10.1f} of {limit:g}: "
            f"{'within' if seen[name] <= limit else 'MISSED'}"
        )
    print(
        f"host_us median={median:.1f} p95={p95:.1f} full_u_mib={mib:.2f} "
        f"lookup_ns={lookup_ns:.1f} twin_ratio={ratio:.0f}"
    )


def row(label: str, us: np.ndarray[Any, Any], twin: float | None = None) -> None:
    """One line of the table."""
    median, p95 = np.percentile(us, [50, 95])
    print(f"{label:<40}{median:>10.1f}{p95:>10.1f}{'' if twin is None else f'{twin:>12.0f}'}")


if __name__ == "__main__":
    main()

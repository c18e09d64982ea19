"""Lookahead: tries of what followed every token, in the prompt and in earlier answers.

RECAP's row "Lookahead 64/12" cites a Jacobi method, but a decoding length of 64 and a branch length
of 12 are parameters of the trie-based framework of the same name, which this is: Zhao et al.,
"Lookahead: An Inference Acceleration Framework for Large Language Model with Lossless Generation
Accuracy", KDD 2024 (arXiv 2312.12728). The whole tree is verified in one pass with its ancestor
mask; some ports send the tree and then check it as a chain.

Two counts rank what followed: how often the request's own prompt has it decides, how often answers
of its memory scope had it breaks ties. The prompt's counts live in the session and end with it.

Where a rule of the public code is an accident, we keep what it does: its fill-up by mixed score
never runs, so that a tree too large keeps only nodes with a high answer count. Ours alone: a text
is cut in two at an end id (a chat's earlier turns stay in use), windows end before a media id, a
scope's tries are bounded as a whole, and a batch shares no decoding length: the engine sizes trees.

`tests/reference/windows.py` is the same method on plain tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from eyespan import _core
from eyespan.config import check_whole, config_of, refuse
from eyespan.drafters.base import Ask, Session
from eyespan.memory import Memory, check_memory, ids_of
from eyespan.scopes import Scopes
from eyespan.types import MAX_PACK, DraftTree, Ints, Needs, Prefill, Request, Step

_MEMORY = "windows of lookahead"
_NODES = ("tokens", "parents", "counts", "touched")

OUTPUT_WEIGHT = 1e-4
"""An answer's count next to a prompt's: enough to break ties, not to outweigh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadConfig:
    """Sizes of trees and stores; defaults are the published ones where there are any.

    Attributes:
        decoding_length: nodes of a tree, root included.
        branch_length: longest path; a window is one token longer.
        max_query: last tokens that are looked up, the longest key first.
        trie_nodes, touched_tries: at a request's end, once windows were added to `touched_tries`
            tries, those of more than `trie_nodes` nodes lose what was seen once, and their other
            counts are halved.
        max_nodes: most nodes of a scope's tries together; then all of them are squeezed that way.
        max_prompt_tokens: most tokens of a prompt that are stored, the last ones.
        max_scopes: most memory scopes kept; the least recently used is forgotten.
    """

    decoding_length: int = 64
    branch_length: int = 12
    max_query: int = 2
    trie_nodes: int = 512
    touched_tries: int = 1024
    max_nodes: int = 1 << 18
    max_prompt_tokens: int = 1 << 15
    max_scopes: int = 64

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole("lookahead", self, _RANGES)
        if self.max_nodes < 2 * (self.branch_length + 1):
            refuse("lookahead", "max_nodes", self.max_nodes, "room for two windows")


_RANGES = {
    "decoding_length": (2, MAX_PACK),
    "branch_length": (1, 64),
    "max_query": (1, 64),
    "trie_nodes": (1, 1 << 24),
    "touched_tries": (1, 1 << 24),
    "max_nodes": (4, 1 << 24),
    "max_prompt_tokens": (1, 1 << 20),
    "max_scopes": (1, 1 << 16),
}


class Lookahead:
    """What requests share: the windows of each memory scope's answers.

    Args:
        vocab_size: ids of the target.
        **options: fields of `LookaheadConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "lookahead"
    needs = Needs()
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        config = self.config = config_of(self.name, LookaheadConfig, options)
        self.vocab_size = vocab_size
        self.fixed_budget = config.decoding_length - 1
        self.rules = _core.LookaheadRules(
            nodes=config.decoding_length, depth=config.branch_length, output_weight=OUTPUT_WEIGHT
        )
        self._answers = Scopes(self._new_answers, config.max_scopes)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session and store the prompt's windows."""
        return LookaheadSession(self, request, self._answers.open(request.scope))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own look-up."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether answers of this scope are remembered."""
        return bool(self._answers.get(scope))

    def export_memory(self, scope: str | None) -> Memory | None:
        """The counted windows of a scope."""
        answers = self._answers.get(scope)
        if not answers:
            return None
        nodes: tuple[Any, ...] = answers.export_nodes()
        return Memory(_MEMORY, self._settings, dict(zip(_NODES, nodes, strict=True)))

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace the windows of a scope.

        Raises:
            ValueError, KeyError, TypeError: no windows of this vocabulary and length, or more than
                `max_nodes`; the memory is then as it was.
        """
        check_memory(memory, _MEMORY, self._settings)
        tokens = ids_of(memory, "tokens", 0, self.vocab_size)
        ids_of(memory, "parents", -1, len(tokens))
        answers = self._new_answers()
        answers.import_nodes(*(memory.tensors[name] for name in _NODES))
        self._answers.put(scope, answers)

    @property
    def _settings(self) -> dict[str, int]:
        return {"branch_length": self.config.branch_length}

    def _new_answers(self) -> _core.WindowTrie:
        config = self.config
        return _core.WindowTrie(
            depth=config.branch_length,
            max_nodes=config.max_nodes,
            trie_nodes=config.trie_nodes,
            touched_tries=config.touched_tries,
        )

    def reset(self) -> None:
        """Forget the answers of every scope, sessions that are still open included."""
        for answers in self._answers:
            answers.clear()
        self._answers.clear()


class LookaheadSession:
    """One request: its prompt's windows, its scope's, and the end of its answer that has not had a
    whole window behind it yet.
    """

    def __init__(self, drafter: Lookahead, request: Request, answers: _core.WindowTrie) -> None:
        config = self._config = drafter.config
        self._rules, self._answers = drafter.rules, answers
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos = _core.TokenSet(drafter.vocab_size, sorted(request.eos_ids))
        self._stored = len(request.prompt_ids)  # windows before it have begun
        # The public code leaves out a prompt's first token, which every prompt begins with.
        prompt = request.prompt_ids[1:][-config.max_prompt_tokens :]
        self._prompt = _core.WindowTrie(
            depth=config.branch_length,
            max_nodes=(len(prompt) + 2) * (config.branch_length + 1),
        )
        self._prompt.add_windows(prompt, len(prompt), self._media, self._eos)

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """What followed the last two tokens, or else the last one."""
        query = prefix[-self._config.max_query :]
        return DraftTree(
            *_core.lookahead(self._prompt, self._answers, query, self._rules, self._media, budget)
        )

    def observe(self, step: Step) -> None:
        """Committed tokens begin a window once it is whole; the rest at the answer's end."""
        tail = np.concatenate(
            [step.prefix[self._stored :], np.array(step.verdict.tokens, np.int32)]
        )
        ended = step.verdict.cut is not None
        starts = len(tail) if ended else max(0, len(tail) - self._config.branch_length)
        self._answers.add_windows(tail, starts, self._media, self._eos)
        self._stored += starts
        if ended:
            self._answers.end_request()

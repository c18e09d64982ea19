"""SuffixDecoding: what followed the text's end before, as often as it did.

Two texts are counted: the request's own (prompt and answer so far) and the answers of earlier
requests of its memory scope. In each, every suffix of the text's end that occurred before gives a
tree of continuations, whose nodes carry the share of their siblings' counts; as many nodes are
taken as the match is long. The tree that expects most accepted tokens is the draft.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", NeurIPS
2025 (arXiv 2411.04975). Defaults are those of vLLM's `suffix` method, which is Arctic Inference's.
Theirs keeps suffix trees of 24 levels; a suffix automaton that counts substrings of 24 tokens holds
the same counts in less room. They divide a child's count by its parent's, we by that of all
siblings, as the paper does, since the text's own end has no continuation yet.

`tests/reference/counts.py` is the same search through plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from eyespan import _core
from eyespan.config import check_choice, check_number, check_whole, config_of, refuse
from eyespan.drafters.base import Ask, Session
from eyespan.memory import Memory, check_memory, ids_of
from eyespan.scopes import Scopes
from eyespan.types import MAX_PACK, DraftTree, Ints, Needs, Prefill, Request, Step

Shape = Literal["tree", "path"]
ORIGINS = ("request", "answers")
_MEMORY = "answers of suffix"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixConfig:
    """How long a match may be, how far to follow it, and what is remembered.

    Attributes:
        max_tree_depth: longest match and continuation together, in tokens.
        max_spec_factor, max_spec_offset: a match of p tokens gives at most factor x p + offset
            nodes.
        min_token_prob: smallest chance of a node, the product of its path's shares.
        shape: a "tree" of the likeliest nodes, or only the likeliest "path".
        global_answers: whether answers of earlier requests of the scope are used.
        max_local_tokens, max_global_tokens: most tokens of a request and of a scope's answers that
            are kept; then the recent half stays.
        max_scopes: most memory scopes kept; the least recently used is forgotten.
    """

    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    shape: Shape = "tree"
    global_answers: bool = True
    max_local_tokens: int = 1 << 16
    max_global_tokens: int = 1 << 17
    max_scopes: int = 64

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_whole("suffix", self, _RANGES)
        check_choice("suffix", self, {"shape": get_args(Shape)})
        check_number("suffix", self, _NUMBERS)
        if type(self.global_answers) is not bool:
            refuse("suffix", "global_answers", self.global_answers, "true or false")
        if self.most_nodes < 1:
            refuse("suffix", "max_spec_offset", self.max_spec_offset, "enough for one node")

    @property
    def most_nodes(self) -> int:
        """Nodes that the longest match may give."""
        nodes = self.max_spec_factor * (self.max_tree_depth - 1) + self.max_spec_offset
        return min(int(nodes + 1e-6), MAX_PACK - 1)

    def rules(self) -> _core.SuffixRules:
        """The part that the core's search reads."""
        return _core.SuffixRules(
            max_factor=self.max_spec_factor,
            max_offset=self.max_spec_offset,
            min_prob=self.min_token_prob,
            max_depth=self.max_tree_depth,
            tree=self.shape == "tree",
        )


_RANGES = {
    "max_tree_depth": (2, MAX_PACK),
    "max_local_tokens": (2, 1 << 24),
    "max_global_tokens": (2, 1 << 24),
    "max_scopes": (1, 1 << 16),
}
_NUMBERS = {
    "max_spec_factor": (0.0, 1000.0),
    "max_spec_offset": (-1000.0, 1000.0),
    "min_token_prob": (0.0, 1.0),
}


class Suffix:
    """What requests share: the counted answers of each memory scope.

    Args:
        vocab_size: ids of the target.
        **options: fields of `SuffixConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "suffix"
    needs = Needs()
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of(self.name, SuffixConfig, options)
        self.vocab_size = vocab_size
        self.rules = self.config.rules()
        self.fixed_budget = self.config.most_nodes
        self._answers = Scopes(self._new_answers, self.config.max_scopes)

    def _new_answers(self) -> _core.SuffixAutomaton:
        return self.counted_text(self.config.max_global_tokens)

    def counted_text(self, max_tokens: int) -> _core.SuffixAutomaton:
        """An empty text that counts as deeply as the rules look."""
        return _core.SuffixAutomaton(max_tokens=max_tokens, count_depth=self.config.max_tree_depth)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session and count the prompt."""
        return SuffixSession(self, request, self._answers.open(request.scope))

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own search."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether answers of this scope are remembered."""
        return bool(self._answers.get(scope))

    def export_memory(self, scope: str | None) -> Memory | None:
        """The answers of a scope, -1 between them: all counts follow from the text."""
        answers = self._answers.get(scope)
        return Memory(_MEMORY, {}, {"text": answers.text()}) if answers else None

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Replace the answers of a scope.

        Raises:
            ValueError, KeyError: no text of this vocabulary; the memory is then as it was.
        """
        check_memory(memory, _MEMORY, {})
        text = ids_of(memory, "text", -1, self.vocab_size)
        if text.ndim != 1:
            raise ValueError(f"a text of shape {text.shape}")
        answers, no_media = self._new_answers(), _core.TokenSet(self.vocab_size, [])
        ends = np.flatnonzero(text < 0)
        for answer in np.split(text, ends + 1):
            whole = len(answer) > 0 and answer[-1] < 0
            answers.extend(answer[:-1] if whole else answer, no_media)
            if whole:
                answers.barrier()
        self._answers.put(scope, answers)

    def reset(self) -> None:
        """Forget the answers of every scope, sessions that are still open included."""
        for answers in self._answers:
            answers.clear()
        self._answers.clear()


class SuffixSession:
    """One request: its counted text, and its scope's answers."""

    def __init__(self, drafter: Suffix, request: Request, answers: _core.SuffixAutomaton) -> None:
        config = drafter.config
        self._rules, self._depth = drafter.rules, config.max_tree_depth
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos = _core.TokenSet(drafter.vocab_size, sorted(request.eos_ids))
        self._answers = answers if config.global_answers else None
        self._text = drafter.counted_text(config.max_local_tokens)
        self._text.extend(request.prompt_ids, self._media)
        self._prompt = self._indexed = len(request.prompt_ids)

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The better guess of the two texts, the request's own on a tie."""
        context = prefix[-self._depth :]
        guess, best, _ = self._guess(self._text, context, budget)
        origin = 0
        if self._answers is not None:
            other, score, _ = self._guess(self._answers, context, budget)
            if score > best:
                guess, origin = other, 1
        tokens, parents, scores = guess
        return DraftTree(tokens, parents, scores, np.full(len(tokens), origin, np.int32), ORIGINS)

    def observe(self, step: Step) -> None:
        """Committed tokens are counted; a finished answer joins those of its scope. One that its
        reader broke off does not.
        """
        tokens = np.array(step.verdict.tokens, np.int32)
        self._text.extend(step.prefix[self._indexed :], self._media)
        self._text.extend(tokens, self._media)
        self._indexed = len(step.prefix) + len(tokens)
        if step.verdict.cut is not None and self._answers is not None:
            self._answers.extend(step.prefix[self._prompt :], self._media)
            self._answers.extend(tokens, self._media)
            self._answers.barrier()

    def _guess(
        self, text: _core.SuffixAutomaton, context: Ints, budget: int
    ) -> tuple[tuple[Any, Any, Any], float, int]:
        return _core.guess_suffix(text, context, self._rules, self._media, self._eos, budget)

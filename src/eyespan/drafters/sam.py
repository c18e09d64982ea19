"""SAM-Decoding: what followed the longest earlier match of the text's end, as one long chain.

A suffix automaton over prompt and answer, and optionally one over a corpus, are followed token by
token. The longer match is continued when it is long enough; else another drafter, by name, may fill
in with a tree.

Hu et al., "SAM Decoding: Speculative Decoding via Suffix Automaton", ACL 2025 (arXiv 2411.10666).
The preset "official" has the rules of the authors' code: the earliest occurrence, traded for one
of a shorter match when too few tokens follow it. The preset "paper" has those of the variant that
RECAP and MMSpec compare with: a draft that grows with the match and no threshold. Both look the
newest token up once, in the right order (the variant's code does it twice). No draft is filled up
with the id 0, and where even the shortest match has too few tokens behind it, those are the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from eyespan import _core
from eyespan.config import check_choice, check_whole, config_of, refuse
from eyespan.corpus import read_corpus
from eyespan.drafters import make_drafter
from eyespan.drafters.base import Ask, Bound, Gate, Remembers, Session, parameters_of
from eyespan.memory import Memory
from eyespan.target.base import Target
from eyespan.types import MAX_PACK, DraftTree, Ints, Prefill, Request, Step

Preset = Literal["official", "paper"]
Occurrence = Literal["earliest", "latest"]

PAPER_GROWTH = 4
"""Tokens that each matched token adds to a draft of the preset "paper"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamConfig:
    """When to trust a match, and how far to follow it.

    Attributes:
        preset: "official" drafts `max_draft` tokens; "paper" drafts min(max_draft, 1 + 4 x match),
            the root's place included.
        min_match: shortest match worth continuing; None takes the preset's, 5 or 1.
        corpus_handicap: tokens taken off a match in the corpus before it is compared.
        max_draft: longest chain.
        occurrence: which earlier occurrence of a match is continued.
        corpus: folder of a corpus (`eyespan corpus build`); "" for none.
        fallback: drafter that is asked when no match is long enough; "none" drafts nothing then.
        max_tokens: most tokens of a request that are indexed; then the recent half stays.
    """

    preset: Preset = "official"
    min_match: int | None = None
    corpus_handicap: int = 5
    max_draft: int = 40
    occurrence: Occurrence = "earliest"
    corpus: str = ""
    fallback: str = "none"
    max_tokens: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse values outside their range, and fill in the preset's.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        choices = {"preset": get_args(Preset), "occurrence": get_args(Occurrence)}
        check_choice("sam", self, choices)
        if self.min_match is None:
            object.__setattr__(self, "min_match", 5 if self.preset == "official" else 1)
        check_whole("sam", self, _RANGES)
        if not isinstance(self.corpus, str):
            refuse("sam", "corpus", self.corpus, "a folder's path, or '' for none")
        if not isinstance(self.fallback, str) or self.fallback == Sam.name:
            refuse("sam", "fallback", self.fallback, "another drafter's name")

    def length(self, match: int) -> int:
        """Tokens to draft from a match, 0 where it is too short."""
        assert self.min_match is not None
        if match < self.min_match:
            return 0
        if self.preset == "paper":
            return min(self.max_draft, 1 + PAPER_GROWTH * match) - 1
        return self.max_draft


_RANGES = {
    "min_match": (1, 1 << 16),
    "corpus_handicap": (0, 1 << 16),
    "max_draft": (2, MAX_PACK - 1),
    "max_tokens": (2, 1 << 24),
}


class Sam:
    """What requests share: the corpus, and what the fallback shares.

    Args:
        vocab_size: ids of the target.
        **options: fields of `SamConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
        InputError: the corpus cannot be used.
    """

    name: ClassVar[str] = "sam"

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        config = self.config = config_of(self.name, SamConfig, options)
        self.vocab_size = vocab_size
        self.fallback = make_drafter(config.fallback, vocab_size=vocab_size)
        if isinstance(self.fallback, Gate):
            refuse("sam", "fallback", config.fallback, "a drafter without a gate of its own")
        self.needs = self.fallback.needs
        self.fixed_budget = max(config.max_draft, self.fallback.fixed_budget)
        self.extra_nodes = self.fallback.extra_nodes
        self.corpus = _automaton_of(config.corpus, vocab_size) if config.corpus else None

    def bind(self, target: Target) -> None:
        """Hand the target on to a fallback that has to know it."""
        if isinstance(self.fallback, Bound):
            self.fallback.bind(target)

    def parameters(self) -> int:
        """Weights of the fallback; chains have none."""
        return parameters_of(self.fallback)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session and index the prompt."""
        return SamSession(self, request, prefill)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Chains where there is a match; the fallback drafts for the rest together."""
        trees = [_session_of(ask).chain(ask.prefix, ask.budget) for ask in asks]
        left = [at for at, tree in enumerate(trees) if len(tree) == 0]
        inner = [asks[at]._replace(session=_session_of(asks[at]).fallback) for at in left]
        for at, tree in zip(left, self.fallback.propose_many(inner), strict=True):
            trees[at] = _behind_chains(tree, self.fallback.name)
        return trees

    def config_dict(self) -> dict[str, object]:
        """Every field of the config, the preset's values filled in."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Whether the fallback remembers anything of this scope; chains share no memory."""
        return self.fallback.is_warm(scope)

    def export_memory(self, scope: str | None) -> Memory | None:
        """What the fallback remembers, if it can say."""
        inner = self.fallback
        return inner.export_memory(scope) if isinstance(inner, Remembers) else None

    def import_memory(self, scope: str | None, memory: Memory) -> None:
        """Hand a memory on.

        Raises:
            ValueError, KeyError, TypeError: the fallback cannot take it; nothing has changed.
        """
        if not isinstance(self.fallback, Remembers):
            raise ValueError(f"'{self.fallback.name}' keeps nothing between requests")
        self.fallback.import_memory(scope, memory)

    def reset(self) -> None:
        """Forget what the fallback shares. The corpus is no memory and stays."""
        self.fallback.reset()


class _Match(NamedTuple):
    """A match, its length as it is compared, and the text that continues it."""

    length: int
    end: int
    text: _core.SuffixAutomaton
    behind: Ints


class SamSession:
    """One request: its automaton, where it stands in the corpus, and the fallback's session."""

    def __init__(self, drafter: Sam, request: Request, prefill: Prefill) -> None:
        self._config, self._corpus = drafter.config, drafter.corpus
        self._occurrence = _core.Occurrence[drafter.config.occurrence]
        self._media = _core.TokenSet(drafter.vocab_size, sorted(request.media_ids))
        self._eos_ids = request.eos_ids
        self._text = _core.SuffixAutomaton(max_tokens=drafter.config.max_tokens)
        self._indexed = 0  # tokens of the prefix that are in the automaton
        self._cursor = (0, 0)  # in the corpus, after as many tokens
        self._index(request.prompt_ids)
        self.fallback = drafter.fallback.begin(request, prefill)
        self._fallback_name = drafter.fallback.name

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The chain of the better match, else the fallback's tree."""
        tree = self.chain(prefix, budget)
        if len(tree):
            return tree
        return _behind_chains(self.fallback.propose(prefix, budget), self._fallback_name)

    def chain(self, prefix: Ints, budget: int) -> DraftTree:
        """What followed the better match; a match of n tokens is trusted like a row that puts
        n / (n + 1) on each next token.
        """
        new = prefix[self._indexed :]
        match = self._better_match(new, min(budget, self._config.max_draft))
        most = min(budget, self._config.length(match.length))
        if most < 1:
            return DraftTree.empty()
        tokens = match.text.continuation(
            match.length, match.end, most, extra=match.behind, media=self._media
        )
        for at, token in enumerate(tokens.tolist()):
            if token in self._eos_ids:
                tokens = tokens[: at + 1]
                break
        trust = np.float32(match.length / (match.length + 1))
        return DraftTree(
            tokens,
            np.arange(-1, len(tokens) - 1, dtype=np.int32),
            trust ** np.arange(1, len(tokens) + 1, dtype=np.float32),
            np.zeros(len(tokens), np.int32),
            (Sam.name,),
        )

    def observe(self, step: Step) -> None:
        """Only committed tokens are indexed."""
        self._index(step.prefix[self._indexed :])
        self._index(np.array(step.verdict.tokens, np.int32))
        self.fallback.observe(step)

    def _better_match(self, new: Ints, wanted: int) -> _Match:
        """The longer match of the two texts, the request's own on a tie.

        The first token of an answer is committed before any round, so that neither has seen it yet.
        """
        room = wanted if self._config.preset == "official" else 0
        length, end = self._text.match(self._occurrence, extra=new, media=self._media, room=room)
        own = _Match(length, end, self._text, new)
        if self._corpus is None:
            return own
        cursor = self._corpus.advance(*self._cursor, new, media=self._media)
        length, end = self._corpus.place(*cursor, self._occurrence, room=room)
        length -= self._config.corpus_handicap
        return _Match(length, end, self._corpus, new[:0]) if length > own.length else own

    def _index(self, tokens: Ints) -> None:
        self._text.extend(tokens, self._media)
        if self._corpus is not None:
            self._cursor = self._corpus.advance(*self._cursor, tokens, media=self._media)
        self._indexed += len(tokens)


def _session_of(ask: Ask) -> SamSession:
    assert isinstance(ask.session, SamSession)
    return ask.session


def _behind_chains(tree: DraftTree, name: str) -> DraftTree:
    """A fallback's tree with its sources numbered behind the chains' own."""
    if tree.origins is None:
        return replace(tree, origins=np.ones(len(tree), np.int32), origin_names=(Sam.name, name))
    return replace(tree, origins=tree.origins + 1, origin_names=(Sam.name, *tree.origin_names))


def _automaton_of(folder: str, vocab_size: int) -> _core.SuffixAutomaton:
    """The automaton over a corpus, documents apart."""
    corpus = read_corpus(folder, vocab_size=vocab_size)
    automaton = _core.SuffixAutomaton(max_tokens=len(corpus.tokens) + len(corpus.starts) + 1)
    no_media = _core.TokenSet(vocab_size, [])
    for document in corpus.documents():
        automaton.extend(document, no_media)
        automaton.barrier()
    return automaton

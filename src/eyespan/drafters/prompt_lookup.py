"""Prompt lookup: what followed the last few tokens the last time they stood in the text.

Four published variants differ in three rules, which are options here: how many tokens must match,
which of several matches counts, and how much must follow it. An index holds one position for every
n-gram, so that a look-up costs the same after a hundred tokens and after a hundred thousand.

The n-grams and drafts of all variants hold no media id: a span of them ends both. Media-aware
means more than a filter here: transformers' own prompt lookup drafts placeholders on vision models
and dies in the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from eyespan.config import check_choice, check_whole, config_of, refuse
from eyespan.drafters.base import Ask, Session
from eyespan.types import MAX_PACK, DraftTree, Ints, Needs, Prefill, Request, Step

Variant = Literal["paper", "original", "transformers", "vllm"]
Occurrence = Literal["latest", "earliest"]


class _Rules(NamedTuple):
    longest: int
    shortest: int
    occurrence: Occurrence
    apart: bool
    whole: bool


VARIANTS: dict[str, _Rules] = {
    "paper": _Rules(4, 4, "latest", apart=True, whole=False),
    "original": _Rules(3, 1, "earliest", apart=True, whole=True),
    "transformers": _Rules(2, 1, "earliest", apart=False, whole=False),
    "vllm": _Rules(5, 5, "earliest", apart=False, whole=False),
}
"""What each variant is known for.

paper: the baseline row of RECAP and MMSpec (appendix A), without its second target forward and
without its rule to end an answer that repeats itself, which would change the text. original:
Saxena's prompt lookup, whose match counts only when a whole draft follows it. transformers:
`prompt_lookup_num_tokens` of `generate()`. vllm: its n-gram proposer; when only one of its two
lengths is given there, both are that.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookupConfig:
    """A variant, and what to change of it; None takes the variant's own value.

    Attributes:
        variant: see `VARIANTS`.
        longest, shortest: n-grams of `longest` tokens are looked up first, then shorter ones.
        draft: most tokens of a draft.
        occurrence: which match is continued when the n-gram stood in the text more than once.
        apart: whether the match must end before the n-gram at the text's end begins. Without it a
            text of one repeated token matches itself one place earlier.
        whole: whether a match counts only when `draft` tokens follow it.
        max_tokens: most tokens that are indexed; then the recent half stays.
    """

    variant: Variant = "paper"
    longest: int | None = None
    shortest: int | None = None
    draft: int = 10
    occurrence: Occurrence | None = None
    apart: bool | None = None
    whole: bool | None = None
    max_tokens: int = 1 << 16

    def __post_init__(self) -> None:
        """Refuse values outside their range, and fill in the variant's.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        check_choice("prompt_lookup", self, {"variant": get_args(Variant)})
        for field, value in VARIANTS[self.variant]._asdict().items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        check_choice("prompt_lookup", self, {"occurrence": get_args(Occurrence)})
        check_whole("prompt_lookup", self, _RANGES)
        for field in ("apart", "whole"):
            if type(getattr(self, field)) is not bool:
                refuse("prompt_lookup", field, getattr(self, field), "true or false")
        if self.lengths == ():
            refuse("prompt_lookup", "shortest", self.shortest, f"at most {self.longest}, `longest`")

    @property
    def lengths(self) -> tuple[int, ...]:
        """n-gram lengths in the order in which they are looked up."""
        assert self.longest is not None
        assert self.shortest is not None
        return tuple(range(self.longest, self.shortest - 1, -1))


_RANGES = {
    "longest": (1, 64),
    "shortest": (1, 64),
    "draft": (1, MAX_PACK - 1),
    "max_tokens": (256, 1 << 24),
}


class PromptLookup:
    """Prompt lookup in one request's own text; requests share nothing.

    Args:
        vocab_size: ids of the target.
        **options: fields of `PromptLookupConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "prompt_lookup"
    needs = Needs()
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of(self.name, PromptLookupConfig, options)
        self.fixed_budget = self.config.draft

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session and index the prompt."""
        return PromptLookupSession(self.config, request)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own look-up."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config, the variant's values filled in."""
        return asdict(self.config)

    def is_warm(self, scope: str | None) -> bool:
        """Never: a memory ends with its request."""
        return False

    def reset(self) -> None:
        """Nothing is shared."""


class PromptLookupSession:
    """One request's index: n-gram -> where it ends, the first or the last time.

    An n-gram is filed once it is known that a text token follows and, with `apart`, once the text
    has moved past it by its own length. What a media id follows is not filed, so that an older
    match with something to say stays reachable.
    """

    def __init__(self, config: PromptLookupConfig, request: Request) -> None:
        self._config = config
        self._media, self._eos = request.media_ids, request.eos_ids
        self._ends: dict[bytes, int] = {}  # key: the n-gram's ids as bytes
        self._start = 0  # tokens before it are forgotten
        self._filed = dict.fromkeys(config.lengths, 0)  # ends before this are filed, by length
        prompt = request.prompt_ids
        if len(prompt) > config.max_tokens:
            self._forget(len(prompt))
        # An answer's first token is committed by now but not handed over; it is taken to be text.
        self._file(prompt[self._start :], self._start, len(prompt) + 1)

    def __len__(self) -> int:
        """n-grams in the index."""
        return len(self._ends)

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """The continuation of the longest match as a chain; a match of n tokens is trusted like a
        row that puts n / (n + 1) on each next token.
        """
        config = self._config
        wanted = min(budget, config.draft)
        for length in config.lengths if wanted > 0 else ():
            end = self._ends.get(prefix[-length:].tobytes())
            if end is None or (config.whole and end + config.draft >= len(prefix)):
                continue
            tokens = self._until_media_or_end(prefix[end + 1 : end + 1 + wanted])
            trust = np.float32(length / (length + 1))
            return DraftTree(
                tokens,
                np.arange(-1, len(tokens) - 1, dtype=np.int32),
                trust ** np.arange(1, len(tokens) + 1, dtype=np.float32),
            )
        return DraftTree.empty()

    def observe(self, step: Step) -> None:
        """Only committed tokens enter the index; what was filed before is not read again."""
        tokens = np.array(step.verdict.tokens, np.int32)
        size = len(step.prefix) + len(tokens)
        if size - self._start > self._config.max_tokens:
            self._forget(size)
        oldest = min(self._filed.values()) - max(self._filed) + 1
        first = max(self._start, oldest)
        self._file(np.concatenate([step.prefix[first:], tokens]), first, size)

    def _until_media_or_end(self, tokens: Ints) -> Ints:
        """Up to the first media id, or to the first end id and with it."""
        for at, token in enumerate(tokens.tolist()):
            if token in self._media:
                return tokens[:at]
            if token in self._eos:
                return tokens[: at + 1]
        return tokens

    def _forget(self, size: int) -> None:
        """Start anew with the recent half of a text of `size` tokens."""
        self._start = size - self._config.max_tokens // 2
        self._filed = dict.fromkeys(self._filed, self._start)
        self._ends.clear()

    def _file(self, tail: Ints, first: int, size: int) -> None:
        """File what a text of `size` tokens allows; `tail` is the text from `first` on."""
        barriers = np.concatenate([[0], np.cumsum(np.isin(tail, list(self._media)))])
        for length, filed in self._filed.items():
            stop = size - (length if self._config.apart else 1)
            ends = np.arange(max(filed, first + length - 1), stop) - first
            next_one = np.minimum(ends + 2, len(tail))  # reaches over the token that follows
            for end in ends[barriers[next_one] == barriers[ends + 1 - length]].tolist():
                gram = tail[end + 1 - length : end + 1].tobytes()
                if self._config.occurrence == "latest":
                    self._ends[gram] = first + end
                else:
                    self._ends.setdefault(gram, first + end)
            self._filed[length] = max(filed, stop)

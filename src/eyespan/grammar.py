"""Answers that follow a grammar: JSON schema, regular expression, EBNF or a choice of texts.

xgrammar turns a grammar into the set of tokens that may come next; the rest is masked out of the
scores before a token is chosen, as plain constrained decoding does it. The matcher moves with the
committed text, one token at a time, so nothing has to be undone when a guess is rejected. Guesses
are tried on a fork of it before they are packed: one that the grammar forbids costs no node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyespan.budget import keep_nodes
from eyespan.errors import ConfigError, UnsupportedRequest, unknown_name
from eyespan.types import DraftTree, Ints

KINDS = ("choice", "ebnf", "json_object", "json_schema", "regex")
MAX_LENGTH = 100_000
"""Characters of a grammar."""
MAX_WHITESPACE = 20
"""Spaces and newlines in a row between the parts of JSON: a model that writes nothing else would
never end.
"""
CACHE_BYTES = 64 << 20
"""Compiled grammars that an engine keeps."""


class Grammars:
    """Compiles grammars for one tokenizer and keeps them in memory, bounded.

    Args:
        tokenizer: of transformers.
        vocab_size: rows of the language-model head.
        eos_ids: ids that end an answer.

    Raises:
        UnsupportedRequest: no tokenizer, no end id, or a tokenizer that xgrammar cannot read.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Collection[int]) -> None:
        xgrammar = _xgrammar()
        if tokenizer is None or not eos_ids:
            raise UnsupportedRequest(
                "a response_format",
                found="no tokenizer" if tokenizer is None else "a model without end ids",
                needed="the text of every id, and an id that ends the answer",
                todo="Load the model together with its tokenizer.",
            )
        try:
            info = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size, stop_token_ids=sorted(eos_ids)
            )
        except (ValueError, RuntimeError, AttributeError) as error:
            raise UnsupportedRequest(
                "a response_format",
                found=_first_line(error),
                needed="a tokenizer that xgrammar can read",
                todo="Use a fast tokenizer.",
            ) from error
        self._compiler = xgrammar.GrammarCompiler(info, cache_limit_bytes=CACHE_BYTES)
        self.vocab_size = vocab_size
        # Special tokens have no text when decoded, whatever their name looks like.
        special = set(tokenizer.all_special_ids) - set(eos_ids)
        self.special = frozenset(token for token in special if token < vocab_size)

    def begin(self, response_format: Mapping[str, Any], prompt_length: int) -> GrammarRun:
        """A matcher for one request.

        Args:
            response_format: {"type": "json_schema", "schema": {...}} (OpenAI's
                {"json_schema": {"schema": {...}}} is read too), {"type": "json_object"},
                {"type": "regex", "regex": "..."}, {"type": "ebnf", "grammar": "root ::= ..."} or
                {"type": "choice", "choices": [...]}. With "after": TEXT the answer is free until
                it has said TEXT, and the grammar begins there.
            prompt_length: tokens before the answer.

        Raises:
            ConfigError: not such a mapping, or not a grammar.
        """
        xgrammar = _xgrammar()
        tag = {"type": "structural_tag", "format": _format_of(response_format)}
        try:
            text = json.dumps(tag)
            if len(text) > MAX_LENGTH:
                raise ValueError(f"{len(text):,} characters, more than {MAX_LENGTH:,}")
            compiled = self._compiler.compile_structural_tag(text)
        except (ValueError, TypeError, RuntimeError, RecursionError) as error:
            raise _bad(_first_line(error), "a grammar that xgrammar can compile") from error
        return GrammarRun(self, xgrammar.GrammarMatcher(compiled), prompt_length)


class GrammarRun:
    """Where one answer stands in its grammar. It is a logits processor and a pruner."""

    def __init__(self, grammars: Grammars, matcher: Any, prompt_length: int) -> None:
        xgrammar = _xgrammar()
        self._matcher, self._read = matcher, prompt_length
        self._special = grammars.special
        self._mask = xgrammar.allocate_token_bitmask(1, grammars.vocab_size)
        self._never = torch.tensor(sorted(grammars.special), dtype=torch.int64)
        self._apply = xgrammar.apply_token_bitmask_inplace

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """[1, P] ids and [1, V] scores -> scores with -inf where the grammar says no."""
        self.follow(ids[0, self._read :].tolist())
        self._matcher.fill_next_token_bitmask(self._mask)
        legal = scores.clone()
        self._apply(legal, self._mask.to(scores.device))
        legal[:, self._never.to(scores.device)] = float("-inf")
        return legal

    def follow(self, tokens: list[int]) -> None:
        """Move over committed tokens that were not seen yet."""
        for token in tokens:
            self._matcher.accept_token(token)
        self._read += len(tokens)

    def prune(self, draft: DraftTree, committed: Ints) -> DraftTree:
        """The nodes of a guess that the grammar allows; below an illegal one nothing is.

        Args:
            draft: parents come before their children.
            committed: [P] ids so far.
        """
        self.follow(committed[self._read :].tolist())
        matchers: dict[int, Any] = {-1: self._matcher}
        for node, (token, parent) in enumerate(
            zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
        ):
            at = matchers.get(parent)
            if at is None or token in self._special or at.is_terminated():
                continue
            fork = at.fork()
            if fork.accept_token(token):
                matchers[node] = fork
        kept = [node for node in matchers if node >= 0]
        if len(kept) == len(draft):
            return draft
        return keep_nodes(draft, np.array(kept, np.int64))


def check_format(response_format: Any) -> None:
    """Refuse what is no response format; costs no tokenizer.

    Raises:
        ConfigError: see `Grammars.begin`.
    """
    _format_of(response_format)


def _format_of(wanted: Any) -> dict[str, Any]:
    """The structural tag of xgrammar for a response format."""
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("type"), str):
        raise _bad(f"{wanted!r:.60}", f"a mapping with a type: {', '.join(KINDS)}")
    kind = wanted["type"]
    if kind not in KINDS:
        raise unknown_name("response_format", kind, KINDS)
    body: dict[str, Any] = _BODIES[kind](wanted)
    after = wanted.get("after")
    if after is None:
        return body
    if not isinstance(after, str) or not after:
        raise _bad(f"after={after!r:.40}", "the text after which the grammar begins")
    free = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": after}
    return {"type": "sequence", "elements": [free, body]}


def _json(wanted: Mapping[str, Any]) -> dict[str, Any]:
    schema = wanted.get("schema", wanted.get("json_schema"))
    if isinstance(schema, Mapping) and "schema" in schema and "schema" not in wanted:
        schema = schema["schema"]  # OpenAI wraps it together with a name
    if not isinstance(schema, (Mapping, bool)):
        raise _bad(f"schema={schema!r:.40}", "a JSON schema as a mapping")
    return _of_schema(schema)


def _of_schema(schema: Any) -> dict[str, Any]:
    tag = {"type": "json_schema", "json_schema": schema}
    return {**tag, "max_whitespace_cnt": MAX_WHITESPACE}


def _text(name: str, kind: str, key: str) -> Any:
    def body(wanted: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(wanted.get(name), str) or not wanted[name]:
            raise _bad(f"{name}={wanted.get(name)!r:.40}", "text")
        return {"type": kind, key: wanted[name]}

    return body


def _choice(wanted: Mapping[str, Any]) -> dict[str, Any]:
    choices = wanted.get("choices")
    if (
        not isinstance(choices, (list, tuple))
        or not choices
        or not all(isinstance(text, str) and text for text in choices)
    ):
        raise _bad(f"choices={choices!r:.40}", "a list of texts")
    return {
        "type": "or",
        "elements": [{"type": "const_string", "value": text} for text in choices],
    }


_BODIES: dict[str, Any] = {
    "choice": _choice,
    "ebnf": _text("grammar", "grammar", "grammar"),
    "json_object": lambda _: _of_schema({"type": "object"}),
    "json_schema": _json,
    "regex": _text("regex", "regex", "pattern"),
}


def _xgrammar() -> Any:
    """The library, loaded on first use.

    Raises:
        UnsupportedRequest: it is not installed.
    """
    try:
        import xgrammar
    except ImportError as error:
        raise UnsupportedRequest(
            "a response_format",
            found="xgrammar is not installed",
            needed="it compiles grammars",
            todo="pip install 'eyespan[grammar]'",
        ) from error
    return xgrammar


def _bad(found: str, needed: str) -> ConfigError:
    return ConfigError(
        "response_format",
        found=found,
        needed=needed,
        todo='For example {"type": "regex", "regex": "[0-9]+"}.',
    )


def _first_line(error: BaseException) -> str:
    text = re.sub(r"^\[[0-9:]+\] \S+: ", "", str(error))  # a time and a place in xgrammar's source
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else repr(error))[:300]

"""Tokenised texts on disk: what a drafter may know before the first request. An artifact of kind
"text corpus" (see `artifacts.py`) with one array of ids and where each document begins.

Only the text is kept. An automaton over it is ten times as large, is built in about a second for a
million tokens, and could not be checked faster than that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eyespan.artifacts import Artifact, read_artifact, write_artifact
from eyespan.errors import InputError
from eyespan.types import Ints

KIND = "text corpus"
MOST_TOKENS = 1 << 27


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents, one behind the other.

    Attributes:
        tokens: [n] ids.
        starts: [d] where each document begins; starts[0] == 0, ascending.
    """

    tokens: Ints
    starts: Ints

    def documents(self) -> list[Ints]:
        """[d] the documents' ids."""
        return np.split(self.tokens, self.starts[1:])


def corpus_of(documents: Sequence[Ints]) -> Corpus:
    """Put documents together; empty ones are left out."""
    kept = [np.asarray(document, np.int32) for document in documents if len(document)]
    starts = np.cumsum([0, *map(len, kept)])[: len(kept)]
    tokens = np.concatenate(kept) if kept else np.empty(0, np.int32)
    return Corpus(tokens, starts.astype(np.int32))


def write_corpus(path: str | os.PathLike[str], corpus: Corpus, *, tokenizer: str) -> None:
    """Write or replace a corpus.

    Args:
        path: its folder; made when missing.
        corpus: what to write.
        tokenizer: whose ids they are, for people.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_artifact(
        path,
        kind=KIND,
        about={
            "tokenizer": tokenizer,
            "documents": len(corpus.starts),
            "tokens": len(corpus.tokens),
        },
        tensors={"tokens": corpus.tokens, "starts": corpus.starts},
    )


def read_corpus(path: str | os.PathLike[str], *, vocab_size: int) -> Corpus:
    """Read a corpus and check it.

    Args:
        path: its folder.
        vocab_size: ids of the target that will read it.

    Raises:
        InputError: damaged, of another shape, or with ids that the target does not have.
    """
    artifact = read_artifact(path, kind=KIND)
    found = _problem(artifact, vocab_size)
    if found:
        raise InputError(
            f"reading a {KIND} from '{os.fspath(path)}'",
            found=found,
            needed="a corpus written with the target's own tokenizer is needed",
            todo="Build it again: eyespan corpus build FILE... --model MODEL --out DIR.",
        )
    return Corpus(artifact.tensors["tokens"], artifact.tensors["starts"])


def _problem(artifact: Artifact, vocab_size: int) -> str:
    """What is wrong with it, or ""."""
    arrays = [artifact.tensors.get(name) for name in ("tokens", "starts")]
    if any(array is None or array.dtype != np.int32 or array.ndim != 1 for array in arrays):
        return "it does not hold two lists of whole numbers, tokens and starts"
    tokens, starts = artifact.tensors["tokens"], artifact.tensors["starts"]
    if not 0 < len(tokens) <= MOST_TOKENS:
        return f"it holds {len(tokens)} tokens, not 1 to {MOST_TOKENS}"
    edges = np.concatenate([starts.astype(np.int64), [len(tokens)]])
    if edges[0] != 0 or (np.diff(edges) <= 0).any():
        return "its documents do not lie one behind the other"
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        return f"it holds ids outside the target's {vocab_size}"
    return ""

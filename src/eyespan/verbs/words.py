"""Token ids as text, from a tokenizer file alone: no model is loaded, and nothing is downloaded
unless the user names a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tokenizers import Tokenizer

from eyespan.demo import MODEL_DIR
from eyespan.errors import InputError

Words: TypeAlias = Callable[[int], str]
"""A token's text in quotes, or its id."""


def words_of(model: str | None, traced: str) -> Words:
    """How to write tokens.

    Args:
        model: what the user named: "demo", a folder or a Hugging Face id; None for nothing.
        traced: the model that the trace names; used when it is the demo or a local folder.

    Raises:
        InputError: the named model has no readable tokenizer.json.
    """
    if model is None and _file(traced) is None:
        return lambda token: f"#{token}"
    tokenizer = tokenizer_of(
        model or traced,
        needed="a tokenizer.json is needed to write ids as text",
        todo="Name the model's folder, or leave --model out to see ids.",
    )
    return lambda token: _quoted(tokenizer, token)


def tokenizer_of(model: str, *, needed: str, todo: str) -> Tokenizer:
    """A model's tokenizer.

    Args:
        model: "demo", a folder or a Hugging Face id.
        needed: what for, the third part of an error's text.
        todo: its fourth part.

    Raises:
        InputError: it has no readable tokenizer.json.
    """
    file = _file(model)
    try:
        return Tokenizer.from_file(str(file)) if file else Tokenizer.from_pretrained(model)
    except Exception as error:  # the library raises bare Exception for a missing or broken file
        raise InputError(
            f"the tokenizer of '{model}'", found=str(error), needed=needed, todo=todo
        ) from error


def _file(model: str) -> Path | None:
    """The model's tokenizer on this machine."""
    file = (MODEL_DIR if model == "demo" else Path(model)) / "tokenizer.json"
    return file if file.is_file() else None


def _quoted(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False)
    return repr(text or tokenizer.id_to_token(token) or f"#{token}")

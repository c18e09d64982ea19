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
    name = model or traced
    file = _file(name)
    if file is None and model is None:
        return lambda token: f"#{token}"
    try:
        tokenizer = Tokenizer.from_file(str(file)) if file else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare Exception for a missing or broken file
        raise InputError(
            f"the tokenizer of '{name}'",
            found=str(error),
            needed="a tokenizer.json is needed to write ids as text",
            todo="Name the model's folder, or leave --model out to see ids.",
        ) from error
    return lambda token: _quoted(tokenizer, token)


def _file(model: str) -> Path | None:
    """The model's tokenizer on this machine."""
    file = (MODEL_DIR if model == "demo" else Path(model)) / "tokenizer.json"
    return file if file.is_file() else None


def _quoted(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False)
    return repr(text or tokenizer.id_to_token(token) or f"#{token}")

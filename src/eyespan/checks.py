"""What callers of an engine may get wrong, refused before anything runs: one check an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyespan.counts import whole
from eyespan.drafters import DRAFTERS
from eyespan.errors import ConfigError, InputError

MAX_NEW_TOKENS = 1_000_000


def check_parts(target: object, drafter: object, options: Mapping[str, Any]) -> None:
    """Refuse what is no target, no drafter, or options that would go nowhere.

    Args:
        target: what an engine is to run.
        drafter: a name, or a drafter object.
        options: of a drafter by name.

    Raises:
        InputError: no target.
        ConfigError: no drafter, or options beside one that is made already.
    """
    if not hasattr(target, "info"):
        raise InputError(
            f"an engine for {target!r:.60}",
            found=f"a {type(target).__name__}",
            needed="a target, as `load_target` returns it, is needed",
            todo="Use `eyespan.load(...)`.",
        )
    if isinstance(drafter, str):
        return
    if isinstance(drafter, type) or not hasattr(drafter, "propose_many"):
        raise ConfigError(
            f"drafter={drafter!r:.60}",
            found=f"a {type(drafter).__name__}",
            needed="a name or a drafter object is needed",
            todo=f"Use one of {', '.join(DRAFTERS)}; 'none' decodes plainly.",
        )
    if options:
        raise ConfigError(
            f"options {', '.join(options)}",
            found="a drafter that is made already",
            needed="options belong to a drafter's name",
            todo="Pass them where the drafter is made.",
        )


def check_cancel(cancel: object) -> None:
    """Refuse what nobody can set.

    Raises:
        ConfigError: no event.
    """
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise ConfigError(
            f"cancel={cancel!r:.40}",
            found=f"a {type(cancel).__name__}",
            needed="an event, as threading.Event() makes it, or None",
            todo="Pass the event that will be set.",
        )


def check_scope(scope: object) -> None:
    """Refuse what names no memory scope.

    Raises:
        ConfigError: neither text nor None.
    """
    if scope is not None and not isinstance(scope, str):
        raise ConfigError(
            f"scope={scope!r:.40}",
            found="not a name",
            needed="text, or None for the engine's own scope",
            todo="Pass the name of a memory that requests may share.",
        )


def check_max_new_tokens(value: object) -> int:
    """The length of an answer, validated.

    Raises:
        ConfigError: no whole number in range.
    """
    tokens = whole(value)
    if tokens is None or not 0 < tokens <= MAX_NEW_TOKENS:
        raise ConfigError(
            f"max_new_tokens={value!r:.40}",
            found="not a usable number of tokens",
            needed=f"a whole number from 1 to {MAX_NEW_TOKENS:,}",
            todo="Pass how long the answer may become.",
        )
    return tokens

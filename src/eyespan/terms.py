"""What a request asks for besides its prompt: named options in, one checked value out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from eyespan.answer import Granularity, check_granularity
from eyespan.checks import check_cancel, check_max_new_tokens, check_scope
from eyespan.grammar import check_format
from eyespan.sampling import Sampling
from eyespan.text import check_stops
from eyespan.trace import Trace


class Terms(NamedTuple):
    """The options of `Engine.stream`, checked as far as they can be without a prompt."""

    max_new_tokens: int
    stops: tuple[str, ...]
    scope: str | None
    trace: str | Path | Trace | None
    cancel: Event | None
    granularity: Granularity
    sampling: Sampling


def terms_of(
    engines: Sampling,
    *,
    max_new_tokens: int = 256,
    stop: str | Sequence[str] | None = None,
    scope: str | None = None,
    trace: str | Path | Trace | None = None,
    cancel: Event | None = None,
    granularity: Granularity = "block",
    sampling: Sampling | None = None,
    **options: Any,
) -> Terms:
    """Check options.

    Args:
        engines: how the engine chooses tokens where `sampling` is None.
        max_new_tokens: as the others, see `Engine.stream`.
        stop: likewise.
        scope: likewise.
        trace: likewise; it is not opened here.
        cancel: likewise.
        granularity: likewise.
        sampling: likewise.
        **options: fields of `Sampling`, on top of it.

    Raises:
        ConfigError: an unknown option or a bad value.
    """
    check_scope(scope)
    check_granularity(granularity)
    check_cancel(cancel)
    wanted = Sampling.of(options, sampling or engines.fresh())
    if wanted.response_format is not None:
        check_format(wanted.response_format)
    return Terms(
        check_max_new_tokens(max_new_tokens),
        check_stops(stop),
        scope,
        trace,
        cancel,
        granularity,
        wanted,
    )

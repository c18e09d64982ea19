"""A cache that a prompt brings along: refused before the first forward where packs could not be
taken back out of it, and counted where it does not grow.
"""

from __future__ import annotations

from eyespan.errors import ContextError, UnsupportedRequest
from eyespan.target.base import Prompt
from eyespan.target.cache import capacity, check_cache
from eyespan.target.capabilities import Capabilities


def room_of(prompt: Prompt, name: str, found: Capabilities) -> int | None:
    """Tokens that may follow a prompt in its own cache; None where there is none or it grows.

    Args:
        prompt: a request's inputs.
        name: how messages call the model.
        found: what the model can do.

    Raises:
        UnsupportedTarget: layers that cannot drop single tokens again.
        UnsupportedRequest: a static cache for a model that keeps its pictures in it.
        ContextError: a static cache that the prompt alone overruns.
    """
    if prompt.cache is None:
        return None
    check_cache(prompt.cache, name, found.states)
    slots = capacity(prompt.cache)
    if slots is None:
        return None
    if found.picture_layers:  # as many slots as for text, whatever the pictures need
        raise UnsupportedRequest(
            f"a static cache for '{name}'",
            found="layers that keep keys and values of pictures",
            needed="a cache that grows is needed",
            todo="Leave the cache out.",
        )
    if len(prompt) > slots:
        raise ContextError(
            f"a prompt of {len(prompt)} tokens",
            found=f"its static cache has {slots} slots",
            needed="a slot for each token of prompt and answer is needed",
            todo="Make a longer cache, or leave it out.",
        )
    return slots - len(prompt) + 1  # the newest token is no part of the cache

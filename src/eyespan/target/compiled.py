"""What makes stock `generate()` compile its forward: a static cache, and the wish for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import CompileConfig, StaticCache

if TYPE_CHECKING:
    from eyespan.target.adapter import HuggingFaceTarget


def compiling(target: HuggingFaceTarget, places: int) -> dict[str, Any]:
    """Options of one call of `generate()`.

    Args:
        target: the model.
        places: tokens that the cache has room for; each number is compiled once.

    Raises:
        ValueError, TypeError, AttributeError: the model has no static cache.
    """
    config = CompileConfig(fullgraph=False, dynamic=False, mode="default")
    config._compile_all_devices = True  # else only on accelerators
    text = target.model.config.get_text_config()
    return {"cache": StaticCache(config=text, max_cache_len=places), "compile_config": config}

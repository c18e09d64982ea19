"""eyespan: vision-language models that read ahead. Faster generation, the same words.

    import eyespan
    engine = eyespan.load("demo")
    print(engine.generate("What is the total?", images=["receipt.png"]).text)

Importing this package is cheap: torch and transformers are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyespan.dropin import custom_generate, disable, enable
    from eyespan.generation import Chunk, Engine, Stream, load
    from eyespan.trace import Trace, read_trace
    from eyespan.types import Generation

__version__ = "0.1.0"

_EXPORTS = {
    "Chunk": "generation",
    "Engine": "generation",
    "Generation": "types",
    "Stream": "generation",
    "Trace": "trace",
    "custom_generate": "dropin",
    "disable": "dropin",
    "enable": "dropin",
    "load": "generation",
    "read_trace": "trace",
}

__all__ = [*_EXPORTS, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"eyespan.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'eyespan' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})

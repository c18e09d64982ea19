"""eyespan: vision-language models that read ahead. Faster generation, the same words.

    import eyespan
    engine = eyespan.load("demo")
    print(engine.generate("What is the total?", images=["pictures/receipt-0000.png"]).text)

Importing this package is cheap: torch and transformers are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyespan.answer import Chunk
    from eyespan.async_stream import AsyncStream
    from eyespan.batching import Scheduler, Ticket
    from eyespan.chat_session import Chat
    from eyespan.chat_stream import ChatStream
    from eyespan.dropin import custom_generate, disable, enable
    from eyespan.generation import Engine, load
    from eyespan.sampling import Sampling
    from eyespan.stream import Stream
    from eyespan.target.video import Video
    from eyespan.trace import Trace, read_trace
    from eyespan.types import Generation, TokenLogprobs

__version__ = "0.1.0"

__all__ = [
    "AsyncStream",
    "Chat",
    "ChatStream",
    "Chunk",
    "Engine",
    "Generation",
    "Sampling",
    "Scheduler",
    "Stream",
    "Ticket",
    "TokenLogprobs",
    "Trace",
    "Video",
    "custom_generate",
    "disable",
    "enable",
    "load",
    "read_trace",
]

_HOMES = {
    "answer": {"Chunk"},
    "chat_session": {"Chat"},
    "chat_stream": {"ChatStream"},
    "async_stream": {"AsyncStream"},
    "batching": {"Scheduler", "Ticket"},
    "dropin": {"custom_generate", "disable", "enable"},
    "generation": {"Engine", "load"},
    "sampling": {"Sampling"},
    "stream": {"Stream"},
    "target.video": {"Video"},
    "trace": {"Trace", "read_trace"},
    "types": {"Generation", "TokenLogprobs"},
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"eyespan.{home}"), name)
    raise AttributeError(f"module 'eyespan' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Processors: the model's own where it loads, the same class with other parts where it does not.

Many processors insist on a video processor, which exists only with torchvision installed. Without
it, that part is our own (`frames/`) where there is one, else it is left out and pictures work.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available

from eyespan.target.families import Family
from eyespan.target.frames import FRAMES, Frames


def without_video(processor_class: Any) -> Any:
    """A subclass of a stock processor class whose parts do not include a video processor; all else,
    placeholder expansion above all, is stock's.
    """

    class ImagesOnly(processor_class):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return [name for name in super().get_attributes() if name != "video_processor"]

    ImagesOnly.__name__ = processor_class.__name__  # saved and shown under the stock name
    return ImagesOnly


def with_frames(processor_class: Any, frames: type[Frames]) -> Any:
    """A subclass of a stock processor class that loads `frames` where stock's video processor would
    be; made by hand, it takes such an object as it is.
    """

    class OwnFrames(processor_class):  # type: ignore[misc]
        @classmethod
        def _get_arguments_from_pretrained(cls, source: Any, *args: Any, **options: Any) -> Any:
            parts = without_video(processor_class)._get_arguments_from_pretrained(
                source, *args, **options
            )
            at = processor_class.get_attributes().index("video_processor")
            parts.insert(at, frames.from_pretrained(source))
            return parts

        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            """Stock would look for its own video processors, which need torchvision."""
            if argument_name == "video_processor" and isinstance(argument, Frames):
                return Frames
            return super().check_argument_for_proper_class(argument_name, argument)

    OwnFrames.__name__ = processor_class.__name__  # saved and shown under the stock name
    return OwnFrames


def load_processor(source: str, config: Any, family: Family) -> Any:
    """The processor of a folder or hub id; a tokenizer for text-only families.

    Args:
        source: folder or hub id.
        config: its config.
        family: its row.
    """
    if not family.sees:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    name = PROCESSOR_MAPPING_NAMES[config.model_type]
    kind = getattr(transformers, name)
    if "video_processor" in kind.get_attributes() and not is_torchvision_available():
        frames = FRAMES.get(config.model_type)
        kind = without_video(kind) if frames is None else with_frames(kind, frames)
        return kind.from_pretrained(source, trust_remote_code=False)
    return AutoProcessor.from_pretrained(source, trust_remote_code=False)

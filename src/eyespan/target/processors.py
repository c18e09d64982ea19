"""Processors: the model's own where it loads, and one for pictures alone where it does not.

Qwen-VL processors insist on a video processor, which exists only with torchvision installed. We
take pictures, so without torchvision the same processor class is used with that part left out.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available

from eyespan.target.families import Family


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
        return without_video(kind).from_pretrained(source, trust_remote_code=False)
    return AutoProcessor.from_pretrained(source, trust_remote_code=False)

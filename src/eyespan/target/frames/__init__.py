"""Video processors that need no torchvision, by the model type they stand in for."""

from __future__ import annotations

from collections.abc import Mapping

from eyespan.target.frames.base import Frames
from eyespan.target.frames.patches import Qwen2Frames, Qwen3Frames
from eyespan.target.frames.stacked import CroppedFrames, InternFrames, SmolFrames, SquareFrames

__all__ = ["FRAMES", "Frames"]

FRAMES: Mapping[str, type[Frames]] = {
    "qwen2_vl": Qwen2Frames,
    "qwen2_5_vl": Qwen2Frames,
    "qwen3_vl": Qwen3Frames,
    "qwen3_vl_moe": Qwen3Frames,
    "qwen3_5": Qwen3Frames,
    "qwen3_5_moe": Qwen3Frames,
    "llava_onevision": SquareFrames,
    "llava_next_video": CroppedFrames,
    "video_llava": CroppedFrames,
    "internvl": InternFrames,
    "smolvlm": SmolFrames,
}

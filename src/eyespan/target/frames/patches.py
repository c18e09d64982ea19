"""Qwen-VL: frames cut into patches, two frames a patch, at a size that fits a number of pixels."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.video_utils import VideoMetadata

from eyespan.target.frames.base import HALF_COLOURS, Frames, resized

log = logging.getLogger("eyespan")


class Qwen2Frames(Frames):
    """Qwen2-VL and Qwen2.5-VL: each frame fits the limits for itself."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_frames": 4,
        "max_frames": 768,
        "cap_pixels_per_frame": False,
        "max_video_tokens": 128000,
    }

    def __init__(self, **settings: Any) -> None:
        size = dict(settings.pop("size", None) or self.defaults["size"])
        for edge, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
            size.pop(old, None)
            size[edge] = settings.pop(old, None) or size[edge]
        super().__init__(size=size, **settings)

    def indices(self, metadata: VideoMetadata, num_frames: int | None, fps: float | None) -> Any:
        """See `Frames.indices`; always a whole number of patches in time."""
        total, pair = metadata.total_num_frames, self.temporal_patch_size
        wanted: float | None = num_frames if num_frames or fps else self.num_frames
        fps = fps if num_frames or fps else self.fps
        if wanted is not None:
            wanted = round(wanted / pair) * pair
        elif fps is not None:
            if metadata.fps is None:
                raise ValueError("it does not say how many frames a second it has")
            most = math.floor(min(self.max_frames, total) / pair) * pair
            wanted = min(max(total / metadata.fps * fps, self.min_frames), most, total)
            wanted = math.floor(wanted / pair) * pair
        if not wanted:
            return torch.arange(0, total).int()
        if wanted > total:
            raise ValueError(f"{wanted} frames are asked for and it has {total}")
        return torch.arange(0, total, total / wanted).int()

    def tensors(self, videos: list[Tensor]) -> dict[str, Tensor]:
        """Rows of patches of all videos and, for each, patches by time, height and width."""
        made = [self._patches(self.coloured(self.fitted(video))) for video in videos]
        return {
            "pixel_values_videos": torch.cat([rows for rows, _ in made]),
            "video_grid_thw": torch.tensor([grid for _, grid in made]),
        }

    def fitted(self, video: Tensor) -> Tensor:
        """[n, 3, h, w] at a size that is a multiple of a patch and within the limits."""
        if not self.do_resize:
            return video
        goal = self._goal(len(video), *video.shape[-2:])
        return resized(video, goal, self.resample)

    def _goal(self, count: int, height: int, width: int) -> tuple[int, int]:
        least, most = self.size["shortest_edge"], self.size["longest_edge"]
        factor = self.patch_size * self.merge_size
        if self.cap_pixels_per_frame:
            budget = int(self.max_video_tokens * factor * factor * 0.9)
            most = max(min(most, budget * self.temporal_patch_size // count), int(least * 1.05))
        found: tuple[int, int] = smart_resize(
            height, width, factor=factor, min_pixels=least, max_pixels=most
        )
        return found

    def _patches(self, video: Tensor) -> tuple[Tensor, list[int]]:
        """[t h w, 3 * pair * patch * patch] rows, merged neighbours side by side; and t, h, w."""
        pair, patch, merge = self.temporal_patch_size, self.patch_size, self.merge_size
        if lacks := -len(video) % pair:
            video = torch.cat([video, video[-1:].expand(lacks, -1, -1, -1)])
        t, h, w = len(video) // pair, video.shape[-2] // patch, video.shape[-1] // patch
        cut = video.reshape(t, pair, 3, h // merge, merge, patch, w // merge, merge, patch)
        rows = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1)
        return rows, [t, h, w]


class Qwen3Frames(Qwen2Frames):
    """Qwen3-VL and Qwen3.5-VL: all frames of a video fit the limits together."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen2Frames.defaults,
        **HALF_COLOURS,
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
        "patch_size": 16,
        "do_sample_frames": True,
        "max_video_tokens": 768,
        "fps": 2,
    }

    def indices(self, metadata: VideoMetadata, num_frames: int | None, fps: float | None) -> Any:
        """See `Frames.indices`; evenly from the first frame to the last."""
        total = metadata.total_num_frames
        if num_frames is None:
            if metadata.fps is None:
                log.warning("a video does not say how many frames a second it has; 24 are assumed")
            rate = metadata.fps or 24
            num_frames = int(total / rate * (self.fps if fps is None else fps))
            num_frames = min(max(num_frames, self.min_frames), self.max_frames, total)
        return np.linspace(0, total - 1, num_frames).round().astype(int)

    def _goal(self, count: int, height: int, width: int) -> tuple[int, int]:
        factor, pair = self.patch_size * self.merge_size, self.temporal_patch_size
        least, most = self.size["shortest_edge"], self.size["longest_edge"]
        if self.cap_pixels_per_frame:
            each = min(self.max_video_tokens * factor * factor, most // count)
            most = max(each, int(least * 1.05)) * count
        if count < pair:
            raise ValueError(f"{count} frame(s) where at least {pair} are needed")
        if height < factor or width < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > 200 * min(height, width):
            raise ValueError("frames more than 200 times as long as wide")
        goal = [round(side / factor) * factor for side in (height, width)]
        volume = round(count / pair) * pair * goal[0] * goal[1]
        if volume > most:
            shrink = math.sqrt(count * height * width / most)
            goal = [
                max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
            ]
        elif volume < least:
            grow = math.sqrt(least / (count * height * width))
            goal = [math.ceil(side * grow / factor) * factor for side in (height, width)]
        return goal[0], goal[1]

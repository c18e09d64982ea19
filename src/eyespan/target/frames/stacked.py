"""Families whose frames are pictures of one size: LLaVA's relatives, InternVL, SmolVLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.video_utils import VideoMetadata

from eyespan.target.frames.base import HALF_COLOURS, Frames, resized

_SKIPPED = 1
"""Seconds at either end of a long video that SmolVLM leaves out."""

_LARGEST_SIDE = 4096
"""Of a SmolVLM frame on its way to its final size."""


class SquareFrames(Frames):
    """LLaVA-OneVision: frames squeezed into one size."""

    defaults: ClassVar[Mapping[str, Any]] = {"size": {"height": 384, "width": 384}}


class CroppedFrames(Frames):
    """LLaVA-NeXT-Video and Video-LLaVA: the middle of frames of one short side."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
    }


class InternFrames(SquareFrames):
    """InternVL: frames from the middle of equal parts of the video."""

    defaults: ClassVar[Mapping[str, Any]] = {**SquareFrames.defaults, "initial_shift": True}

    def indices(self, metadata: VideoMetadata, num_frames: int | None, fps: float | None) -> Any:
        """See `Frames.indices`."""
        total = metadata.total_num_frames
        num_frames = self.num_frames if num_frames is None and fps is None else num_frames
        if num_frames is None and fps is not None:
            if metadata.fps is None:
                raise ValueError("it does not say how many frames a second it has")
            num_frames = int(total / metadata.fps * fps)
        if not num_frames:
            return np.arange(total)
        if num_frames > total:
            raise ValueError(f"{num_frames} frames are asked for and it has {total}")
        first = total / num_frames / 2 if self.initial_shift is True else self.initial_shift
        return torch.arange(first, total, total / num_frames).int()


class SmolFrames(Frames):
    """SmolVLM: frames resized twice, to the size of a picture that is not cut into tiles."""

    output: ClassVar[str] = "pixel_values"
    defaults: ClassVar[Mapping[str, Any]] = {
        **HALF_COLOURS,
        "resample": 1,
        "size": {"longest_edge": 4 * 364},
        "max_image_size": {"longest_edge": 364},
    }

    def __init__(self, **settings: Any) -> None:
        sampling = settings.pop("video_sampling", None)
        super().__init__(**settings)
        if sampling is not None:
            self.num_frames, self.fps = sampling["max_frames"], sampling["fps"]
            self.size = dict(settings.get("size") or sampling["video_size"])

    def indices(self, metadata: VideoMetadata, num_frames: int | None, fps: float | None) -> Any:
        """See `Frames.indices`; a long video's first and last second are left out."""
        if metadata.fps is None or metadata.duration is None:
            raise ValueError("it does not say how many frames a second it has")
        most = num_frames or self.num_frames or metadata.total_num_frames
        rate = fps or self.fps or metadata.fps
        wanted = max(1, min(round(rate * metadata.duration), most))
        first, last = 0, metadata.total_num_frames - 1
        if metadata.duration - 2 * _SKIPPED > most * rate:
            first = int(_SKIPPED * metadata.fps)
            last = min(last, int(metadata.total_num_frames - _SKIPPED * metadata.fps))
            if first >= last:
                first, last = 0, metadata.total_num_frames - 1
        return np.unique(np.linspace(first, last, wanted, dtype=int))

    def tensors(self, videos: list[Tensor]) -> dict[str, Tensor]:
        """[videos, n, 3, side, side] and which of their pixels are there."""
        shaped = [self.coloured(self.fitted(video)) for video in videos]
        longest = max(map(len, shaped))
        padded = [pad(video, (0,) * 7 + (longest - len(video),)) for video in shaped]
        mask = torch.ones(len(padded), longest, *padded[0].shape[-2:], dtype=torch.int64)
        return {"pixel_values": torch.stack(padded), "pixel_attention_mask": mask}

    def fitted(self, video: Tensor) -> Tensor:
        """[n, 3, h, w] as squares, by way of a size that keeps their shape."""
        if not self.do_resize:
            return video
        side = self.max_image_size["longest_edge"]
        goal = self._within(*video.shape[-2:])
        return resized(resized(video, goal, self.resample), (side, side), self.resample)

    def _within(self, height: int, width: int) -> tuple[int, int]:
        longest = self.size.get("longest_edge")
        if not longest:
            return self.size["height"], self.size["width"]
        longest, shape = min(_LARGEST_SIDE, longest), width / height
        if width >= height:
            short = int(longest / shape)
            return max(short + short % 2, 1), longest
        short = int(longest * shape)
        return longest, max(short + short % 2, 1)

"""Frames of a video as a family's own video processor makes them, without torchvision.

transformers' video processors need torchvision for a handful of tensor operations. These are the
same steps on torch alone, read from the same files: sample, resize, crop, scale, stack. With
torchvision installed, stock's own classes are used instead (`processors.py`), and
`tests/golden/frames.json` holds what those make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad
from transformers.image_processing_utils import BatchFeature
from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from transformers.video_processing_utils import VideoProcessorMixin
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

CLIP_COLOURS = {"image_mean": OPENAI_CLIP_MEAN, "image_std": OPENAI_CLIP_STD}
HALF_COLOURS = {"image_mean": IMAGENET_STANDARD_MEAN, "image_std": IMAGENET_STANDARD_STD}

_MODES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of resampling filters, as configs hold them."""


class Frames(VideoProcessorMixin):  # type: ignore[misc]
    """Stands in for a video processor inside a family's processor.

    Class attributes:
        defaults: settings that a folder's file may leave out.
        output: name of the tensor it makes.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    output: ClassVar[str] = "pixel_values_videos"

    def __init__(self, **settings: Any) -> None:
        settings = {**_SHARED, **self.defaults, **settings}
        self.num_frames: int | None = None
        self.fps: float | None = None
        for name, value in settings.items():
            if name != "video_processor_type":
                setattr(self, name, value)

    def __call__(
        self,
        videos: Any,
        *,
        video_metadata: Sequence[VideoMetadata] | None = None,
        **_: Any,
    ) -> BatchFeature:
        """Turn sampled frames into tensors.

        Args:
            videos: one or several of [n, h, w, 3] uint8, sampled already.
            video_metadata: of each; handed on for time stamps.
        """
        each = list(videos) if isinstance(videos, (list, tuple)) else [videos]
        made = self.tensors(
            [torch.from_numpy(one).permute(0, 3, 1, 2).contiguous() for one in each]
        )
        return BatchFeature({**made, "video_metadata": list(video_metadata or ())})

    def sample_frames(
        self,
        metadata: VideoMetadata,
        num_frames: int | None = None,
        fps: float | None = None,
        **_: Any,
    ) -> Any:
        """Indices of the frames to use, ascending.

        Args:
            metadata: number of frames and rate of the whole video.
            num_frames: how many to take; None is the processor's own setting.
            fps: how many of each second instead; None is the processor's own setting.

        Raises:
            ValueError: the video has fewer, or does not say what its rate is.
        """
        return self.indices(metadata, num_frames, fps)

    def indices(self, metadata: VideoMetadata, num_frames: int | None, fps: float | None) -> Any:
        """The same; how a family spreads them."""
        num_frames = self.num_frames if num_frames is None and fps is None else num_frames
        fps = self.fps if num_frames is None and fps is None else fps
        return default_sample_indices_fn(metadata, num_frames=num_frames, fps=fps)

    def tensors(self, videos: list[Tensor]) -> dict[str, Tensor]:
        """The tensors that the model takes.

        Args:
            videos: [n, 3, h, w] uint8 each.
        """
        shaped = [self.coloured(self.cropped(self.fitted(video))) for video in videos]
        _same_length(shaped)
        return {self.output: torch.stack(shaped)}

    def fitted(self, video: Tensor) -> Tensor:
        """[n, 3, h, w] resized as the settings say."""
        return resized(video, _goal(video, self.size), self.resample) if self.do_resize else video

    def cropped(self, video: Tensor) -> Tensor:
        """The middle of every frame, where the settings want only that."""
        if not self.do_center_crop:
            return video
        height, width = self.crop_size["height"], self.crop_size["width"]
        lacks = max(0, height - video.shape[-2]), max(0, width - video.shape[-1])
        if any(lacks):
            (down, right) = ((size + 1) // 2 for size in lacks)
            video = pad(video, (lacks[1] // 2, right, lacks[0] // 2, down))
        top, left = (video.shape[-2] - height) // 2, (video.shape[-1] - width) // 2
        return video[..., top : top + height, left : left + width]

    def coloured(self, video: Tensor) -> Tensor:
        """uint8 colours as float32 numbers around 0."""
        scale = 1.0 / self.rescale_factor if self.do_rescale else 1.0
        if not self.do_normalize:
            return video * self.rescale_factor if self.do_rescale else video
        mean, deviation = (
            (torch.tensor(values) * scale)[:, None, None]
            for values in (self.image_mean, self.image_std)
        )
        return video.to(torch.float32).sub(mean).div_(deviation)


_SHARED: Mapping[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "do_sample_frames": False,
    "rescale_factor": 1 / 255,
    "resample": 3,
    **CLIP_COLOURS,
}


def resized(video: Tensor, goal: tuple[int, int], resample: int) -> Tensor:
    """[n, 3, h, w] uint8 at another height and width."""
    if tuple(video.shape[-2:]) == goal:
        return video
    mode = _MODES.get(int(resample))
    if mode is None:
        raise ValueError(f"a resampling filter of number {resample} is not offered for videos")
    if mode == "nearest":
        return interpolate(video, goal, mode=mode)
    try:
        return interpolate(video, goal, mode=mode, antialias=True, align_corners=False)
    except (
        NotImplementedError,
        ValueError,
    ):  # lanczos before torch 2.12, where stock does the same
        return interpolate(video, goal, mode="bicubic", antialias=True, align_corners=False)


def _goal(video: Tensor, size: Mapping[str, int]) -> tuple[int, int]:
    """Height and width that `size` asks for."""
    short, long = size.get("shortest_edge"), size.get("longest_edge")
    if short and long:
        return get_size_with_aspect_ratio(tuple(video.shape[-2:]), short, long)  # type: ignore[no-any-return]
    if short:
        frame = np.empty((3, *video.shape[-2:]), np.bool_)
        return get_resize_output_image_size(  # type: ignore[no-any-return]
            frame, size=short, default_to_square=False, input_data_format="channels_first"
        )
    return size["height"], size["width"]


def _same_length(videos: Sequence[Tensor]) -> None:
    if len({video.shape for video in videos}) > 1:
        sizes = ", ".join(str(len(video)) for video in videos)
        raise ValueError(f"videos of {sizes} frames; this model takes one number for all")

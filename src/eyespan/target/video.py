"""Open videos: frames in order, sampled as the family's processor samples, bounded before decoding.

A video is an animation that Pillow reads (GIF, WebP, PNG), a folder of frames, a list of pictures,
an array, or, with PyAV installed (`pip install 'eyespan[video]'`), any file that it decodes. Only
the frames that are used are kept; which these are is the processor's rule unless the caller says.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from eyespan.counts import real, whole
from eyespan.errors import ConfigError, InputError
from eyespan.target.images import DAMAGES, MAX_PIXELS, MAX_PIXELS_TOGETHER, open_picture

Bytes: TypeAlias = npt.NDArray[np.uint8]
Film: TypeAlias = "str | Path | bytes | Sequence[Any] | Bytes"
"""A file, a folder of frames, a file's bytes, a list of pictures, or [n, h, w, 3] uint8."""

MAX_VIDEOS = 16
"""Videos of one request."""

MAX_FRAMES = 1024
"""Frames of one video that are used; a model's context ends long before."""

MAX_LENGTH = 1_000_000
"""Frames that a video may have at all: about nine hours at 30 a second."""

_ANIMATIONS = ("GIF", "WEBP", "PNG")
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """A video and how to sample it; where nothing is to be said, its source alone will do.

    Attributes:
        source: see `Film`.
        frames: frames to use, spread as the family's processor spreads them.
        fps: frames of every second to use, instead.
        rate: frames a second of a source that does not say: a folder, a list, an array.

    Raises:
        ConfigError: a number out of range, or both ways of sampling.
    """

    source: Film
    frames: int | None = None
    fps: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        limits = {"frames": (1, MAX_FRAMES), "fps": (1e-3, 1e3), "rate": (1e-3, 1e4)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            number = whole(value) if name == "frames" else real(value)
            if value is not None and (number is None or not low <= number <= high):
                raise ConfigError(
                    f"{name}={value!r:.40} of a video",
                    found="not a usable number",
                    needed=f"a number from {low:g} to {high:g}",
                    todo="Change it or leave it out for the processor's own rule.",
                )
            object.__setattr__(self, name, number)
        if self.frames is not None and self.fps is not None:
            raise ConfigError(
                f"frames={self.frames} and fps={self.fps:g} of a video",
                found="two ways of sampling",
                needed="one of them alone",
                todo="Leave one out.",
            )


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A sampled video.

    Attributes:
        frames: [n, h, w, 3] uint8.
        indices: [n] their places in the whole video.
        total: frames of the whole video.
        rate: frames a second of the whole video; None where nobody knows.
    """

    frames: Bytes
    indices: tuple[int, ...]
    total: int
    rate: float | None

    def digest(self) -> bytes:
        """What tells it from any other: size, time stamps and every pixel."""
        about = (self.frames.shape, self.indices, self.total, self.rate)
        digest = hashlib.blake2b(repr(("video", about)).encode(), digest_size=32)
        digest.update(np.ascontiguousarray(self.frames).data)
        return digest.digest()


class _Reel(NamedTuple):
    """An opened source.

    Attributes:
        total: its frames.
        rate: frames a second, if it says so.
        size: width and height.
        read: ascending indices -> those frames, in order.
    """

    total: int
    rate: float | None
    size: tuple[int, int]
    read: Callable[[Sequence[int]], Iterator[Any]]


def open_videos(videos: Sequence[Film | Video | Clip], sampler: Any) -> list[Clip]:
    """Open and sample several videos, in order; what is sampled already stays.

    Args:
        videos: of one request.
        sampler: the family's video processor; asked for `do_sample_frames` and `sample_frames`.

    Raises:
        InputError: a single video instead of a list, too many, or one that cannot be used.
    """
    single = isinstance(videos, (str, bytes, Path, Video, Clip, np.ndarray))
    if single or not isinstance(videos, Sequence):
        raise InputError(
            "videos",
            found=f"a single {type(videos).__name__}",
            needed="a list of videos is needed",
            todo="Write videos=[...], each a file, a folder, a list of frames or a Video.",
        )
    if len(videos) > MAX_VIDEOS:
        raise InputError(
            f"{len(videos)} videos",
            found="more than one request may have",
            needed=f"at most {MAX_VIDEOS} are taken",
            todo="Ask about fewer at a time.",
        )
    return [each if isinstance(each, Clip) else open_video(each, sampler) for each in videos]


def open_video(video: Film | Video, sampler: Any) -> Clip:
    """Open and sample one video; see `open_videos`."""
    wanted = video if isinstance(video, Video) else Video(video)
    label = _label(wanted.source)
    try:
        reel = _opened(wanted.source, label)
        rate = wanted.rate or reel.rate
        width, height = reel.size
        if not 0 < reel.total <= MAX_LENGTH:
            raise _bad(label, f"{reel.total} frames", "Send a video that has some, and an end.")
        indices = _sampled(wanted, reel.total, rate, (height, width), sampler, label)
        pixels = width * height * len(indices)
        if len(indices) > MAX_FRAMES or width * height > MAX_PIXELS or pixels > MAX_PIXELS_TOGETHER:
            raise InputError(
                f"video '{label}'",
                found=f"{len(indices)} frames of {width} x {height} pixels",
                needed=f"at most {MAX_FRAMES} frames and {MAX_PIXELS_TOGETHER // 1_000_000} "
                "megapixels are decoded",
                todo="Sample fewer: frames=16, or --frames 16 on the command line.",
            )
        frames = [np.asarray(frame) for frame in reel.read(indices)]
    except InputError:
        raise
    except DAMAGES as error:
        raise _bad(label, f"a damaged video ({error})", "Send the whole file.") from None
    if len(frames) != len(indices):
        found = f"only {len(frames)} of the {len(indices)} frames that it announces"
        raise _bad(label, found, "Send the whole file.")
    if len({frame.shape for frame in frames}) > 1:
        raise _bad(label, "frames of different sizes", "Bring them to one size.")
    return Clip(np.stack(frames), tuple(indices), reel.total, rate)


def _sampled(
    wanted: Video,
    total: int,
    rate: float | None,
    size: tuple[int, int],
    sampler: Any,
    label: str,
) -> list[int]:
    """Which frames to use."""
    from transformers.video_utils import VideoMetadata

    asked = wanted.frames is not None or wanted.fps is not None
    if not asked and not sampler.do_sample_frames:
        return list(range(total))
    about = VideoMetadata(
        total_num_frames=total,
        fps=rate,
        duration=total / rate if rate else None,
        height=size[0],
        width=size[1],
    )
    try:
        indices = sampler.sample_frames(metadata=about, num_frames=wanted.frames, fps=wanted.fps)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise _unsampled(label, str(error), total) from None
    found = [int(index) for index in indices]
    if not found:
        raise _unsampled(label, "no frame is left", total)
    return found


def _unsampled(label: str, why: str, total: int) -> InputError:
    return InputError(
        f"sampling video '{label}'",
        found=why,
        needed=f"a number of frames that the model's processor can take of its {total} is needed",
        todo="Ask for frames=N or fps=F, and say rate=R where the source has none.",
    )


def _opened(source: Film, label: str) -> _Reel:
    if isinstance(source, np.ndarray):
        return _array(source, label)
    if isinstance(source, (str, Path)):
        path = Path(os.path.expanduser(source))
        if path.is_dir():
            return _folder(path, label)
        try:
            source = path.read_bytes()
        except FileNotFoundError:
            raise _bad(label, "no such file", "Check the path.") from None
        except (OSError, ValueError) as error:
            raise _bad(label, f"unreadable ({error})", "Check the file.") from None
    if isinstance(source, bytes):
        if not source:
            raise _bad(label, "an empty file", "Check how it was written or sent.")
        return _animation(source, label) or _decoded(source, label)
    if not isinstance(source, Sequence):
        raise _bad(label, f"a {type(source).__name__}", "Pass a path, frames or an eyespan.Video.")
    return _pictures(list(source), label)


def _array(frames: Bytes, label: str) -> _Reel:
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
        found = f"an array of shape {frames.shape} and type {frames.dtype}"
        raise _bad(label, found, "Pass [frames, height, width, 3] of type uint8.")
    total, height, width, _ = frames.shape
    return _Reel(total, None, (width, height), lambda at: (frames[index] for index in at))


def _folder(path: Path, label: str) -> _Reel:
    files = [each for each in path.iterdir() if each.suffix.lower() in _PICTURES]
    files.sort(key=lambda each: [int(part) if part.isdigit() else part for part in _parts(each)])
    return _pictures(files, label)


def _parts(path: Path) -> list[str]:
    """A name's digits and what is between them, so that frame 10 comes after frame 9."""
    return re.split(r"(\d+)", path.name)


def _pictures(pictures: Sequence[Any], label: str) -> _Reel:
    if not pictures:
        raise _bad(label, "no frames", "Put frames into it, named in order.")
    first = open_picture(pictures[0])

    def read(indices: Sequence[int]) -> Iterator[Any]:
        for index in indices:
            yield first if index == 0 else open_picture(pictures[index])

    return _Reel(len(pictures), None, first.size, read)


def _animation(data: bytes, label: str) -> _Reel | None:
    """What Pillow reads, or None."""
    try:
        opened = Image.open(io.BytesIO(data), formats=_ANIMATIONS)
    except DAMAGES:
        return None
    total = int(getattr(opened, "n_frames", 1))
    if total < 2:
        raise _bad(label, "a still picture", "Pass it as an image.")
    if total > MAX_LENGTH:
        return _Reel(total, None, opened.size, lambda _: iter(()))
    spent = 0.0
    for index in range(total):
        opened.seek(index)
        spent += float(opened.info.get("duration") or 0)
    rate = 1e3 * total / spent if spent > 0 else None

    def read(indices: Sequence[int]) -> Iterator[Any]:
        for index in indices:
            opened.seek(index)
            yield opened.convert("RGB")

    return _Reel(total, rate, opened.size, read)


def _decoded(data: bytes, label: str) -> _Reel:
    """What PyAV reads."""
    try:
        import av
    except ImportError:
        raise InputError(
            f"video '{label}'",
            found="not an animation that Pillow reads",
            needed="other video files are decoded by PyAV, which is not installed",
            todo="pip install 'eyespan[video]', or pass a GIF, a WebP or a folder of frames.",
        ) from None
    try:
        with av.open(io.BytesIO(data)) as container:
            if not container.streams.video:
                raise _bad(label, "a file without pictures", "Send one with a video track.")
            stream = container.streams.video[0]
            rate = float(stream.average_rate) if stream.average_rate else None
            size = (int(stream.width), int(stream.height))
            total = int(stream.frames)
            if total <= 0:  # some containers do not say
                total = sum(1 for packet in container.demux(stream) if packet.size)
    except (av.error.FFmpegError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _bad(label, f"not a video ({_reason(error)})", "Send a whole video file.") from None

    def read(indices: Sequence[int]) -> Iterator[Any]:
        wanted = set(indices)
        try:
            with av.open(io.BytesIO(data)) as container:
                for index, frame in enumerate(container.decode(video=0)):
                    if index in wanted:
                        yield frame.to_ndarray(format="rgb24")
                    if index >= indices[-1]:
                        return
        except av.error.FFmpegError as error:
            raise _bad(
                label, f"a damaged video ({_reason(error)})", "Send the whole file."
            ) from None

    return _Reel(total, rate, size, read)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _label(source: Any) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    if isinstance(source, bytes):
        return f"{len(source)} bytes"
    return "a list of frames" if isinstance(source, Sequence) else f"a {type(source).__name__}"


def _bad(label: str, found: str, todo: str) -> InputError:
    return InputError(
        f"video '{label}'",
        found=found,
        needed="an animated GIF, WebP or PNG, a folder or list of frames, or, with "
        "eyespan[video], a video file is needed",
        todo=todo,
    )

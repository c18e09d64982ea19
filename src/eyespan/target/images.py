"""Open pictures: whole, bounded, and as transformers' own loader sees them.

A file becomes an upright RGB picture (its EXIF orientation applied), which is what stock's
`load_image` makes of a path. A picture that is open already is only converted to RGB, which is what
stock's processors make of it. Nothing is ever half-decoded: a truncated file is refused.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from PIL import Image, ImageOps, UnidentifiedImageError

from eyespan.errors import InputError

log = logging.getLogger("eyespan")

Picture: TypeAlias = Image.Image | str | Path | bytes

MAX_PIXELS = 50_000_000
"""Largest picture, checked from its header before anything is decoded. About 150 MB as RGB."""

MAX_PICTURES = 128
"""Pictures of one request, counted before the first is opened."""

MAX_PIXELS_TOGETHER = 8 * MAX_PIXELS
"""Pixels of one request's pictures, each counted from its header before it is decoded."""

DAMAGES = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow's decoders raise on broken data; a picture is whole or it is refused."""

MOVING = ("GIF", "WEBP", "PNG", "TIFF")
"""Formats whose files may hold several pictures."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Decoders that may run; exotic ones are where the vulnerabilities are."""


def open_picture(
    picture: Picture, name: str | None = None, most_pixels: int = MAX_PIXELS
) -> Image.Image:
    """One picture as RGB.

    Args:
        picture: a path, the bytes of a file, or an open picture. Of an animation, the first frame.
        name: how error messages call it; default: the path.
        most_pixels: what it may have.

    Raises:
        InputError: missing, empty, not a picture, truncated, or too large.
    """
    if isinstance(picture, Image.Image):
        label = name or "a picture"
        _check_size(picture, label, most_pixels)
        return _decoded(picture, label, upright=False)
    if not isinstance(picture, (str, Path, bytes)):
        found = f"a {type(picture).__name__}"
        raise _bad(name or "a picture", found, "Pass a path, a file's bytes or an open picture.")
    label = name or (f"{len(picture)} bytes" if isinstance(picture, bytes) else str(picture))
    data = picture if isinstance(picture, bytes) else _read(Path(picture), label)
    if not data:
        raise _bad(label, "an empty file", "Check how it was written or sent.")
    opened = _opened(data, label)
    _check_size(opened, label, most_pixels)
    decoded = _decoded(opened, label, upright=True)
    if _moves(opened):
        log.warning("image '%s' holds several pictures; the first is looked at", label)
    return decoded


def open_pictures(pictures: Sequence[Picture]) -> list[Image.Image]:
    """Several pictures, in order.

    Raises:
        InputError: a single picture or path was given, whose letters would be taken for paths; too
            many pictures, or too many pixels together.
    """
    if isinstance(pictures, (str, bytes)) or not isinstance(pictures, Iterable):
        raise InputError(
            "images",
            found=f"a single {type(pictures).__name__}",
            needed="a list of pictures is needed",
            todo="Put it into a list: images=[...].",
        )
    waiting = list(pictures)
    if len(waiting) > MAX_PICTURES:
        raise InputError(
            f"{len(waiting)} images",
            found="more than one request may have",
            needed=f"at most {MAX_PICTURES} are taken",
            todo="Ask about fewer at a time.",
        )
    opened: list[Image.Image] = []
    left = MAX_PIXELS_TOGETHER
    for at, picture in enumerate(waiting, 1):
        # a path says which picture is meant; of several without one, their place does
        named = isinstance(picture, (str, Path)) or len(waiting) == 1
        name = None if named else f"{at} of {len(waiting)}"
        opened.append(open_picture(picture, name, most_pixels=min(MAX_PIXELS, left)))
        left -= opened[-1].width * opened[-1].height
    return opened


def picture_digest(picture: Image.Image) -> bytes:
    """What tells an opened picture from any other: mode, size and every pixel."""
    digest = hashlib.blake2b(repr((picture.mode, picture.size)).encode(), digest_size=32)
    digest.update(picture.tobytes())
    return digest.digest()


def _read(path: Path, label: str) -> bytes:
    try:
        return Path(os.path.expanduser(path)).read_bytes()  # a name may begin with ~ and mean it
    except FileNotFoundError:
        raise _bad(label, "no such file", "Check the path.") from None
    except IsADirectoryError:
        raise _bad(label, "a folder", "Name one file.") from None
    except (PermissionError, OSError) as error:
        raise _bad(label, f"unreadable ({error.strerror})", "Check the file.") from None
    except ValueError as error:  # a NUL character
        raise _bad(label, f"not a path ({error})", "Check the path.") from None


def _check_size(opened: Image.Image, label: str, most: int) -> None:
    width, height = opened.size
    if width * height == 0:
        raise _bad(label, f"{width} x {height} pixels", "Send a picture with something on it.")
    if width * height > most:
        raise _too_large(label, f"{width} x {height} pixels", most)


def _opened(data: bytes, label: str) -> Image.Image:
    """Read the header only."""
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise _bad(label, "not a picture", "Save it in one of those formats.") from None
    except Image.DecompressionBombError:
        raise _too_large(label, "far more pixels", MAX_PIXELS) from None
    except DAMAGES as error:
        raise _damaged(label, error) from None


def _decoded(opened: Image.Image, label: str, upright: bool) -> Image.Image:
    """Decode now, so that a truncated file is refused here and not deep inside a processor."""
    try:
        opened.load()
        turned = ImageOps.exif_transpose(opened) if upright else opened
        return turned.convert("RGB")
    except DAMAGES as error:
        raise _damaged(label, error) from None


def _moves(opened: Image.Image) -> bool:
    """Whether an animation, or a file of several pages; what phones hide behind a photograph (MPO)
    is no picture of its own.
    """
    try:
        return opened.format in MOVING and bool(getattr(opened, "is_animated", False))
    except DAMAGES:
        return False


def _damaged(label: str, error: Exception) -> InputError:
    return _bad(label, f"a damaged picture ({error})", "Send the whole file.")


def _too_large(label: str, found: str, most: int) -> InputError:
    needed = f"at most {MAX_PIXELS // 1_000_000} megapixels are decoded"
    if most < MAX_PIXELS:
        needed += f", {MAX_PIXELS_TOGETHER // 1_000_000} over all pictures of a request"
    return InputError(f"image '{label}'", found=found, needed=needed, todo="Scale it down first.")


def _bad(label: str, found: str, todo: str) -> InputError:
    return InputError(
        f"image '{label}'",
        found=found,
        needed=f"a whole {', '.join(FORMATS)} file is needed",
        todo=todo,
    )

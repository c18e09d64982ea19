"""Pictures: what is refused, with one sentence each, and what equals stock's own loader."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from eyespan.errors import InputError
from eyespan.target.images import open_picture, open_pictures

RNG = np.random.default_rng(0)
PICTURE = Image.fromarray(RNG.integers(0, 255, (40, 60, 3), dtype=np.uint8))


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def promising_png(width: int, height: int) -> bytes:
    """A small file whose header promises more than anyone should decode."""
    data = saved(PICTURE, "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@lru_cache
def bad_files() -> dict[str, tuple[bytes, str]]:
    return {
        "empty": (b"", "an empty file"),
        "text named .png": (b"hello, this is text", "not a picture"),
        "half a jpeg": (saved(PICTURE, "JPEG")[:900], "a damaged picture"),
        "half a png": (saved(PICTURE, "PNG")[:2000], "a damaged picture"),
        "a bomb": (promising_png(9000, 9000), "9000 x 9000 pixels"),
        "a huge bomb": (promising_png(50_000, 20_000), "far more pixels"),
        "an exotic format": (saved(PICTURE, "PPM"), "not a picture"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_A39_bad_files_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    data, reason = bad_files()[name]
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason) as from_path:
        open_picture(path)
    assert str(path) in str(from_path.value)
    with pytest.raises(InputError, match=reason):
        open_picture(data)


def test_A39_of_several_pictures_the_bad_one_is_named() -> None:
    with pytest.raises(InputError, match="image '2 of 3': a damaged picture"):
        open_pictures([PICTURE, saved(PICTURE, "JPEG")[:900], PICTURE])
    with pytest.raises(InputError, match=r"image 'b\.png': no such file"):
        open_pictures([PICTURE, "b.png", PICTURE])


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_picture(tmp_path / "nothing.png")
    with pytest.raises(InputError, match="a folder"):
        open_picture(str(tmp_path))
    with pytest.raises(InputError, match="a list of pictures"):
        open_pictures("sign.jpg")


def test_an_open_but_truncated_picture_is_refused() -> None:
    lazy = Image.open(io.BytesIO(saved(PICTURE, "JPEG")[:900]))
    with pytest.raises(InputError, match="damaged"):
        open_picture(lazy)


def rotated_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(PICTURE, "JPEG", exif=exif)


@lru_cache
def good_files() -> dict[str, bytes]:
    sixteen = Image.fromarray(RNG.integers(0, 65535, (20, 30), dtype=np.uint16))
    frames = [PICTURE.convert("P"), PICTURE.rotate(90).convert("P")]
    return {
        "rgb png": saved(PICTURE, "PNG"),
        "jpeg turned by its camera": rotated_jpeg(),
        "transparent": saved(PICTURE.convert("RGBA"), "PNG"),
        "cmyk": saved(PICTURE.convert("CMYK"), "JPEG"),
        "palette": saved(PICTURE.convert("P"), "PNG"),
        "grey": saved(PICTURE.convert("L"), "JPEG"),
        "16 bit": saved(sixteen, "PNG"),
        "animated": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "webp": saved(PICTURE, "WEBP"),
    }


@pytest.mark.parametrize("name", good_files())
def test_A39_files_equal_stocks_loader(name: str, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(good_files()[name])
    ours, stocks = open_picture(path), load_image(str(path))
    assert ours.mode == "RGB"
    assert np.array_equal(np.asarray(ours), np.asarray(stocks))
    assert np.array_equal(np.asarray(open_picture(path.read_bytes())), np.asarray(stocks))


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(good_files())), seed=st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore")
def test_A39_broken_bytes_give_a_picture_or_one_sentence(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(good_files()[name])
    for at in rng.integers(0, len(data), rng.integers(1, 8)):
        data[at] = rng.integers(256)
    del data[rng.integers(1, len(data) + 1) :]
    with suppress(InputError):
        assert open_picture(bytes(data)).mode == "RGB"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_stocks(orientation: int, tmp_path: Path) -> None:
    exif, path = Image.Exif(), tmp_path / "turned.jpg"
    exif[0x0112] = orientation
    path.write_bytes(saved(PICTURE, "JPEG", exif=exif))
    assert np.array_equal(np.asarray(open_picture(path)), np.asarray(load_image(str(path))))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_that_only_the_first_of_several_is_looked_at_is_said(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """But not of what phones hide behind a photograph."""
    several = saved(PICTURE, kind, save_all=True, append_images=[PICTURE.rotate(90)])
    open_picture(several, "a.file")
    told = "image 'a.file' holds several pictures" in caplog.text
    assert told == (kind != "MPO")
    caplog.clear()
    open_picture(saved(PICTURE, "JPEG" if kind == "MPO" else kind))
    assert caplog.text == ""


def test_open_pictures_are_not_turned() -> None:
    """Stock's processors take an open picture as it is; so do we."""
    turned = Image.open(io.BytesIO(rotated_jpeg()))
    assert open_picture(turned).size == PICTURE.size


def test_too_many_pictures_are_refused_before_one_is_opened() -> None:
    with pytest.raises(InputError, match="at most 128 are taken"):
        open_pictures([b"no picture"] * 129)
    with pytest.raises(InputError, match="not a picture"):
        open_pictures([b"no picture"] * 128)


def test_pictures_together_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyespan.target.images.MAX_PIXELS_TOGETHER", 2 * 40 * 60 + 100)
    assert len(open_pictures([PICTURE, PICTURE])) == 2
    with pytest.raises(InputError, match="over all pictures of a request"):
        open_pictures([PICTURE] * 3)


@pytest.mark.parametrize("size", [(0, 0), (0, 5)])
def test_a_picture_without_pixels(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="0 x "):
        open_picture(Image.new("RGB", size))

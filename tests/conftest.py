"""A tiny model on disk, pictures, and a shell for command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyespan.testing import tiny_images, tiny_model, tiny_processor
from tests.cli import Shell


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> Shell:
    """Command lines on an 80-column stream without colours; costs are remembered in `cache`."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return Shell(capsys)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where measured costs are remembered, for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaVA, saved whole."""
    folder = tmp_path_factory.mktemp("tiny-llava")
    tiny_model("llava").save_pretrained(folder)
    tiny_processor("llava").save_pretrained(folder)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of four pictures, 0.png to 3.png."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, picture in enumerate(tiny_images(4)):
        picture.save(folder / f"{number}.png")
    return folder

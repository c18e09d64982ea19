"""Opening videos: what is taken, what is sampled, and one clear sentence for all else."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import eyespan
from eyespan.errors import ConfigError, InputError
from eyespan.target.frames import FRAMES
from eyespan.target.video import open_video, open_videos
from eyespan.testing import tiny_images, tiny_target, tiny_video
from tests.cli import Shell

SAMPLER = FRAMES["qwen2_5_vl"]()
ALL = tiny_video(6)


def pictures() -> list[Image.Image]:
    return [Image.fromarray(frame) for frame in ALL]


def animation(kind: str, **options: Any) -> bytes:
    first, *rest = pictures()
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=rest, duration=250, **options)
    return file.getvalue()


def folder(path: Path) -> Path:
    for at, picture in enumerate(pictures()):
        picture.save(path / f"frame{at + 5}.png")  # 5 to 10: by name, 10 would come first
    (path / "notes.txt").write_text("no frame")
    return path


def test_all_sources_give_the_same_frames(tmp_path: Path) -> None:
    sources = [
        ALL,
        pictures(),
        folder(tmp_path),
        str(tmp_path),
        animation("PNG"),
        animation("WEBP", lossless=True),
    ]
    for source in sources:
        clip = open_video(source, SAMPLER)
        assert np.array_equal(clip.frames, ALL)
        assert clip.indices == tuple(range(6))
    assert open_video(animation("PNG"), SAMPLER).rate == pytest.approx(4.0)
    assert open_video(animation("GIF"), SAMPLER).frames.shape == ALL.shape


def test_frames_are_sampled_as_the_processor_does() -> None:
    clip = open_video(eyespan.Video(ALL, frames=4), SAMPLER)
    assert clip.indices == (0, 1, 3, 4)
    assert np.array_equal(clip.frames, ALL[[0, 1, 3, 4]])
    by_rate = open_video(eyespan.Video(ALL, fps=2.0, rate=3.0), SAMPLER)
    assert by_rate.indices == (0, 1, 3, 4)
    assert len({clip.digest(), by_rate.digest(), open_video(ALL, SAMPLER).digest()}) == 3


def test_a_file_through_pyav(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=5)
        stream.width, stream.height, stream.pix_fmt = 56, 40, "bgr0"
        for frame in ALL:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    clip = open_video(path, SAMPLER)
    assert np.array_equal(clip.frames, ALL)
    assert clip.rate == pytest.approx(5.0)
    few = open_video(eyespan.Video(path, frames=2), SAMPLER)
    assert np.array_equal(few.frames, ALL[[0, 3]])
    with pytest.raises(InputError, match=r"damaged|only|not a video|0 frames"):
        open_video(path.read_bytes()[:2000], SAMPLER)


def test_bad_videos_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("not a film, " * 50)
    (tmp_path / "folder").mkdir()
    tiny_images(1)[0].save(tmp_path / "still.png")
    bad: list[tuple[Any, str]] = [
        (tmp_path / "missing.mp4", "no such file"),
        (tmp_path / "empty.mp4", "an empty file"),
        (tmp_path / "text.mp4", "not a video|PyAV"),
        (tmp_path / "folder", "no frames"),
        (tmp_path / "still.png", "a still picture"),
        ([], "no frames"),
        (ALL[:0], "0 frames"),
        (ALL.astype(np.float32), "type float32"),
        (ALL[0], "an array of shape"),
        (3, "a int"),
        (tiny_images(2), "different sizes"),
        (animation("WEBP", lossless=True)[:-400], "damaged|only|different|not a video|PyAV"),
        (eyespan.Video(ALL, frames=8), "sampling video"),
        (eyespan.Video(ALL, fps=1.0), "how many frames a second"),
        (np.zeros((1025, 2, 2, 3), np.uint8), "1025 frames"),
    ]
    for source, found in bad:
        with pytest.raises(InputError, match=found):
            open_video(source, SAMPLER)
    with pytest.raises(InputError, match="a single str"):
        open_videos("clip.gif", SAMPLER)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="17 videos"):
        open_videos([ALL] * 17, SAMPLER)


@pytest.mark.parametrize(
    "options",
    [{"frames": 0}, {"frames": 2.5}, {"fps": -1}, {"rate": True}, {"frames": 2, "fps": 1}],
)
def test_bad_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        eyespan.Video(ALL, **options)


def test_a_family_without_video_says_so_before_any_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for family in ("llava", "llama"):
        engine = eyespan.Engine(tiny_target(family), "none", budget=0)
        monkeypatch.setattr(engine.target.model, "forward", None)
        with pytest.raises(InputError, match="takes no videos"):
            engine.generate("What?", videos=[ALL])
    engine = eyespan.Engine(tiny_target("qwen2_5_vl"), "none", budget=0)
    for single in (ALL, eyespan.Video(ALL), "clip.gif"):
        with pytest.raises(InputError, match="a single"):
            engine.generate("What?", videos=single)
    monkeypatch.setattr(engine.target.model, "forward", None)
    video = {"type": "video"}
    for prompt, found in (([video], "1 video"), ([], "0 place")):
        asked = [{"role": "user", "content": [{"type": "text", "text": "a"}, *prompt]}] * 2
        with pytest.raises(InputError, match=r"place\(s\)"):
            engine.generate(asked, videos=[ALL] if found == "0 place" else [])


def test_the_command_line(tmp_path: Path, shell: Shell) -> None:
    target = tiny_target("qwen2_5_vl")
    target.model.save_pretrained(tmp_path / "model")
    target.processor.save_pretrained(tmp_path / "model")
    (tmp_path / "clip.gif").write_bytes(animation("GIF"))
    asked = ["generate", "--model", tmp_path / "model", "--budget", 4, "-n", 6, "What?"]
    film = ["--video", tmp_path / "clip.gif", "--frames", 4]
    done = shell(*asked, *film)
    assert done.code == 0, done.err
    clip = eyespan.Video(tmp_path / "clip.gif", frames=4)
    alone = eyespan.load(tmp_path / "model", "none", budget=0)
    said = alone.generate("What?", videos=[clip], max_new_tokens=6).text
    assert done.out.strip() == said.strip()
    shell.refused(*asked, "--frames", 4)
    shell.refused(*asked, *film, "--fps", 2)
    shell.refused(*asked, "--video", tmp_path / "model")
    assert "takes no videos" in shell.refused("generate", "What?", *film)  # the demo does not

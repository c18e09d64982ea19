"""`eyespan generate`: one answer, streamed, or one for each picture of a folder (`batch.py`)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from eyespan.errors import ConfigError
from eyespan.verbs import console, options, sampling
from eyespan.verbs.batch import Batch
from eyespan.verbs.files import check_writable
from eyespan.verbs.memory import MemoryOption, check_memory_place, remembering

if TYPE_CHECKING:
    from eyespan.generation import Engine
    from eyespan.types import Generation

MAX_ROWS = 256
PAIRS = 3
"""Rounds of the paired clock behind `--show-drafts`."""

EPILOG = """
Examples:

eyespan generate --image receipt.png "What is the total?"

eyespan generate --show-drafts --image chart.png "Describe the chart."

eyespan generate --video clip.gif --frames 8 "What happens?"

eyespan generate --images 'scans/*.png' --out answers.jsonl "Transcribe the text."

eyespan generate --image receipt.png --json-schema receipt.json "Read the receipt."
"""


def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask.")],
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "-i", metavar="FILE", help="A picture; repeat it for several."),
    ] = None,
    video: Annotated[
        list[Path] | None,
        typer.Option(
            "--video",
            metavar="FILE|DIR",
            help="A video (GIF, WebP, PNG animation; any file with eyespan[video]) or a folder of "
            "frames; repeat it for several.",
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option("--frames", metavar="N", min=1, help="With --video: frames to use."),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option("--fps", metavar="F", help="With --video: frames of a second to use."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="DIR|GLOB",
            help="Ask PROMPT about each picture of a folder or quoted pattern, as JSON lines.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="With --images: where the lines go. Run the same command again to resume.",
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            max=MAX_ROWS,
            help="With --images: answers written at once; they are the same for any N.",
        ),
    ] = 1,
    model: options.ModelOption = "demo",
    drafter: options.DrafterOption = "recap",
    max_new_tokens: options.TokensOption = 256,
    budget: options.BudgetOption = "auto",
    option: options.SettingOption = None,
    verification: options.VerificationOption = "walk",
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    compiled: options.CompiledOption = False,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Text that ends the answer; repeatable."),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option("--scope", metavar="NAME", help="Name of the memory that requests share."),
    ] = None,
    temperature: sampling.TemperatureOption = None,
    top_p: sampling.TopPOption = None,
    top_k: sampling.TopKOption = None,
    seed: sampling.SeedOption = None,
    json_schema: sampling.SchemaOption = None,
    regex: sampling.RegexOption = None,
    choice: sampling.ChoiceOption = None,
    strict: sampling.StrictOption = False,
    trace: options.TraceOption = None,
    memory: MemoryOption = None,
    show_drafts: Annotated[
        bool,
        typer.Option("--show-drafts", help="Colour what was drafted, and measure the speed-up."),
    ] = False,
) -> None:
    """Answer PROMPT, about pictures or videos or without.

    The answer goes to stdout, remarks to stderr. With --images every picture gets an answer of its
    own: JSON lines in --out (or on stdout), a progress bar, and an interrupted run goes on where it
    stopped when the same command is given again.

    Exit codes: 0 done, 1 some pictures failed (their lines say why), 2 bad input, 130 interrupted.
    """
    wanted = options.setup(
        model=model,
        drafter=drafter,
        budget=budget,
        dtype=dtype,
        device=device,
        option=option,
        verification=verification,
        compiled=compiled,
    )
    chosen = sampling.sampling_of(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        schema=json_schema,
        regex=regex,
        choice=choice,
        strict=strict,
    )
    _check_combination(image or [], images, out, show_drafts, batch, bool(video))
    if show_drafts and verification == "rejection":
        raise ConfigError(
            "--show-drafts with --verification rejection",
            found="two runs of one seed write different answers",
            needed="equal answers are needed to time one against the other",
            todo="Leave one out.",
        )
    _check_videos(video or [], frames, fps)
    _check_files([*(image or []), *(video or [])], out, trace)
    check_writable(trace, "trace file")
    check_writable(out, "result file")
    check_memory_place(memory)
    asked: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop or [], "scope": scope}
    asked |= chosen
    if video:
        from eyespan.target.video import Video

        asked["videos"] = [Video(path, frames=frames, fps=fps) for path in video]
    if images is not None:
        raise typer.Exit(Batch(wanted, prompt, asked, batch).run(images, out, trace, memory))
    engine = wanted.load()
    asked["trace"] = trace
    if show_drafts:
        asked.setdefault("seed", secrets.randbits(31))  # the runs it is timed against draw the same
    with remembering(engine, memory, scope):
        result, origins = stream_answer(
            engine, prompt, image or [], show_drafts=show_drafts, **asked
        )
    if result.finish == "cancelled":
        kept = f"; its trace is in {trace}" if trace else ""
        console.notes().print(f"stopped after {len(result.token_ids)} tokens{kept}")
        raise typer.Exit(130)
    if strict:
        console.notes().print(strict_line(result))
    if show_drafts:
        console.notes().print(console.legend(origins))
        console.notes().print(speed_line(engine, prompt, image or [], result, **asked))


def _check_combination(
    image: Sequence[Path],
    images: str | None,
    out: Path | None,
    show_drafts: bool,
    batch: int,
    films: bool,
) -> None:
    """Refuse options that contradict each other."""
    folders = [path for path in image if os.path.isdir(path)]
    clash = (
        (bool(folders), "--image with a folder", "Use --images for a folder."),
        (bool(image) and images is not None, "--image with --images", "Use one of them."),
        (films and images is not None, "--video with --images", "Use one of them."),
        (out is not None and images is None, "--out without --images", "Redirect stdout instead."),
        (batch > 1 and images is None, "--batch without --images", "Leave it out."),
        (show_drafts and images is not None, "--show-drafts with --images", "Leave one out."),
    )
    for found, what, todo in clash:
        if found:
            raise ConfigError(
                what,
                found="the two do not go together",
                needed="--image takes the pictures of one question, --images asks one question "
                "about many pictures",
                todo=todo,
            )


def _check_videos(video: Sequence[Path], frames: int | None, fps: float | None) -> None:
    """Refuse sampling of nothing, and two ways of it."""
    for name, value in (("--frames", frames), ("--fps", fps)):
        if value is not None and not video:
            raise ConfigError(
                name,
                found="no --video beside it",
                needed="it says which frames of a video are used",
                todo="Name a video, or leave it out.",
            )
    if frames is not None and fps is not None:
        raise ConfigError(
            "--frames with --fps",
            found="two ways of sampling",
            needed="one of them alone",
            todo="Leave one out.",
        )


def _check_files(image: Sequence[Path], out: Path | None, trace: Path | None) -> None:
    """Refuse to write one file over another of the same command."""
    taken = {os.path.realpath(path) for path in (*image, *([out] if out else ()))}
    if trace is not None and os.path.realpath(trace) in taken:
        raise ConfigError(
            f"--trace {trace}",
            found="a file that this command reads or writes already",
            needed="a file of its own is needed",
            todo="Choose another name for the trace.",
        )


def stream_answer(
    engine: Engine, prompt: Any, images: Sequence[Path], *, show_drafts: bool, **asked: Any
) -> tuple[Generation, list[str]]:
    """Write an answer to stdout while it grows; Ctrl-C ends it and keeps what is there.

    Returns:
        The answer and the origins of its pieces, in order of appearance.
    """
    with engine.stream(prompt, images, **asked) as stream:
        origins = console.write_answer(stream, show_drafts=show_drafts)
    return stream.generation, origins


def strict_line(result: Generation) -> str:
    """What `--strict` did and cost."""
    return (
        f"strict: {result.near_ties} near ties decided as plain decoding does, by "
        f"{result.strict_forwards} forwards on top of {result.forwards}"
    )


def speed_line(
    engine: Engine, prompt: Any, images: Sequence[Path], result: Generation, **asked: Any
) -> Text:
    """tau, and S measured now: plain decoding against this engine, in turns, outputs compared."""
    from eyespan.bench.clock import engine_side, race
    from eyespan.generation import Engine

    asked = {**asked, "trace": None}
    plain = Engine(engine.target, "none", budget=0)
    with console.waiting("measuring against plain decoding"):
        found = race(
            {
                "plain": engine_side(plain, prompt, images, **asked),
                "drafted": engine_side(engine, prompt, images, **asked),
            },
            rounds=PAIRS,
        )
    speed = found.speed("drafted")
    line = Text(
        f"tau {result.tau:.2f} ({len(result.token_ids)} tokens in {result.forwards} forwards)"
    )
    if speed is None:
        return line.append("; no speed: plain decoding wrote another answer (eyespan verify)")
    return line.append(
        f", S {speed:.2f} against plain decoding (median of {PAIRS} pairs, outputs equal)"
    )

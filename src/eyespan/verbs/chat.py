"""`eyespan chat`: a conversation in the terminal, or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyespan.errors import EyespanError
from eyespan.verbs import console, options, sampling
from eyespan.verbs.memory import MemoryOption, check_memory_place, remembering

if TYPE_CHECKING:
    from PIL.Image import Image

    from eyespan.chat_session import Chat
    from eyespan.types import Generation

COMMANDS = """\
/image PATH   a picture for what you say next; repeat it for several
/video PATH   a video for what you say next: an animation, a folder of frames, a file
/edit TEXT    say TEXT instead of your last message
/reset        forget the conversation
/quit         leave (so does the end of the input)
//TEXT        say something that begins with /"""

EPILOG = """
Examples:

eyespan chat --image receipt.png

printf 'What is the total?\\nAnd the date?\\n' | eyespan chat --image receipt.png
"""


def chat(
    image: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", "-i", metavar="FILE", help="A picture for the first message; repeatable."
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="What the model is told before all."),
    ] = None,
    model: options.ModelOption = "demo",
    drafter: options.DrafterOption = "recap",
    max_new_tokens: options.TokensOption = 512,
    budget: options.BudgetOption = "auto",
    option: options.SettingOption = None,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    temperature: sampling.TemperatureOption = None,
    top_p: sampling.TopPOption = None,
    top_k: sampling.TopKOption = None,
    seed: sampling.SeedOption = None,
    memory: MemoryOption = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour what was drafted.")
    ] = False,
) -> None:
    """Talk with a model, about pictures or without; earlier turns are not read again.

    Each line is a message, lines that begin with / are commands (/help lists them). Answers go to
    stdout, their speed and remarks to stderr. Ctrl-C ends an answer, at the prompt the chat.

    Exit codes: 0 done, 1 a message could not be answered (through a pipe only), 2 bad input,
    130 interrupted at the prompt.
    """
    wanted = options.setup(
        model=model, drafter=drafter, budget=budget, dtype=dtype, device=device, option=option
    )
    chosen = sampling.sampling_of(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    check_memory_place(memory)
    first = [_opened(str(path)) for path in image or []]
    engine = wanted.load()
    with (
        remembering(engine, memory, None),
        engine.chat(system, max_new_tokens=max_new_tokens, **chosen) as talk,
    ):
        failed = Talk(talk, first, show_drafts).run()
    if failed and not sys.stdin.isatty():
        raise typer.Exit(1)


class Talk:
    """Lines in, answers out.

    Args:
        chat: the conversation.
        pictures: for the first message.
        show_drafts: whether drafted text is coloured.
    """

    def __init__(self, chat: Chat, pictures: Sequence[Image], show_drafts: bool) -> None:
        self._chat, self._waiting, self._show_drafts = chat, list(pictures), show_drafts
        self._films: list[str] = []
        self._notes = console.notes()
        self._failed = 0

    def run(self) -> int:
        """Until the input ends; how many messages could not be answered."""
        if sys.stdin.isatty():
            self._notes.print("/help lists the commands, /quit leaves", style="dim")
        for line in _lines():
            if line == "/quit":
                break
            try:
                self._take(line)
            except EyespanError as error:
                self._failed += 1
                sentence = " ".join(str(error).split())
                self._notes.print(f"eyespan: {sentence}", markup=False, soft_wrap=True)
        return self._failed

    def _take(self, line: str) -> None:
        """Do what a line says."""
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        if line.startswith("//"):
            self._say(line[1:])
        elif not line.startswith("/"):
            if line.strip() or self._waiting or self._films:
                self._say(line)
        elif command == "/image" and rest:
            self._waiting.append(_opened(rest))
        elif command == "/video" and rest:
            self._films.append(rest)
        elif command == "/edit" and rest and self._chat.turns:
            images = self._waiting or self._chat.turn_pictures(-1)
            self._answer(rest, images, self._films or self._chat.turn_videos(-1), at=-1)
        elif line == "/reset":
            self._chat.reset()
            self._waiting.clear()
            self._films.clear()
        else:
            if line != "/help":
                self._failed += 1
            self._notes.print(COMMANDS, markup=False)

    def _say(self, text: str) -> None:
        self._answer(text, self._waiting, self._films, at=None)

    def _answer(
        self, text: str, images: Sequence[Image], videos: Sequence[Any], at: int | None
    ) -> None:
        """Stream one answer; its pictures and videos are used up, said or not."""
        self._waiting, self._films = [], []
        with self._chat.stream(text, images, at=at, videos=videos) as stream:
            console.write_answer(stream, show_drafts=self._show_drafts)
        line = speed_of(stream.generation)
        self._notes.print(line, style="dim", markup=False, soft_wrap=True)


def speed_of(result: Generation) -> str:
    """What a turn cost, in a line."""
    seconds = result.seconds["prefill"] + result.seconds["decode"]
    tokens = len(result.token_ids)
    rate = f", {tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    stopped = ", stopped" if result.finish == "cancelled" else ""
    return (
        f"tau {result.tau:.2f}{rate} ({tokens} tokens in {result.forwards} forwards, "
        f"{result.reused} prompt tokens reused{stopped})"
    )


def _lines() -> Iterator[str]:
    """What is typed or piped in, line by line; Ctrl-C at the prompt ends the program."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - arrow keys and history
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            raise typer.Abort from None


def _opened(path: str) -> Any:
    from eyespan.target.images import open_picture

    return open_picture(path)

"""Where verbs write: answers go to stdout, everything said about them to stderr.

Colours appear on a terminal only, or with FORCE_COLOR set, and never with NO_COLOR; what they mean
is also bold or underlined, so nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

if TYPE_CHECKING:
    from eyespan.answer import Chunk

_STYLES = {"target": "none", "suffix": "underline cyan"}
_DRAFTED = "bold green"
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def answers() -> Console:
    """Stdout, text exactly as given."""
    return Console(highlight=False, markup=False, emoji=False)


def notes() -> Console:
    """Stderr, for tables, progress and remarks."""
    return Console(stderr=True, highlight=False, emoji=False)


def style_of(origin: str) -> str:
    """How text of a token's origin looks; every drafter's own guesses look alike."""
    return _STYLES.get(origin, _DRAFTED)


def legend(origins: Iterable[str]) -> Text:
    """What the styles mean, for the origins that occurred."""
    line = Text("drafted and accepted: ")
    drafted = [origin for origin in dict.fromkeys(origins) if origin != "target"]
    for origin in drafted:
        line.append(origin, style_of(origin)).append("  ")
    if not drafted:
        line.append("nothing  ")
    return line.append("the model's own: ").append("plain", style_of("target"))


def write(console: Console, text: str, style: str = "none") -> None:
    """Write a stretch of an answer: styled where colours are wanted, byte for byte elsewhere."""
    if style != "none" and console.color_system is not None:
        console.out(printable(text, console), style=style, end="")
    else:
        console.file.write(printable(text, console))


def write_answer(stream: Iterable[Chunk], *, show_drafts: bool) -> list[str]:
    """Write an answer to stdout while it grows; Ctrl-C ends it and keeps what is there.

    Returns:
        The origins of its pieces, in order of appearance.
    """
    out, origins = answers(), dict[str, None]()
    try:
        for chunk in stream:
            for piece in chunk.pieces:
                origins[piece.origin] = None
                write(out, piece.text, style_of(piece.origin) if show_drafts else "none")
            out.file.flush()
    except KeyboardInterrupt:
        pass
    finally:
        write(out, "\n")
    return list(origins)


def printable(text: str, console: Console) -> str:
    """Text that cannot steer a terminal; unchanged where it goes to a file or a pipe."""
    return text.translate(_CONTROL) if on_terminal(console) else text


def on_terminal(console: Console) -> bool:
    """Whether a person watches; FORCE_COLOR, which rich counts as one, is about colours only."""
    return console.file.isatty()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal's stderr that something slow is under way.

    A standing line, not a spinner: that would take time from what is being measured.
    """
    console = notes()
    if not on_terminal(console):
        yield
        return
    console.print(f"{what} ...", end="\r")
    try:
        yield
    finally:
        console.control(Control((ControlType.ERASE_IN_LINE, 2)))

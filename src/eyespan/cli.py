"""The command line. Verbs live in `eyespan/verbs/`, one file each; this file lists them and is the
one place where errors become sentences and exit codes: 0 done, 1 a check or a picture failed, 2 bad
input, 130 interrupted, 141 nobody reads the output any more, as behind `| head -1`: silently, and
with the code that shells give to a tool which the system ends for that reason.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from eyespan import __version__
from eyespan.errors import EyespanError
from eyespan.verbs import (
    bench,
    chat,
    corpus,
    demo,
    diagnose,
    doctor,
    generate,
    inspect,
    replay,
    train,
    verify,
)

UNREAD = 141
"""128 and the number of SIGPIPE."""

app = typer.Typer(
    name="eyespan",
    help="Vision-language models that read ahead: faster generation, the same words.",
    epilog="Start with: eyespan demo",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=generate.EPILOG)(generate.generate)
app.command(epilog=chat.EPILOG)(chat.chat)
app.command(epilog=verify.EPILOG)(verify.verify)
app.command(epilog=inspect.EPILOG)(inspect.inspect)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=demo.EPILOG)(demo.demo)
app.add_typer(corpus.app)
app.add_typer(bench.bench)
app.command(epilog=replay.EPILOG)(replay.replay)
app.add_typer(diagnose.app)
app.add_typer(train.app, name="train")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    """Vision-language models that read ahead: faster generation, the same words."""
    if version:
        sys.stdout.write(f"eyespan {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        args: without the program's name; None takes the process's own.
    """
    _keep_quiet()
    try:
        code = app(args=args, prog_name="eyespan", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return UNREAD
    except SystemExit as end:  # what typer makes of it
        if isinstance(end.__context__, BrokenPipeError):
            return UNREAD
        raise
    except (EyespanError, typer.TyperException) as error:
        text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        _complain(text)
        return 2
    except OSError as error:  # a folder that may not be read, a full disk behind stdout
        _complain(str(_refused(error)))
        return 2
    except typer.Abort:
        return 130
    given = sys.argv[1:] if args is None else args
    if code == 130 and " ".join(given[:2]) in _GO_ON:
        _complain("interrupted; the same command goes on from here")
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    code = run()
    if code == UNREAD:  # what is buffered still has no reader either
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _refused(error: OSError) -> EyespanError:
    """What the system refused and nobody below put into words."""
    return EyespanError(
        str(error.filename or "output"),
        found=error.strerror or str(error),
        needed="a place that may be read and written, with room in it, is needed",
        todo="Check the path, its permissions and the disk.",
    )


def _complain(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"eyespan: {' '.join(text.split())}\n")


def _keep_quiet() -> None:
    """Keep other libraries' remarks off the terminal; settings that a user made are left alone.

    Streams that cannot write a character write a replacement instead of failing.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what it cannot show must not end a run
    log = logging.getLogger("eyespan")
    if not log.handlers:
        log.addHandler(_Remarks())


_GO_ON = {"bench run", "train run", "train capture"}
"""What keeps its results as it goes."""
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class _Remarks(logging.Handler):
    """Our own warnings as sentences on stderr: what went wrong, without the stack below it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        reason = f" ({record.exc_info[1]!r})" if record.exc_info and record.exc_info[1] else ""
        _complain(f"{record.levelname.lower()}: {record.getMessage()}{reason}")

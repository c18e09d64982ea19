"""Run command lines in this process, as a shell would see them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from eyespan.cli import run


@dataclass(frozen=True)
class Done:
    """What a command line left behind."""

    code: int
    out: str
    err: str


class Shell:
    """Runs command lines; `capsys` collects what they write."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> Done:
        self._capsys.readouterr()
        code = run([str(arg) for arg in args])
        written = self._capsys.readouterr()
        return Done(code, written.out, written.err)

    def refused(self, *args: object) -> str:
        """Run a command line that must be refused: exit code 2 and one line on stderr."""
        done = self(*args)
        assert done.code == 2, done
        assert done.out == ""
        assert "Traceback" not in done.err
        assert done.err.startswith("eyespan: ")
        assert done.err.count("\n") == 1
        assert done.err.endswith("\n")
        return done.err

"""A number's birth certificate: commit, versions, machine, threads and command."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from eyespan import __version__
from eyespan.errors import unwritable


def manifest() -> dict[str, Any]:
    """What a reader needs to judge or repeat a number."""
    return {
        "commit": _commit(),
        "versions": {
            "eyespan": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "numpy")},
        },
        "machine": _processor(),
        "threads": torch.get_num_threads(),
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def progress(text: str) -> None:
    """A line on stderr, so that a run in the background can be followed in its log."""
    print(text, file=sys.stderr, flush=True)


def write_json(file: Path, result: Mapping[str, Any]) -> None:
    """Write a result whole or not at all, so that a kill leaves the file as it was.

    Raises:
        OutputError: the file cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise unwritable(f"result file {file}", error) from error


def _commit() -> str | None:
    """The checkout's commit, with "+" when files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *args], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _program() -> str:
    """How this program is called: by its name, or as `python -m PACKAGE`'s package."""
    called = Path(sys.argv[0])
    return called.parent.name if called.name == "__main__.py" else called.name

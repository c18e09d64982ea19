"""Write src/eyespan/_core.pyi from the compiled module; `--check` only says whether it is stale."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen

import eyespan._core

STUB = Path(__file__).parents[1] / "src" / "eyespan" / "_core.pyi"
HEADER = "# Written by scripts/write_stub.py from the compiled module; change cpp/bindings.\n"


def stub() -> str:
    """The stub's text; array types keep their element type, shapes stand in the docstrings."""
    generator = StubGen(eyespan._core)
    generator.put(eyespan._core)
    text = re.sub(r"Annotated\[(NDArray\[numpy\.\w+\]), dict\(.*?\)\]", r"\1", generator.get())
    text = HEADER + text.replace("from typing import Annotated\n", "")
    name = ("--stdin-filename", str(STUB))
    for command in (["check", "--quiet", "--exit-zero", "--fix", "--select", "I,D,UP"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main() -> None:
    """Write the stub, or fail when it is stale."""
    fresh = stub()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(fresh)
    elif STUB.read_text() != fresh:
        sys.exit(f"{STUB.name} is stale: run python scripts/write_stub.py")


if __name__ == "__main__":
    main()

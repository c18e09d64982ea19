"""The committed stub of the compiled core is the one that the module gives."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import processes

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_stub.py"


def test_the_stub_is_fresh() -> None:
    processes.finished([sys.executable, str(SCRIPT), "--check"])

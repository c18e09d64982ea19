"""Other processes that tests start: what one of them said is in the failure it causes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

_SHOWN = 6000


def finished(command: Sequence[str], **options: Any) -> str:
    """Run a command to its end and take what it printed; it must succeed.

    Args:
        command: as for `subprocess.run`.
        options: likewise.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    said = f"{done.stdout}\n{done.stderr}"[-_SHOWN:]
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
    return str(done.stdout)

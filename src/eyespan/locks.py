"""One writer a file: whoever comes second is told, before anything is lost."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import IO, Any

from eyespan.errors import OutputError


def lock(file: IO[Any], what: str) -> None:
    """Lock an open file until it is closed. Devices and pipes take any number of writers, and a
    file system without locks is taken as it is.

    Args:
        file: open.
        what: its role and path, for the message.

    Raises:
        OutputError: another run writes there.
    """
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise busy(what) from error


def busy(what: str) -> OutputError:
    """The error for a place that another run is writing to."""
    return OutputError(
        what,
        found="another run is writing there",
        needed="a place of its own is needed for every run",
        todo="Wait for the other one, or choose another path.",
    )

"""How long something took, for rules that weigh costs.

On a CPU, time spent waiting for a core is not a step's own, and a busy machine would make steps
look dear that are not; a GPU works while the process waits.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import NamedTuple


class Moment(NamedTuple):
    """A point in time.

    Attributes:
        wall: seconds on the clock.
        busy: seconds of the processor, of all threads.
    """

    wall: float
    busy: float

    @staticmethod
    def now() -> Moment:
        """Now."""
        return Moment(perf_counter(), process_time())

    def ms_until(self, end: Moment, *, on_cpu: bool) -> float:
        """Milliseconds from here to `end`: of the wall, on a CPU of the processor if those are
        fewer.
        """
        wall, busy = end.wall - self.wall, end.busy - self.busy
        return 1e3 * (min(wall, busy) if on_cpu else wall)

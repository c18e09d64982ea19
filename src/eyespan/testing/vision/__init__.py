"""Tiny vision-language models.

`PROCESSED` families come with their own processor (see `testing/processors.py`); for the `FED` ones
the processors of real models need files, so their pictures are random tensors of the right shapes,
of different sizes where the family takes those.
"""

from collections.abc import Mapping

from eyespan.testing.vision import grids, others, tiles
from eyespan.testing.vision.pictures import Tiny

PROCESSED: Mapping[str, Tiny] = {**tiles.PROCESSED, **grids.PROCESSED}
"""Families whose own processors are there too."""

FED: Mapping[str, Tiny] = {**grids.FED, **tiles.FED, **others.FED}
"""Families whose pictures are fed as tensors."""

__all__ = ["FED", "PROCESSED", "Tiny"]

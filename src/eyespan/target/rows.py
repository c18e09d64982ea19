"""Top-K rows: the K best ids and logits at every node, exactly, in one transfer to the host.

The rule (types.py): descending logit compared as float32, equal logits by the lower id. `topk`
returns the right *values* but any of several equal ids, so one value more than needed is taken:
where the last two differ, the first K ids are certain and only their order among equals is left,
which the host sorts. Where they are equal (a tie across the border), that row is ranked again by a
sortable integer key. Cost on one core: 0.1 ms for 16 rows of a 2k vocabulary, 1.7 ms for 49k.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from eyespan.types import ROW_SIZE, Floats, Ints


def top_rows(logits: Tensor) -> tuple[Ints, Floats]:
    """Rank every row.

    Args:
        logits: [n, V] in any float dtype, on any device.

    Returns:
        ids [n, K] and logits [n, K], K = 8; a vocabulary below K is padded with id -1 and -inf.
        ids[:, 0] equals `logits.argmax(-1)`.
    """
    values, ids = logits.topk(min(ROW_SIZE + 1, logits.shape[-1]), dim=-1)
    host_ids, host_values = _to_host(ids, values)
    tied = _border_ties(host_values)
    if tied.size:
        ids = _rank_by_key(logits[torch.from_numpy(tied).to(logits.device)])
        host_ids[tied, :ROW_SIZE] = ids.to("cpu", torch.int32).numpy()
        host_values[tied, ROW_SIZE] = -np.inf  # the value taken too many must not come back in
    order = np.lexsort((host_ids, -host_values), axis=-1)[:, :ROW_SIZE]
    return _padded(
        np.take_along_axis(host_ids, order, -1), np.take_along_axis(host_values, order, -1)
    )


def _to_host(ids: Tensor, values: Tensor) -> tuple[Ints, Floats]:
    """[n, k] ids and values as one int32 tensor: the step's single device-to-host copy."""
    packed = torch.cat([ids.to(torch.int32), values.float().view(torch.int32)], dim=-1)
    host = packed.cpu().numpy()
    k = ids.shape[-1]
    return host[:, :k].copy(), host[:, k:].copy().view(np.float32)


def _border_ties(values: Floats) -> npt.NDArray[np.intp]:
    """Rows whose K-th and (K+1)-th values are equal, so that the K-th id is not certain."""
    if values.shape[-1] <= ROW_SIZE:
        return np.empty(0, np.intp)
    return np.flatnonzero(values[:, ROW_SIZE - 1] == values[:, ROW_SIZE])


def _rank_by_key(logits: Tensor) -> Tensor:
    """[m, V] -> [m, K] ids by a 64-bit key: the float's bits in sortable order, then lower id."""
    bits = (logits.float() + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 equals 0.0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    size = logits.shape[-1]
    lower_first = torch.arange(size - 1, -1, -1, device=logits.device)
    key: Tensor = (rising << 32) + lower_first
    return key.topk(ROW_SIZE, dim=-1).indices


def _padded(ids: Ints, values: Floats) -> tuple[Ints, Floats]:
    missing = ROW_SIZE - ids.shape[-1]
    if missing > 0:
        ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=-1)
        values = np.pad(values, ((0, 0), (0, missing)), constant_values=-np.inf)
    return ids.astype(np.int32, copy=False), values.astype(np.float32, copy=False)

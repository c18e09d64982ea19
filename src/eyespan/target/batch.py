"""Many sequences in one forward: a cache of B rows, one explicit mask, one call.

Row b holds its tokens in the slots 0 .. length_b - 1, so a slot is a position in the text and rows
differ at their right ends only. A forward appends as many slots to every row as the widest pack has
nodes. What a row accepted of its pack then moves behind what it holds, a few slots a round and no
compaction ever, and the cache is cut to the longest row. Slots behind a row's end hold leftovers;
the mask, built from every row's own length, never shows them. (Right-aligned rows, which look like
left padding to any model, would move every cached token of every row that accepted less than the
luckiest one; rows with holes would have to be compacted from time to time.)

Nodes that fill up a shorter pack repeat its root, see the text and themselves, and nobody reads
what comes out: no row of the mask is empty, which would make NaN.

The order of additions depends on the shapes of a call, so a row's logits differ from those of its
solo run by rounding, as any other two batch sizes do.

Only models whose every layer sees the whole past and takes one mask come here. Windows count slots
and recurrent states count calls; such models run their rows one after the other (`adapter.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DummyLayer, DynamicLayer

from eyespan.target.base import SequenceState
from eyespan.target.cache import new_cache
from eyespan.target.capabilities import Capabilities
from eyespan.target.families import Family
from eyespan.target.tree_forward import ancestor_matrix, as_the_model_takes, call_model
from eyespan.types import Ints, PackedTree, empty_ints


class Row:
    """One sequence's place in a shared cache.

    Attributes:
        held: tokens in the slots 0 .. held - 1.
        tail: [t] nodes of the last pack that stay, in packed order; they stand behind the shared
            slots until the next forward moves them.
    """

    def __init__(self, batch: SharedCache, state: SequenceState) -> None:
        self._batch, self.state = batch, state
        self.held, self.tail = state.length, empty_ints()

    def keep(self, path: Ints) -> None:
        """Keep the root and `path` [a] of the last pack."""
        self.tail = np.concatenate([[0], path]).astype(np.int32)

    def drop(self) -> None:
        """Keep nothing of the last pack."""
        self.tail = empty_ints()

    def leave(self) -> None:
        """Go back to a cache of its own, the nodes of a pending pack included."""
        self._batch.take_out(self)

    def discard(self) -> None:
        """Leave without taking anything along."""
        self._batch.remove(self)


class SharedCache:
    """The cache of a batch. Its rows are whoever took part in the last forward.

    Sequences join by being forwarded together and leave when their own cache is asked for, so
    everything that works on one sequence works on a member too.

    Args:
        config: the model's, to make the cache.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._rows: list[Row | None] = []  # None: left, its memory goes with the next forward
        self._cache: Any = None
        self._slots = 0

    @staticmethod
    def takes(state: SequenceState) -> bool:
        """Whether a sequence's layers are of the kind that can stand beside each other."""
        if state.row is not None:
            return True
        kinds = {type(layer) for layer in state.cache.layers}
        return state.capacity is None and kinds <= {DynamicLayer, DummyLayer}

    def gather(self, states: Sequence[SequenceState]) -> Any:
        """Make these the rows, in this order, with every row's tokens in front.

        Returns:
            The transformers cache to run; its new slots are the pack's.
        """
        for row in self._rows:
            if row is not None and row.state not in states:
                row.leave()
        self._settle()
        if [row and row.state for row in self._rows] != list(states):
            self._rebuild(states)
        return self._cache

    def grown(self, trees: Sequence[PackedTree]) -> None:
        """A forward has appended these packs, one a row."""
        for row, tree in zip(self._rows, trees, strict=True):
            assert row is not None
            row.tail = np.arange(len(tree), dtype=np.int32)

    def visible(self, device: torch.device) -> Tensor:
        """[B, slots] bool: which slots hold text of each row; padding of a prompt does not."""
        lengths = torch.tensor([row.held if row else 0 for row in self._rows], device=device)
        seen = torch.arange(self._slots, device=device) < lengths[:, None]
        for at, row in enumerate(self._rows):
            if row is not None and row.state.padding is not None:
                seen[at, : row.held] &= row.state.padding[0].to(device)
        return seen

    def take_out(self, row: Row) -> None:
        """Copy a row's tokens back into its own cache."""
        at = self._rows.index(row)
        slots = np.concatenate([np.arange(row.held), self._slots + row.tail.astype(np.int64)])
        self.remove(row, freeing=False)
        own = row.state.cache
        for layer, mine in zip(_filled(self._cache), _filled(own), strict=True):
            index = torch.from_numpy(slots).to(layer.keys.device)
            mine.keys = layer.keys[at : at + 1].index_select(2, index)
            mine.values = layer.values[at : at + 1].index_select(2, index)
        self._free_if_empty()

    def remove(self, row: Row, *, freeing: bool = True) -> None:
        """Forget a row."""
        self._rows[self._rows.index(row)] = None
        row.state.row = None
        if freeing:
            self._free_if_empty()

    def _free_if_empty(self) -> None:
        if not any(self._rows):
            self._rows, self._cache, self._slots = [], None, 0

    def _settle(self) -> None:
        """Move what the rows kept behind what they hold; cut to the longest."""
        at: list[int] = []
        sources: list[int] = []
        targets: list[int] = []
        for number, row in enumerate(self._rows):
            if row is None:
                continue
            for place, node in enumerate(row.tail.tolist(), start=row.held):
                if place != self._slots + node:
                    at.append(number)
                    sources.append(self._slots + node)
                    targets.append(place)
            row.held += len(row.tail)
            row.tail = empty_ints()
        if self._cache is None:
            return
        self._slots = max(row.held for row in self._rows if row is not None)
        for layer in _filled(self._cache):
            if at:
                b, source, target = torch.tensor([at, sources, targets], device=layer.keys.device)
                layer.keys[b, :, target] = layer.keys[b, :, source]
                layer.values[b, :, target] = layer.values[b, :, source]
            layer.keys = layer.keys[:, :, : self._slots]
            layer.values = layer.values[:, :, : self._slots]

    def _rebuild(self, states: Sequence[SequenceState]) -> None:
        """Copy those who stay and those who join to the rows of new tensors."""
        earlier, old = self._cache, self._slots
        stayed = {id(row.state): at for at, row in enumerate(self._rows) if row is not None}
        rows = [state.row or Row(self, state) for state in states]
        self._slots = max(row.held for row in rows)
        self._cache = new_cache(self._config)
        own = [None if id(state) in stayed else _filled(state.cache) for state in states]
        layers = _filled(earlier) if earlier is not None else next(each for each in own if each)
        places = [at for at, layer in enumerate(self._cache.layers) if type(layer) is DynamicLayer]
        for number, (place, layer) in enumerate(zip(places, layers, strict=True)):
            new = []
            for name in ("keys", "values"):
                like = getattr(layer, name)
                tensor = like.new_zeros(len(rows), like.shape[1], self._slots, like.shape[3])
                for at, (state, mine) in enumerate(zip(states, own, strict=True)):
                    if mine is None:
                        held = min(old, self._slots)
                        tensor[at, :, :held] = like[stayed[id(state)], :, :held]
                    else:
                        joining = getattr(mine[number], name)
                        tensor[at, :, : joining.shape[2]] = joining[0]
                        setattr(mine[number], name, joining[:, :, :0].clone())  # frees the rest
                new.append(tensor)
            self._cache.update(new[0], new[1], place)
        self._rows = list(rows)
        for row in rows:
            row.state.row = row


def _filled(cache: Any) -> list[Any]:
    """The layers that hold keys and values."""
    return [layer for layer in cache.layers if type(layer) is DynamicLayer]


def forward_rows(
    model: Any,
    capabilities: Capabilities,
    family: Family,
    batch: SharedCache,
    states: Sequence[SequenceState],
    trees: Sequence[PackedTree],
    hidden: bool = False,
) -> Any:
    """Run one pack a row in one call.

    Args:
        model: a transformers model.
        capabilities: what `inspect_model` found.
        family: its row.
        batch: where the sequences' tokens are, or will be.
        states: [B] sequences, none with a pending pack.
        trees: [B] packs.
        hidden: return the states of all layers too.

    Returns:
        The model's output, logits [B, N, V]; row b's nodes come first, what follows is filling.
    """
    device, width = capabilities.device, max(map(len, trees))
    cache = batch.gather(states)
    tokens = np.empty((len(trees), width), np.int64)
    depths = np.zeros((len(trees), width), np.int64)
    in_pack = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    for at, tree in enumerate(trees):
        size = len(tree)
        tokens[at, :size], tokens[at, size:] = tree.tokens, tree.tokens[0]
        depths[at, :size] = tree.depths
        in_pack[at, :size, :size] = ancestor_matrix(tree.ancestors, size)
    text = batch.visible(device)[:, None].expand(-1, width, -1)
    mask = torch.cat([text, in_pack.to(device)], dim=-1)[:, None]
    output = call_model(
        model,
        capabilities,
        family,
        cache,
        input_ids=torch.from_numpy(tokens).to(device),
        position_ids=torch.cat([state.next_position for state in states], dim=-2)
        + torch.from_numpy(depths).to(device),
        mask=as_the_model_takes(capabilities, mask),
        logits_to_keep=width,
        hidden=hidden,
    )
    batch.grown(trees)
    return output

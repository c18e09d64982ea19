"""Verify passes of one model: packs of tree nodes are run behind what is cached, the accepted path
is kept, the rest forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from eyespan.target import cache as caches
from eyespan.target import replay
from eyespan.target.attention import Watched, last_layer_modules, row_watched
from eyespan.target.base import SequenceState
from eyespan.target.batch import SharedCache, forward_rows
from eyespan.target.capabilities import Capabilities
from eyespan.target.extras import hidden_states
from eyespan.target.families import Family
from eyespan.target.rows import top_rows
from eyespan.target.states import StateTree
from eyespan.target.static import Passes
from eyespan.target.tree_forward import call_model, forward_tree, step_inputs
from eyespan.types import Ints, Needs, PackedTree, TargetOut, empty_ints


class Packs:
    """Runs packs and keeps what of them was accepted.

    Args:
        model: live.
        capabilities: what was found in it.
        family: its row in the table of families.
        name: how error messages call it.
        one_pass: whether the rows of a batch may share a forward.

    Attributes:
        compiled: passes that single sequences run in; None: the model's own forward.
    """

    def __init__(
        self,
        model: Any,
        capabilities: Capabilities,
        family: Family,
        name: str,
        *,
        one_pass: bool,
    ) -> None:
        self._model, self._capabilities, self._family = model, capabilities, family
        self._name, self._one_pass = name, one_pass
        self._shared = SharedCache(model.config)
        self.compiled: Passes | None = None

    @cached_property
    def last_layer(self) -> tuple[torch.nn.Module, ...]:
        """Where attention is looked at; found when somebody asks first."""
        return last_layer_modules(self._model, self._capabilities.layers)

    @torch.no_grad()
    def forward(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run one pack per sequence: all in one call where `info.one_pass` says so, else one call
        each, since a window counts cached slots and a recurrent state counts calls.

        Args:
            states: different sequences, each kept since its last forward.
            trees: one pack each, `tokens[0]` the root; one node is a plain step.
            needs: only `hidden_layers` and `visual_attention` matter here; rows always come.
        """
        if any(state.pending for state in states):
            raise RuntimeError("keep() must follow every forward(): the last pack is still cached")
        if len(states) > 1 and self._one_pass and all(map(SharedCache.takes, states)):
            return self._run_rows(states, trees, needs)
        return [self._run(*pair, needs) for pair in zip(states, trees, strict=True)]

    @torch.no_grad()
    def grow(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that a tree has gained since the last forward; the others stay cached.

        Args:
            state: after a forward over the first nodes of `tree`.
            tree: those nodes in the same order, then [m] new ones.
            needs: see `forward`.

        Returns:
            What the model says at the new nodes.
        """
        old = state.pending
        if self._capabilities.full_attention and state.padding is None:
            return self._run(state, tree, needs)
        self.drop(state)  # a window counts what is cached, siblings too: run the whole tree again
        out = self._run(state, tree, needs)
        return replace(
            out,
            row_ids=out.row_ids[old:],
            row_logits=out.row_logits[old:],
            logits=out.logits[old:],
        )

    def _run(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that are not in the cache yet."""
        with row_watched(self.last_layer if needs.visual_attention else (), row=0) as watched:
            passes = None if needs.visual_attention else self.compiled
            output = None if passes is None else passes.run(state, tree)
            if output is None:
                output = forward_tree(
                    self._model,
                    self._capabilities,
                    self._family,
                    state,
                    tree,
                    hidden=bool(needs.hidden_layers),
                )
        state.pending = len(tree)
        row_ids, row_logits = top_rows(output.logits[0])
        return TargetOut(
            row_ids=row_ids,
            row_logits=row_logits,
            logits=output.logits[0],
            extras=self._extras(output, watched, state, len(tree), needs),
        )

    def _run_rows(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run all packs in one call."""
        with row_watched(self.last_layer if needs.visual_attention else (), row=0) as watched:
            output = forward_rows(
                self._model,
                self._capabilities,
                self._family,
                self._shared,
                states,
                trees,
                hidden=bool(needs.hidden_layers),
            )
        sizes = [len(tree) for tree in trees]
        logits = torch.cat([output.logits[at, :size] for at, size in enumerate(sizes)])
        row_ids, row_logits = top_rows(logits)
        outs, first = [], 0
        for at, (state, tree) in enumerate(zip(states, trees, strict=True)):
            state.pending, state.pack, state.undo = len(tree), tree.tokens, None
            mine = slice(first, first := first + len(tree))
            outs.append(
                TargetOut(
                    row_ids=row_ids[mine],
                    row_logits=row_logits[mine],
                    logits=logits[mine],
                    extras=self._extras(output, watched, state, len(tree), needs, at),
                )
            )
        return outs

    def _extras(
        self,
        output: Any,
        watched: Watched,
        state: SequenceState,
        size: int,
        needs: Needs,
        row: int = 0,
    ) -> dict[str, Any]:
        """What else was asked for, of one row of a call."""
        extras: dict[str, Any] = {}
        if needs.hidden_layers:
            extras["hidden"] = hidden_states(output, needs.hidden_layers, row)[:size]
        if needs.visual_attention:
            seen, name = state.length + size, self._name
            extras["visual_attention"] = watched.share(state.pictures, seen, name, row)
        return extras

    @torch.no_grad()
    def keep(self, state: SequenceState, path: Ints) -> None:
        """Keep the root and the accepted path of the last pack, drop its other nodes.

        Args:
            state: after a forward.
            path: [a] packed indices, ascending, root excluded. To drop a committed last token from
                the cache (it becomes the next root), leave it out.
        """
        if state.row is not None:
            state.row.keep(path)
        elif self._capabilities.states == "chains":
            self._keep_chain(state, path)
        else:
            skip = self._capabilities.picture_layers
            caches.keep_path(state.cache, state.length, state.pending, path, skip)
            if isinstance(state.undo, StateTree):
                state.undo.keep(state.cache, path)
            elif self._capabilities.states == "trees":
                replay.settle(state.cache, state.pending)
        kept = 1 + len(path)
        state.length += kept
        state.next_position = state.next_position + kept
        if state.padding is not None:
            state.padding = torch.nn.functional.pad(state.padding, (0, kept), value=True)
        state.pending, state.undo = 0, None
        if len(state.owed) > replay.MOST_OWED:
            self._pay(state)

    def drop(self, state: SequenceState) -> None:
        """Forget the last pack, its root too: as if its forward had never been. Not for models
        with recurrent states, which a pack of one node moves on for good.
        """
        if self._capabilities.states != "none":
            raise RuntimeError("a recurrent state does not forget a whole pack")
        if state.row is not None:
            state.row.drop()
        else:
            caches.drop(state.cache, state.pending, self._capabilities.picture_layers)
        state.pending = 0

    def _keep_chain(self, state: SequenceState, path: Ints) -> None:
        """Keep the first nodes of a chain; states that have seen more go back to where they were
        and are owed what was committed since.
        """
        fed = len(state.owed) + state.pending
        if len(path) == state.pending - 1:
            replay.settle(state.cache, fed)
            caches.drop(state.cache, 0)
            state.owed = empty_ints()
            return
        state.undo.restore(state.cache)
        caches.drop(state.cache, fed)
        state.owed = np.concatenate([state.owed, state.pack[: 1 + len(path)]])

    def _pay(self, state: SequenceState) -> None:
        """Feed the owed tokens alone."""
        owed, state.owed = state.owed, empty_ints()
        count = len(owed)
        inputs: dict[str, Any] = {**step_inputs(state, count)}
        tokens = torch.from_numpy(owed.astype(np.int64))[None].to(self._capabilities.device)
        call_model(
            self._model,
            self._capabilities,
            self._family,
            state.cache,
            input_ids=tokens,
            position_ids=state.next_position + torch.arange(-count, 0, device=tokens.device),
            mask=state.padding,
            logits_to_keep=1,
            **inputs,
        )
        replay.settle(state.cache, count)
        caches.drop(state.cache, 0)

    @torch.no_grad()
    def release(self, state: SequenceState) -> Any:
        """End a sequence and hand its cache back, behaving as stock's own. Guesses of a round that
        an error cut short are dropped.
        """
        if state.pending:
            self.keep(state, empty_ints())
        if len(state.owed):
            self._pay(state)
        cache = state.cache
        caches.end_recording(cache)
        if state.places is not None:
            state.places.leave(cache)
            state.places = None
        state.close()
        return cache

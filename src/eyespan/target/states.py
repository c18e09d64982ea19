"""Recurrent states: which a model has, and a whole draft tree through them in one forward.

A state is overwritten by every token, so siblings would mix in it, and what a rejected guess has
left in it cannot be cut off as keys and values can. Two kinds of layers still take trees, because
their state after a node is a function of the root's state and of the node's ancestors alone:

* a short causal convolution sees the last few columns: a node's are its ancestors', then those of
  the stored state;
* the gated delta rule (Yang et al., "Gated Delta Networks", eq. 10) is linear in its state, so the
  outputs of all nodes follow from one triangular system in which "earlier token" is replaced by
  "ancestor" (their chunked form, section 3.3, with the tree's mask for the causal one).

Both are module-level functions in transformers' model files. Wrappers around them act while a tree
is active in this thread or task and pass everything on untouched otherwise. What the accepted path
leaves behind is worked out in `keep`: the columns of the path, and
S_leaf = exp(G_leaf) S_root + sum over the path of exp(G_leaf - G_j) k_j d_j^T.

States of other kinds (state-space scans) are verified in chains: see `replay.py`. A mixer class in
neither list is refused when the model is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from eyespan.errors import UnsupportedTarget
from eyespan.target.in_force import in_force
from eyespan.types import Ints

States: TypeAlias = Literal["none", "trees", "chains"]
"""What a model remembers besides keys and values, by what its drafts may look like."""

TREE_MIXERS = frozenset(
    {
        "Lfm2ShortConv",
        "Lfm2MoeShortConv",
        "OlmoHybridGatedDeltaNet",
        "Qwen3NextGatedDeltaNet",
        "Qwen3_5GatedDeltaNet",
        "Qwen3_5MoeGatedDeltaNet",
    }
)
"""Layer classes whose states take trees: made of the wrapped kernels and nothing else."""

CHAIN_MIXERS = frozenset(
    {
        "BambaMixer",
        "FalconH1Mixer",
        "GraniteMoeHybridMambaLayer",
        "Mamba2Mixer",
    }
)
"""Layer classes that continue from a stored state over several tokens, in order. Two kinds are
missing on purpose, as found in transformers 5.24: the scan of Mamba 1 and Jamba over several tokens
starts from nothing, and Nemotron-H limits its step size over several tokens but not in a single
step, so the two differ by far more than rounding (1e-3 to 1e-2; the others stay below 1e-5)."""


def has_states(cache: Any) -> bool:
    """Whether any layer keeps a recurrent or convolution state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def state_layers(cache: Any) -> list[Any]:
    """The layers with states, each with its i-th state."""
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]


def states_of(model: Any, cache: Any, name: str) -> States:
    """How drafts may look for this model's states.

    Args:
        model: a transformers model.
        cache: an empty cache of the kind that it fills.
        name: how error messages call it.

    Raises:
        UnsupportedTarget: a layer class that is in neither list.
    """
    count = len(state_layers(cache))
    if count == 0:
        return "none"
    mixers = [type(module).__name__ for module in _mixers(model)]
    kinds = set(mixers)
    if len(mixers) == count and kinds <= TREE_MIXERS:
        return "trees"
    if len(mixers) == count and kinds <= TREE_MIXERS | CHAIN_MIXERS:
        return "chains"
    alien = sorted(kinds - TREE_MIXERS - CHAIN_MIXERS) or ["layers of an unknown kind"]
    raise UnsupportedTarget(
        f"speculation with '{name}'",
        found=f"recurrent states in {', '.join(alien)}",
        needed="needed are states that are known how to roll back: short convolutions, the gated "
        "delta rule or scans of Mamba 2, in the classes that docs/families.md lists",
        todo="Use stock generate().",
    )


def _mixers(model: Any) -> list[Any]:
    """The modules that own a state: layers of a decoder around a one-dimensional convolution."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "layer_idx")
        and any(isinstance(child, nn.Conv1d) for child in module.children())
    ]


class _Update(NamedTuple):
    """What the nodes did to one layer's delta-rule state.

    Attributes:
        keys: [B, H, n, dk].
        deltas: [B, H, n, dv].
        decay: [B, H, n] log decay from the root's state down to each node.
    """

    keys: Tensor
    deltas: Tensor
    decay: Tensor


class StateTree:
    """One pack on its way through the layers.

    Args:
        parents: [n] packed parent of every node, -1 at the root.
        ancestors: [n, n] bool, row i true at i and its ancestors.
    """

    def __init__(self, parents: Ints, ancestors: Tensor) -> None:
        self._parents = parents.tolist()
        self._ancestors = ancestors
        self._taps: dict[int, Tensor] = {}
        self.updates: dict[int, _Update] = {}  # by the identity of the state they start from

    def convolve(
        self, columns: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
    ) -> Tensor:
        """[B, C, n] outputs from [B, C, stored + n] columns and [C, width] weights."""
        stored = columns.shape[-1] - len(self._parents)
        seen = columns[..., self._taps_of(weight.shape[-1]).to(columns.device) + stored]
        out = (seen.float() * weight.float()[:, None]).sum(-1)
        if bias is not None:
            out = out + bias.float()[:, None]
        out = out.to(weight.dtype)
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(columns.dtype)

    def _taps_of(self, width: int) -> Tensor:
        """[n, width] columns that each node sees, oldest first; 0 is the root's, -1 the newest of
        the stored ones.
        """
        if width not in self._taps:
            rows = []
            for node in range(len(self._parents)):
                row = []
                for _ in range(width):
                    row.append(node)
                    node = self._parents[node] if node > 0 else node - 1
                rows.append(row[::-1])
            self._taps[width] = torch.tensor(rows)
        return self._taps[width]

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        normalise: bool,
    ) -> Tensor:
        """The gated delta rule along every root path at once.

        With G_i the summed log decay from the root's state S down to node i, and j over the
        ancestors of i:
            d_i = beta_i (v_i - exp(G_i) S^T k_i - sum_{j < i} exp(G_i - G_j) (k_i k_j) d_j)
            o_i = exp(G_i) S^T q_i + sum_{j <= i} exp(G_i - G_j) (q_i k_j) d_j

        Args:
            query: [B, n, Hk, dk].
            key: [B, n, Hk, dk].
            value: [B, n, H, dv].
            g: [B, n, H] log decay of each step.
            beta: [B, n, H] size of each step.
            state: [B, H, dk, dv], left as it is.
            normalise: bring queries and keys to unit length first.

        Returns:
            [B, n, H, dv].
        """
        repeat = value.shape[2] // key.shape[2]
        query, key, value = (x.transpose(1, 2).float() for x in (query, key, value))
        query, key = query.repeat_interleave(repeat, 1), key.repeat_interleave(repeat, 1)
        if normalise:
            query, key = _unit(query), _unit(key)
        query = query * query.shape[-1] ** -0.5
        steps, beta = g.transpose(1, 2).float(), beta.transpose(1, 2).float()[..., None]
        above = self._ancestors.to(key.device)
        decay = steps @ above.float().T
        gap = decay[..., :, None] - decay[..., None, :]
        fade = torch.where(above, gap, -torch.inf).exp()
        start, root = decay.exp()[..., None], state.float()
        system = beta * fade * (key @ key.transpose(-1, -2))  # its diagonal is not read
        given = beta * (value - start * (key @ root))
        deltas = torch.linalg.solve_triangular(system, given, upper=False, unitriangular=True)
        self.updates[id(state)] = _Update(key, deltas, decay)
        out: Tensor = start * (query @ root) + (fade * (query @ key.transpose(-1, -2))) @ deltas
        return out

    def keep(self, cache: Any, path: Ints) -> None:
        """Leave the states as the root and `path` [a] make them."""
        kept = [0, *path.tolist()]
        for layer in state_layers(cache):
            trim_columns(layer, len(self._parents), kept)
            state = layer.recurrent_states[0]
            if state is not None:
                update = self.updates[id(state)]
                leaf = update.decay[..., kept[-1:]]
                fade = (leaf - update.decay[..., kept]).exp()[..., None]
                grown = (update.keys[..., kept, :] * fade).transpose(-1, -2)
                state.copy_(leaf.exp()[..., None] * state + grown @ update.deltas[..., kept, :])


def _unit(x: Tensor) -> Tensor:
    """Unit length, with the small constant of the models' own code."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def trim_columns(layer: Any, size: int, kept: list[int]) -> None:
    """Cut a layer's recorded convolution columns to what the next forward reads.

    Args:
        layer: has recorded the `size` columns of a pack behind its stored ones.
        size: nodes of the pack.
        kept: those of them that stay, in order.
    """
    for at, columns in layer.conv_states.items():
        if columns is not None:
            stored = columns.shape[-1] - size
            order = [*range(stored), *(stored + node for node in kept)]
            layer.conv_states[at] = columns[..., order[-layer.conv_kernel_size[at] :]]


_active: ContextVar[StateTree | None] = ContextVar("eyespan_state_tree", default=None)


@dataclass(frozen=True)
class _Convolution:
    """A causal convolution that knows about trees."""

    plain: Callable[..., Any]

    def __call__(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Any:
        tree = in_force(_active)
        if tree is None:
            return self.plain(hidden_states, weight, bias, activation=activation, **kwargs)
        return tree.convolve(hidden_states, weight, bias, activation)


@dataclass(frozen=True)
class _DeltaRule:
    """A gated delta rule that knows about trees. It hands the root's state back as the last one,
    so the cache stays as it was until the path is known.
    """

    plain: Callable[..., Any]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Any:
        tree = in_force(_active)
        if tree is None:
            return self.plain(query, key, value, **kwargs)
        state = kwargs["initial_state"]
        out = tree.delta_rule(
            query,
            key,
            value,
            g=kwargs["g"],
            beta=kwargs["beta"],
            state=state,
            normalise=kwargs["use_qk_l2norm_in_kernel"],
        )
        return out.transpose(1, 2).to(query.dtype), state


_WRAPPERS: dict[str, type[Any]] = {
    "causal_conv1d_fn": _Convolution,
    "torch_chunk_gated_delta_rule": _DeltaRule,
    "torch_recurrent_gated_delta_rule": _DeltaRule,
}
"""Names of the kernels in transformers' model files."""


def install(model: Any) -> None:
    """Wrap the kernels that this model's layers call; harmless when they are wrapped already."""
    for module in _mixers(model):
        names = vars(sys.modules[type(module).__module__])
        for name, wrapper in _WRAPPERS.items():
            kernel = names.get(name)
            if kernel is not None and not isinstance(kernel, wrapper):
                names[name] = wrapper(kernel)


@contextmanager
def states_active(tree: StateTree) -> Iterator[StateTree]:
    """Kernels called inside, in this thread or task, run over `tree`."""
    token = _active.set(tree)
    try:
        yield tree
    finally:
        _active.reset(token)

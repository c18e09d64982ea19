"""A drafter around a trained head: its checkpoint, its sessions, and one forward for all of them.

A session holds the *context prefix* (paper: FOVEA section 3): keys and values of every committed
pair, encoded once and shared by all nodes of all its trees. New pairs are encoded when the next
tree is asked for, those of all sequences in one forward; that they are kept is the only trace a
proposal leaves, and a second proposal gives the same tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from eyespan.artifacts import Artifact, read_about, read_artifact, write_artifact
from eyespan.drafters._attention import CachedAttention, KeyValues, causal_mask, side_by_side
from eyespan.drafters._drawing import Drawing, Sketch
from eyespan.drafters._growth import Roots, best_trees, grow
from eyespan.drafters._growth_drawn import grow_drawn
from eyespan.drafters._head import Condition, DraftHead, HeadConfig
from eyespan.drafters.base import Ask
from eyespan.errors import ConfigError, InputError, UnsupportedTarget, unknown_name
from eyespan.target.weights import STATE_MEANING, TargetWeights
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step

if TYPE_CHECKING:
    from eyespan.target.base import Target

KIND = "trained drafter"
DEMO = "demo"
SMALLEST_DTYPE = ("float32", "float16")

C = TypeVar("C", bound=HeadConfig)
H = TypeVar("H", bound=DraftHead)


def write_head(
    path: str | os.PathLike[str],
    head: DraftHead,
    target: Mapping[str, Any],
    *,
    dtype: str = "float32",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a head as safetensors and a manifest.

    Args:
        path: folder; made when missing.
        head: its weights and config; what it borrows is not written.
        target: `TargetWeights.record()` of the target it was trained for.
        dtype: "float32" or "float16" on disk.
        training: how it was trained, JSON-ready, for people.

    Raises:
        ConfigError: another dtype.
        OutputError: the folder cannot be written.
    """
    if dtype not in SMALLEST_DTYPE:
        raise unknown_name("dtype of a saved drafter", dtype, SMALLEST_DTYPE)
    as_saved = getattr(torch, dtype)
    write_artifact(
        path,
        kind=KIND,
        about={
            "method": head.method,
            "config": head.shape.to_json(),
            "target": dict(target),
            "reads": list(head.reads),
            "states": STATE_MEANING,
            "training": dict(training or {}),
        },
        tensors={
            name: value.detach().to("cpu", as_saved if value.is_floating_point() else value.dtype)
            .numpy()
            for name, value in head.state_dict().items()
        },
    )  # fmt: skip


@dataclass(slots=True)
class Context:
    """A session's encoded pairs and those that wait for the next proposal.

    Attributes:
        cache: keys and values of the encoded pairs.
        encoded: tokens of the prefix whose pairs are in the cache, or were left out of it.
        waiting: target states [m, R, D] at the positions from `encoded - 1` on.
        condition: what of the pictures the head looks at, each [1, ...].
        root: [1, 1, D] the head's output at the newest encoded pair.
        x, positions: [n, X] and [n] block inputs of all encoded pairs, only where a head's way of
            using its cache asks for them.
    """

    cache: KeyValues
    encoded: int
    waiting: list[Tensor]
    condition: Condition
    root: Tensor
    x: Tensor | None = None
    positions: Tensor | None = None


class TrainedSession:
    """One request of a trained drafter."""

    def __init__(self, drafter: Trained[Any, Any], request: Request, context: Context) -> None:
        self._drafter = drafter
        self.request, self.context = request, context
        self.forbidden = drafter.marks(request.media_ids)
        self.ends = drafter.marks(request.eos_ids)

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """A tree after `prefix`."""
        return self._drafter.propose_many([Ask(self, prefix, budget)])[0]

    def observe(self, step: Step) -> None:
        """Keep the target's states at the root and the accepted nodes."""
        path = [0, *step.verdict.path.tolist()]
        self.context.waiting.append(self._drafter.states(step.out.extras["hidden"][path]))

    def state_bytes(self) -> int:
        """Bytes that the request holds on the head's device: keys and values with their room to
        grow, what is kept of the pictures, states that wait, and inputs where they are kept.
        """
        context = self.context
        held = [context.cache.keys, context.cache.values, context.root, *context.waiting]
        held += context.condition.values()
        held += [each for each in (context.x, context.positions) if each is not None]
        return sum(tensor.nbytes for tensor in held)


class Trained(Generic[C, H]):
    """What requests share: a head, frozen.

    Class attributes:
        config_type, head_type: of the method.

    Args:
        vocab_size: ids of the target.
        checkpoint: folder that `write_head` wrote, or "demo": the weights that come along.
        **options: fields of the config that may change when decoding, see its `DECODING`.

    Raises:
        ConfigError: an unknown option, one that would change the weights, or a value out of range.
        InputError: no checkpoint there, or one of another method.
    """

    name: ClassVar[str]
    config_type: ClassVar[type[HeadConfig]]
    head_type: ClassVar[type[DraftHead]]

    def __init__(self, *, vocab_size: int, checkpoint: str = "", **options: Any) -> None:
        self._check(options)
        self.vocab_size, self.checkpoint = vocab_size, os.fspath(checkpoint)
        self._options = options
        self._head: H | None = None
        self._marks: dict[frozenset[int], Tensor] = {}
        self.extra_nodes = 0
        if not checkpoint:
            self._settings = {**_defaults(self.config_type), **options}
            self.needs = Needs(hidden_layers=(0, -1))
            self.fixed_budget = int(self._settings["nodes"])
            return
        self._about = read_about(self._folder, kind=KIND)
        self.config: C = self._config()
        self._settings = self.config.to_json()
        with torch.device("meta"):  # a shape: weights are read when a target is there for them
            shape = self.head_type(self.config)
        self.needs = Needs(hidden_layers=shape.reads, visual_tokens=shape.sees)
        self.fixed_budget = self.config.nodes

    @property
    def keeps_inputs(self) -> bool:
        """Whether contexts hold the block inputs of all their pairs."""
        return False

    @property
    def head(self) -> H:
        """The head; its weights are read on first use.

        Raises:
            ConfigError: no checkpoint.
            InputError: a checkpoint whose parts do not belong together.
        """
        if self._head is None:
            self._check_there()
            self._head = self._build(read_artifact(self._folder, kind=KIND))
        return self._head

    def attach(self, weights: TargetWeights) -> None:
        """Read the head's weights and fit them to the target they will draft for: its device,
        dtype and tables.

        Raises:
            ConfigError: no checkpoint.
            InputError: a checkpoint whose parts do not belong together.
            UnsupportedTarget: the head was trained for another target.
        """
        self._check_there()
        recorded_target = self._about["target"]
        wrong = weights.mismatch(recorded_target)
        if wrong is not None:
            field, here, recorded = wrong
            trained_for = recorded_target.get("name")
            raise UnsupportedTarget(
                f"drafter '{self.name}' from '{self.checkpoint}' on '{weights.shape.name}'",
                found=f"{field} is {here!r}",
                needed=f"it was trained for '{trained_for}', where that is {recorded!r}",
                todo="Load that target, train a drafter for this one (docs/train.md), or use one "
                "without weights: recap, suffix, prompt_lookup.",
            )
        head = self.head
        head.to(weights.embedding.device, weights.embedding.dtype)
        head.attach(weights.embedding, weights.lm_head)
        self._marks.clear()

    def bind(self, target: Target) -> None:
        """Attach to a live target; see `attach`."""
        self.attach(target.weights())

    @torch.no_grad()
    def begin(self, request: Request, prefill: Prefill) -> TrainedSession:
        """Encode the prompt: the context prefix, and what the head keeps of the pictures."""
        head = self.head
        states = self.states(prefill.extras["hidden"])
        first = len(request.prompt_ids) - len(states)  # what a given cache held is not known
        condition = self._look(prefill.extras.get("visual_tokens"))
        context = Context(
            cache=KeyValues(
                head.slots,
                self.config.kv_heads,
                self.config.head_dim,
                dtype=head.dtype,
                device=self._device,
            ),
            encoded=len(request.prompt_ids),
            waiting=[states[-1:]],
            condition=condition,
            root=states.new_zeros(1, 1, self.config.hidden_size),
        )
        media = np.isin(request.prompt_ids[first + 1 :], list(request.media_ids))
        pairs = head.prompt(
            states[None, 1:, 0],
            head.lift(states[None, :-1]),
            torch.from_numpy(media)[None].to(self._device),
            condition,
        )
        positions = torch.arange(first + 1, first + len(states), device=self._device)
        x = pairs.x[0]
        if pairs.visible is not None:
            x, positions = x[pairs.visible[0]], positions[pairs.visible[0]]
        session = TrainedSession(self, request, context)
        self.open(context, x, positions)
        return session

    def open(self, context: Context, x: Tensor, positions: Tensor) -> None:
        """Fill a new context with the prompt's pairs: `x` [n, X] at `positions` [n]."""
        self.encode([context], [x], [positions])

    @torch.no_grad()
    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Trees for all sequences: one forward a level."""
        sizes = [min(ask.budget, self.config.nodes) for ask in asks]
        if not asks or max(sizes) < 1:
            return [DraftTree.empty() for _ in asks]
        cache, roots = self._roots(asks)
        found = grow(self.head, cache, roots, width=self.config.width, depth=self.config.depth)
        return best_trees(found, sizes)

    @torch.no_grad()
    def draw_many(self, asks: Sequence[Ask], drawings: Sequence[Drawing]) -> list[DraftTree]:
        """Trees whose nodes are drawn from what the head says: as many a level as make up the
        published size at the published depth.
        """
        sizes = [min(ask.budget, self.config.nodes) for ask in asks]
        if not asks or max(sizes) < 1:
            return [DraftTree.empty() for _ in asks]
        width = -(-self.config.nodes // self.config.depth)
        cache, roots = self._roots(asks)
        sketches = [
            Sketch(
                drawing._replace(depth=min(drawing.depth, self.config.depth)),
                len(ask.prefix),
                size,
                width,
                ask.session.request.eos_ids,  # type: ignore[attr-defined]
            )
            for ask, drawing, size in zip(asks, drawings, sizes, strict=True)
        ]
        return grow_drawn(self.head, cache, roots, sketches, width=width)

    def _roots(self, asks: Sequence[Ask]) -> tuple[KeyValues, Roots]:
        """The batch's cache, with all that was committed, and where its trees begin."""
        sessions: list[TrainedSession] = [ask.session for ask in asks]  # type: ignore[misc]
        contexts = [session.context for session in sessions]
        cache = self.catch_up(contexts, [ask.prefix for ask in asks])
        last = [len(ask.prefix) - 1 for ask in asks]
        roots = Roots(
            last=torch.cat([context.root for context in contexts]),
            positions=torch.tensor(last, device=self._device),
            condition=together([context.condition for context in contexts]),
            forbidden=torch.stack([session.forbidden for session in sessions]),
            ends=torch.stack([session.ends for session in sessions]),
            generator=self.generator(last),
        )
        return cache, roots

    def catch_up(self, contexts: Sequence[Context], prefixes: Sequence[Ints]) -> KeyValues:
        """Encode what was committed since the last proposal; returns the batch's cache."""
        head, xs, positions = self.head, [], []
        for context, prefix in zip(contexts, prefixes, strict=True):
            new = torch.from_numpy(prefix[context.encoded :].astype(np.int64)).to(self._device)
            at = torch.arange(context.encoded, len(prefix), device=self._device)
            if len(new):
                states = torch.cat(context.waiting)[None]
                x = head.inputs(head.embed(new)[None], head.lift(states), context.condition)
                xs.append(x[0])
            else:
                xs.append(self._no_pairs(context))
            positions.append(at)
            context.waiting, context.encoded = [], len(prefix)
        return self.encode(contexts, xs, positions)

    def encode(
        self, contexts: Sequence[Context], xs: Sequence[Tensor], positions: Sequence[Tensor]
    ) -> KeyValues:
        """Put pairs behind each context: `xs` of [n, X] at `positions` of [n], any of them empty.

        Returns:
            A cache that holds the whole batch, with room for a tree.
        """
        lengths = [len(x) for x in xs]
        new = max(lengths)
        tree = self.config.width * max(1, self.config.depth - 1)
        cache = side_by_side([context.cache for context in contexts], new + tree)
        if new == 0:
            return cache
        start = cache.length
        padded = torch.nn.utils.rnn.pad_sequence(list(xs), batch_first=True)
        at = torch.nn.utils.rnn.pad_sequence(list(positions), batch_first=True)
        mask = causal_mask(lengths, new, start, cache.visible, self._device)
        last = self.head.stack(padded, at, CachedAttention(cache, start, mask)).last
        for row, (context, own) in enumerate(zip(contexts, lengths, strict=True)):
            if own:
                context.root = last[row : row + 1, own - 1 : own].clone()
            if context.cache is not cache:
                context.cache.reserve(own)
                into = slice(context.cache.length, context.cache.length + own)
                for name in ("keys", "values"):
                    mine, ours = getattr(context.cache, name), getattr(cache, name)
                    mine[:, 0, :, into] = ours[:, row, :, start : start + own]
                context.cache.length += own
            if self.keeps_inputs and own:
                self._remember(context, xs[row], positions[row])
        if cache.visible is not None:
            own_columns = torch.arange(new, device=self._device) < torch.tensor(
                lengths, device=self._device
            ).unsqueeze(1)
            cache.visible = torch.cat([cache.visible, own_columns], dim=1)
        cache.length = start + new
        return cache

    def generator(self, lengths: Sequence[int]) -> torch.Generator | None:
        """Source of a proposal's random draws; the same prefixes draw the same. None: no draws."""
        return None

    def states(self, hidden: Any) -> Tensor:
        """[n, R, D] captured states as the head takes them."""
        return torch.as_tensor(hidden).to(self._device, self.head.dtype)

    def marks(self, ids: frozenset[int]) -> Tensor:
        """[V] bool, True at these ids; made once for a set."""
        if ids not in self._marks:
            marks = torch.zeros(self.config.vocab_size, dtype=torch.bool)
            marks[[i for i in ids if 0 <= i < self.config.vocab_size]] = True
            self._marks[ids] = marks.to(self._device)
        return self._marks[ids]

    def config_dict(self) -> dict[str, object]:
        """The checkpoint, and every field of the config that is known without a target."""
        return {"checkpoint": self.checkpoint, **self._settings}

    def is_warm(self, scope: str | None) -> bool:
        """Requests share weights only."""
        return False

    def reset(self) -> None:
        """Nothing is remembered between requests."""

    @property
    def _device(self) -> torch.device:
        return next(self.head.parameters()).device

    def _look(self, visual: Any) -> Condition:
        """What the head keeps of a request's pictures; a prompt without any has none to keep."""
        if visual is None or not len(visual):
            tokens = torch.zeros(1, 0, self.config.hidden_size)
        else:
            tokens = torch.as_tensor(visual)[None]
        tokens = tokens.to(self._device, self.head.dtype)
        return self.head.look(tokens, torch.ones_like(tokens[..., 0], dtype=torch.bool))

    def _no_pairs(self, context: Context) -> Tensor:
        """[0, X] block inputs."""
        width = self.config.hidden_size
        empty = torch.zeros(1, 0, width, device=self._device, dtype=self.head.dtype)
        return self.head.inputs(empty, self.head.feedback(empty), context.condition)[0]

    @staticmethod
    def _remember(context: Context, x: Tensor, positions: Tensor) -> None:
        context.x = x if context.x is None else torch.cat([context.x, x])
        old = context.positions
        context.positions = positions if old is None else torch.cat([old, positions])

    @property
    def _folder(self) -> str:
        """Where the checkpoint is; "demo" is the one that comes along for the demo model."""
        if self.checkpoint == DEMO:
            return str(files("eyespan") / "demo" / "drafters" / self.name)
        return self.checkpoint

    def _check_there(self) -> None:
        if not self.checkpoint:
            raise ConfigError(
                f"drafter '{self.name}'",
                found="no checkpoint",
                needed="trained weights are needed",
                todo="Pass checkpoint=FOLDER ('demo': FOVEA for the demo); see docs/train.md.",
            )

    def _check(self, options: Mapping[str, Any]) -> None:
        known = sorted(self.config_type.DECODING)
        for option in options:
            if option in self.config_type.__dataclass_fields__ and option not in known:
                raise ConfigError(
                    f"{self.name} option '{option}'",
                    found="a field that shapes the weights",
                    needed=f"when decoding, these may change: {', '.join(known)}",
                    todo="Train a drafter with it instead.",
                )
            if option not in known:
                raise unknown_name(f"{self.name} option", option, ["checkpoint", *known])

    def _config(self) -> C:
        about = self._about
        if about.get("method") != self.name or about.get("states") != STATE_MEANING:
            raise InputError(
                f"drafter '{self.name}' from '{self.checkpoint}'",
                found=f"a checkpoint of method {about.get('method')!r} that reads states with the "
                f"meaning {about.get('states')!r}",
                needed=f"method '{self.name}' and the meaning {STATE_MEANING!r} are needed",
                todo="Point to another checkpoint, or train one with this version.",
            )
        config: Any = self.config_type.from_json(about["config"])
        changed: C = replace(config, **self._options)
        return changed

    def _build(self, saved: Artifact) -> H:
        """The head, filled from the checkpoint without leaving anything at random."""
        with torch.device("meta"):
            head: Any = self.head_type(self.config)
        if list(saved.about.get("reads", ())) != list(head.reads):
            raise self._unfit(f"states {saved.about.get('reads')}", f"states {list(head.reads)}")
        expected = head.state_dict()
        for name in sorted(expected.keys() | saved.tensors.keys()):
            found, wanted = saved.tensors.get(name), expected.get(name)
            have = None if found is None else tuple(found.shape)
            need = None if wanted is None else tuple(wanted.shape)
            if have != need:
                raise self._unfit(f"'{name}' of shape {have}", f"shape {need}")
        tensors = {}
        for name, value in saved.tensors.items():
            loaded = torch.from_numpy(np.array(value))
            tensors[name] = loaded.float() if loaded.is_floating_point() else loaded
        head.load_state_dict(tensors, assign=True)
        built: H = head.eval().requires_grad_(False)
        return built

    def _unfit(self, found: str, needed: str) -> InputError:
        return InputError(
            f"drafter '{self.name}' from '{self.checkpoint}'",
            found=found,
            needed=f"{needed} is needed by its config",
            todo="Save it again; the manifest and the tensors do not belong together.",
        )


def _defaults(config_type: type[HeadConfig]) -> dict[str, Any]:
    """Default values of the fields that may change when decoding."""
    known = config_type.__dataclass_fields__
    return {name: known[name].default for name in sorted(config_type.DECODING)}


def together(conditions: Sequence[Condition]) -> Condition:
    """Conditions of [1, n, ...] as one of [B, n, ...], shorter ones padded with zeros (False)."""
    if len(conditions) == 1:
        return conditions[0]
    joined: Condition = {}
    for name in conditions[0]:
        rows = [condition[name][0] for condition in conditions]
        joined[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return joined

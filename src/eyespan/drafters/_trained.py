"""A drafter around a trained head: its checkpoint, its sessions, and one forward for all of them.

A session holds the *context prefix* (paper: FOVEA section 3): keys and values of every committed
pair, encoded once and shared by all nodes of all its trees. New pairs are encoded when the next
tree is asked for, those of all sequences in one forward; that they are kept is the only trace a
proposal leaves, and a second proposal gives the same tree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from eyespan.config import refuse
from eyespan.drafters._attention import KeyValues
from eyespan.drafters._checkpoint import SavedHead
from eyespan.drafters._context import Context, encode, together
from eyespan.drafters._drawing import Drawing, Sketch
from eyespan.drafters._growth import Roots, best_trees, grow
from eyespan.drafters._growth_drawn import grow_drawn
from eyespan.drafters._head import Condition, DraftHead, count_parameters
from eyespan.drafters._head_config import HeadConfig, check_options, defaults
from eyespan.drafters._pacing import Growing, Pacing
from eyespan.drafters.base import Ask
from eyespan.errors import ConfigError
from eyespan.target.weights import TargetWeights
from eyespan.types import DraftTree, Ints, Needs, Prefill, Request, Step

if TYPE_CHECKING:
    from eyespan.target.base import Target

C = TypeVar("C", bound=HeadConfig)
H = TypeVar("H", bound=DraftHead)


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
        """Bytes that the request holds on the head's device."""
        return self.context.nbytes()


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
        check_options(self.name, self.config_type, options)
        if not isinstance(checkpoint, (str, os.PathLike)):
            refuse(self.name, "checkpoint", checkpoint, "a folder's path, or 'demo'")
        self.vocab_size, self.checkpoint = vocab_size, os.fspath(checkpoint)
        self._head: H | None = None
        self._marks: dict[frozenset[int], Tensor] = {}
        self.extra_nodes = 0
        if not checkpoint:
            self._settings = {**defaults(self.config_type), **options}
            self.needs = Needs(hidden_layers=(0, -1))
            self.fixed_budget = int(self._settings["nodes"])
            return
        self._saved = SavedHead(self.name, self.checkpoint)
        config: Any = self.config_type.from_json(self._saved.about["config"])
        self.config: C = replace(config, **options)
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
            built: Any = self._saved.build(self.head_type, self.config)
            self._head = built
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
        self._saved.check_target(weights)
        head = self.head
        head.to(weights.embedding.device, weights.embedding.dtype)
        head.attach(weights.embedding, weights.lm_head)
        self._marks.clear()
        self._pacing = Pacing(on_cpu=self._device.type == "cpu")

    def parameters(self) -> int:
        """Weights of the head; the target's tables that it reads are not among them."""
        return count_parameters(self.head_type, self.config)["total"]

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
        growing = self._growing(asks, max(sizes))
        if growing is not None and not growing.begins():
            return [DraftTree.empty() for _ in asks]
        cache, roots = self._roots(asks)
        width, depth = self.config.width, self.config.depth
        found = grow(self.head, cache, roots, width=width, depth=depth, growing=growing)
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

    def _growing(self, asks: Sequence[Ask], nodes: int) -> Growing | None:
        """What stops these trees where a level does not pay; None where all are grown whole."""
        paces = [ask.pace for ask in asks if ask.pace is not None]
        if len(paces) < len(asks):
            return None
        width, depth = self.config.width, self.config.depth
        return self._pacing.begin(paces, nodes=nodes, width=width, depth=depth)

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
        return encode(
            self.head,
            contexts,
            xs,
            positions,
            tree=self.config.width * max(1, self.config.depth - 1),
            keeps_inputs=self.keeps_inputs,
        )

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

    def _check_there(self) -> None:
        if not self.checkpoint:
            raise ConfigError(
                f"drafter '{self.name}'",
                found="no checkpoint",
                needed="trained weights are needed",
                todo="Pass checkpoint=FOLDER ('demo': FOVEA for the demo); see docs/train.md.",
            )

"""The target as the engine sees it: read a prompt, run packed trees, keep what was accepted.

The cache of a sequence holds every committed token except the newest one; that one, the *root*, is
node 0 of the next pack. A pack of one node is plain decoding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from eyespan.types import Ints, Needs, PackedTree, Prefill, TargetOut

if TYPE_CHECKING:
    from torch import Tensor

    from eyespan.target.batch import Row
    from eyespan.target.features import FeatureMemory
    from eyespan.target.images import Picture
    from eyespan.target.places import Places
    from eyespan.target.video import Clip, Film, Video
    from eyespan.target.weights import TargetWeights

Message: TypeAlias = Mapping[str, Any]
"""One chat turn: {"role": ..., "content": text or a list of parts}; a part is {"type": "text",
"text": ...}, {"type": "image"} or {"type": "video"}, standing for the next of the request."""

Drafts: TypeAlias = Literal["trees", "chains"]
"""What a model can verify in one forward."""

MaskWay: TypeAlias = Literal["explicit", "hook", "own"]
"""How tree masks reach the model: built here as one tensor, or composed with the model's own; a
chain needs nothing but those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """What everybody else may know about a target; JSON-ready but for the sets.

    Attributes:
        name: what it was loaded from, for people.
        family: name of its row in `families/`.
        vocab_size: rows of the language-model head; draft ids lie below it.
        media_ids: ids that are never text (image, video, vision start and end, padding).
        eos_ids: ids that end an answer.
        max_context: most tokens a sequence may have, prompt included.
        hidden_size: width of the decoder's states.
        layers: number of decoder layers.
        dtype: of the decoder's weights, e.g. "float32".
        device: where it runs, e.g. "cpu" or "cuda:0".
        attention: attention implementation, "sdpa" or "eager".
        masks: how tree masks reach the model.
        drafts: what it can verify in one forward; "chains" where recurrent states only move
            forward.
        recurrent: whether it has recurrent states at all.
        one_pass: whether the packs of a batch are one forward; else they run one after the other.
        passes: widths of its compiled passes that are ready, ascending.
    """

    name: str
    family: str
    vocab_size: int
    media_ids: frozenset[int]
    eos_ids: frozenset[int]
    max_context: int
    hidden_size: int
    layers: int
    dtype: str
    device: str
    attention: str
    masks: MaskWay
    drafts: Drafts = "trees"
    recurrent: bool = False
    one_pass: bool = False
    passes: tuple[int, ...] = ()


Keep: TypeAlias = Callable[[Any, Ints], None]
"""(a transformers cache, [n] ids in it) -> nothing; whoever is told owns the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request's model inputs, ready on the device.

    Attributes:
        ids: [L] the prompt as the language model sees it, media placeholders expanded.
        input_ids: [1, L] the same on the device.
        position_ids: [1, L], or [4, 1, L] (text, time, height, width) for M-RoPE models.
        media: inputs of the prefill alone: pixels and grids, or features that are already there.
        padding: [1, L] bool, False at left padding; None when nothing is padded.
        images: pictures in the prompt.
        features: where features of pictures are looked up and kept, so that a conversation's
            pictures are encoded once; None encodes them for this prompt alone.
        cache: a cache that already holds the first tokens of `ids`, or an empty one to fill;
            None makes the target create its own.
        conversation: name of the conversation whose next turn this is; drafters may keep from turn
            to turn what they keep within a request.
        keep: told the cache and the ids in it once the answer has ended well; None frees it.
    """

    ids: Ints
    input_ids: Tensor
    position_ids: Tensor
    media: Mapping[str, Any] = field(default_factory=dict)
    padding: Tensor | None = None
    images: int = 0
    features: FeatureMemory | None = None
    cache: Any = None
    conversation: str | None = None
    keep: Keep | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])


class SequenceState:
    """One request's cache and positions. Opaque to the engine but for `length` and `room`.

    Attributes:
        length: committed tokens in the cache (all but the root).
        row: its place in the cache of a batch, or None.
    """

    __slots__ = (
        "_cache",
        "borrowed",
        "capacity",
        "length",
        "next_position",
        "owed",
        "pack",
        "padding",
        "pending",
        "pictures",
        "places",
        "row",
        "step_inputs",
        "undo",
    )

    def __init__(
        self,
        cache: Any,
        length: int,
        next_position: Tensor,
        padding: Tensor | None,
        capacity: int | None,
        pictures: Tensor,
        step_inputs: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Start a state after a prefill.

        Args:
            cache: the transformers cache object, holding `length` tokens.
            length: tokens in it.
            next_position: [1, 1] or [4, 1, 1] position ids of the root.
            padding: [1, length] bool or None, see `Prompt`.
            capacity: slots of a static cache, None when the cache grows.
            pictures: [m] positions of the prompt where features of pictures stand, on the host.
            step_inputs: [1, 1, ...] rows that every token of a step repeats (see `Family`).
        """
        self._cache = cache
        self.row: Row | None = None
        self.length = length
        self.next_position = next_position
        self.padding = padding
        self.capacity = capacity
        self.pictures = pictures
        self.step_inputs = step_inputs or {}
        self.pending = 0  # nodes of the last forward that `keep` has not sorted out yet
        self.pack: Ints = np.empty(0, np.int32)  # their ids
        self.owed: Ints = np.empty(0, np.int32)  # committed ids that the cache lost again
        self.borrowed = False  # the cache is the prompt's: whoever brought it may go on with it
        self.places: Places | None = None  # of compiled passes
        self.undo: Any = None  # what the last forward did to recurrent states

    @property
    def cache(self) -> Any:
        """The sequence's own cache; asking for it takes the sequence out of a batch."""
        if self.row is not None:
            self.row.leave()
        return self._cache

    @property
    def room(self) -> int | None:
        """Nodes the next pack may have at most; None when the cache grows as needed."""
        return None if self.capacity is None else self.capacity - self.length

    def fork(self) -> SequenceState:
        """A second state with a cache of its own."""
        if self.row is not None:
            self.row.leave()
        return copy.deepcopy(self)

    def close(self) -> None:
        """Free the cache; the state cannot be used afterwards."""
        if self.row is not None:
            self.row.discard()
        if self.places is not None and self.borrowed:
            self.places.leave(self._cache)
        elif self.places is not None:
            self.places.free()
        self.places = None
        self._cache = None
        self.padding = None
        self.undo = None
        self.step_inputs = {}


class Target(Protocol):
    """A model that reads prompts and verifies packed trees.

    Attributes:
        info: facts about it.
        model: the transformers model itself.
        tokenizer: the text tokenizer, or None for a live model that came without one.
    """

    info: TargetInfo
    model: Any
    tokenizer: Any

    def prepare(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Picture] = (),
        videos: Sequence[Film | Video | Clip] = (),
    ) -> Prompt:
        """Turn text or a chat and its media into model inputs; refuses bad ones."""
        ...

    def prompt_from_ids(self, input_ids: Any, **media: Any) -> Prompt:
        """A prompt from ids [L] or [1, L] and the processor's own tensors."""
        ...

    def prompt_from_generate(self, input_ids: Any, model_kwargs: Mapping[str, Any]) -> Prompt:
        """A prompt from what transformers' `generate()` hands to its decoding method."""
        ...

    def weights(self) -> TargetWeights:
        """The tables that a trained drafter borrows; refuses a model whose tables are more."""
        ...

    def prefill(self, prompt: Prompt, needs: Needs) -> tuple[SequenceState, Prefill]:
        """Read the prompt once."""
        ...

    def forward(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run one pack per sequence; every state must have been kept since its last forward."""
        ...

    def keep(self, state: SequenceState, path: Ints) -> None:
        """Keep the root and the accepted path [a] of the last pack, drop its other nodes."""
        ...

    def release(self, state: SequenceState) -> Any:
        """End a sequence and hand its cache back, behaving as stock's own."""
        ...

    def decode(self, ids: Sequence[int] | Ints) -> str:
        """Text of ids, special tokens left out."""
        ...

    def detach(self) -> None:
        """Undo what the adapter changed on a live model (its training flag)."""
        ...


class GrowingTarget(Target, Protocol):
    """A target that can write by itself level by level, as a draft model does."""

    def grow(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that a tree has gained since the last forward; says nothing of others."""
        ...

    def drop(self, state: SequenceState) -> None:
        """Forget the last pack, its root too."""
        ...

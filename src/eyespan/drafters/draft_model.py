"""A smaller language model drafts: plain speculative decoding (Leviathan et al., 2023; Chen et al.,
2023), with a chain or, by `width`, a beam of guesses.

Any causal model of transformers with the target's vocabulary will do. It reads text alone: media
spans are dropped from what it is shown, so that a text model can draft for a vision model and guess
all but what only the picture knows. It keeps its own cache; what the target refuses is rolled back.

One round runs the draft model once a level: first over the tokens that became text since it last
ran, then over the guesses of each level but the last. Guesses stay in its cache until the target
has spoken, and those that came true need not be run again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from eyespan.config import check_whole, config_of, refuse
from eyespan.drafters._drawing import Drawing, Sketch
from eyespan.drafters.base import Ask, Session
from eyespan.errors import ConfigError, UnsupportedTarget
from eyespan.types import (
    MAX_PACK,
    ROW_SIZE,
    DraftTree,
    Ints,
    Needs,
    PackedTree,
    Prefill,
    Request,
    Step,
    TargetOut,
)

if TYPE_CHECKING:
    from eyespan.target.base import GrowingTarget, SequenceState, Target

CATCH_UP = 32
"""Tokens of text that one pass of the draft model reads beside its guesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelConfig:
    """Which model drafts, and how far.

    Attributes:
        draft_model: a folder, a hub id, a live transformers model, or a target that is ready.
        depth: levels of a draft, each a pass of the draft model.
        width: guesses kept at each level, the likeliest by the product along their path; 1 drafts
            a chain.
    """

    draft_model: Any = ""
    depth: int = 5
    width: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field, its value and its range.
        """
        limits = {"depth": (1, 32), "width": (1, ROW_SIZE)}
        check_whole("draft_model", self, limits)
        most = MAX_PACK - 1 - CATCH_UP
        if self.depth * self.width > most:
            refuse("draft_model", "depth", self.depth, f"at most {most} // width")


class DraftModel:
    """The draft model, shared by all requests.

    Args:
        vocab_size: ids of the target.
        **options: fields of `DraftModelConfig`.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """

    name: ClassVar[str] = "draft_model"
    needs = Needs()
    extra_nodes = 0

    def __init__(self, *, vocab_size: int, **options: Any) -> None:
        self.config = config_of(self.name, DraftModelConfig, options)
        self.vocab_size = vocab_size
        self.fixed_budget = self.config.depth * self.config.width
        self._model: GrowingTarget | None = None

    @property
    def model(self) -> GrowingTarget:
        """The loaded draft model.

        Raises:
            ConfigError: no target yet, which it is loaded for.
        """
        if self._model is None:
            raise ConfigError(
                f"drafter '{self.name}'",
                found="no target that its draft model was loaded for",
                needed="a live model is needed, with its tokens, dtype and device",
                todo="Run it on a model: `eyespan generate --drafter ...`, `eyespan bench run`.",
            )
        return self._model

    def bind(self, target: Target) -> None:
        """Load the draft model, in the target's dtype and on its device.

        Raises:
            ConfigError: none was named, or its vocabulary is another one.
            InputError, UnsupportedTarget: it cannot be loaded, or its cache cannot be rolled back.
        """
        draft = _ready(self.config.draft_model, target)
        if draft.info.recurrent:
            raise UnsupportedTarget(
                f"draft model '{draft.info.name}'",
                found="recurrent states, which cannot forget a whole draft",
                needed="a draft model of attention alone is needed; the target may be any",
                todo="Choose another draft model.",
            )
        check_same_words(target, draft)
        self._model = draft

    def parameters(self) -> int:
        """Weights of the draft model."""
        import torch

        module = getattr(self.model, "model", None)
        held = module.parameters() if isinstance(module, torch.nn.Module) else ()
        return sum(one.numel() for one in held)

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """Open a session: the draft model reads the prompt's text."""
        return DraftModelSession(self, request)

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """Each session's own draft, one after the other."""
        return [ask.session.propose(ask.prefix, ask.budget) for ask in asks]

    def draw_many(self, asks: Sequence[Ask], drawings: Sequence[Drawing]) -> list[DraftTree]:
        """Each session's own draft, drawn from what the draft model says."""
        sessions: list[DraftModelSession] = [ask.session for ask in asks]  # type: ignore[misc]
        return [
            session.draw(ask.prefix, ask.budget, drawing)
            for session, ask, drawing in zip(sessions, asks, drawings, strict=True)
        ]

    def config_dict(self) -> dict[str, object]:
        """Every field of the config; the model by its name."""
        named = {field.name: getattr(self.config, field.name) for field in fields(self.config)}
        if self._model is not None:
            named["draft_model"] = self._model.info.name
        elif not isinstance(self.config.draft_model, str):
            named["draft_model"] = type(self.config.draft_model).__name__
        return named

    def is_warm(self, scope: str | None) -> bool:
        """Never: a model's cache ends with its request."""
        return False

    def reset(self) -> None:
        """Nothing is learnt."""


def _ready(source: Any, target: Target) -> GrowingTarget:
    """The draft model as a target."""
    import torch

    if isinstance(source, str | os.PathLike) and not str(source).strip():
        raise ConfigError(
            "drafter 'draft_model'",
            found="no draft model",
            needed="a smaller model with the target's vocabulary is needed",
            todo="Name its folder or hub id as draft_model.",
        )
    if not isinstance(source, str | os.PathLike | torch.nn.Module):
        ready: GrowingTarget = source
        return ready
    from eyespan.target.loading import load_target

    info = target.info
    model = source if isinstance(source, torch.nn.Module) else os.fspath(source)
    return load_target(model, dtype=info.dtype, device=info.device)


def check_same_words(target: Target, draft: Target) -> None:
    """Refuse a draft model whose ids mean something else; media ids of the target do not count,
    as they are never shown to it.

    Raises:
        ConfigError: with the first token that differs, or the two sizes where one of the models
            came without a tokenizer.
    """
    if target.tokenizer is None or draft.tokenizer is None:
        theirs, ours = draft.info.vocab_size, target.info.vocab_size
        if theirs != ours:
            raise _other_words(target, draft, f"{theirs:,} ids against {ours:,}")
        return
    known = draft.tokenizer.get_vocab()
    other = [
        (token, at)
        for token, at in target.tokenizer.get_vocab().items()
        if at not in target.info.media_ids and known.get(token) != at
    ]
    if other:
        token, at = min(other, key=lambda pair: pair[1])
        there = known.get(token)
        is_there = "does not know it" if there is None else f"has it at {there}"
        found = f"{len(other):,} tokens that differ, the first {token!r} at {at}: the draft model "
        raise _other_words(target, draft, found + is_there)


def _other_words(target: Target, draft: Target, found: str) -> ConfigError:
    return ConfigError(
        f"draft model '{draft.info.name}' for '{target.info.name}'",
        found=found,
        needed="the same tokenizer is needed: guesses are compared as ids",
        todo="Take a smaller model of the target's own family.",
    )


class _Node(NamedTuple):
    """A guess while a draft grows."""

    token: int
    score: float
    above: int  # index in the draft, -1 for the root
    place: int  # index of `above` in the draft model's pack


class DraftModelSession:
    """One request's place in the draft model.

    Its cache holds the text tokens of `prefix[:self._read]`, then, between a proposal and what the
    target says to it, the pack that the proposal came from.
    """

    def __init__(self, drafter: DraftModel, request: Request) -> None:
        self._drafter, self._draft = drafter, drafter.model
        self._media, self._eos = request.media_ids, request.eos_ids
        self._read = len(request.prompt_ids)
        self._pack = _Pack()
        self._made: tuple[tuple[object, ...], DraftTree] | None = None  # what was asked, its draft
        self._state: SequenceState | None = None
        text = request.prompt_ids[self._is_text(request.prompt_ids)]
        if 0 < len(text) < self._draft.info.max_context:
            prompt = self._draft.prompt_from_ids(text)
            self._state, _ = self._draft.prefill(prompt, Needs())

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        """Let the draft model write. Asked twice, it answers from what it wrote."""
        return self.draw(prefix, budget, None)

    def draw(self, prefix: Ints, budget: int, drawing: Drawing | None) -> DraftTree:
        """The same; with a drawing, guesses are drawn and not the likeliest ones."""
        state, root, asked = self._state, int(prefix[-1]), (len(prefix), budget, drawing)
        if state is None or budget < 1 or root in self._media:
            return DraftTree.empty()
        if self._made is None or self._made[0] != asked:
            self._draft.drop(state)
            news = self._catch_up(state, prefix)
            draft = DraftTree.empty()
            if len(news) and drawing is None:
                draft = self._write(state, news, budget)
            elif len(news) and drawing is not None:
                draft = self._sketch(state, news, budget, drawing, len(prefix))
            self._made = (asked, draft)
        return self._made[1]

    def observe(self, step: Step) -> None:
        """Keep what became text of the last pack, forget the rest."""
        self._made = None
        if self._state is None or self._state.pending == 0:
            return
        # The last token is the next root and has to be run for its row, even if it was guessed: a
        # guess that was cut before the target saw it, or gated, may be what the target says.
        path = self._pack.follow(step.verdict.tokens[:-1])
        self._draft.keep(self._state, np.array(path[1:], np.int32))
        self._read = len(step.prefix) + len(path) - self._pack.given

    def _is_text(self, tokens: Ints) -> npt.NDArray[np.bool_]:
        return ~np.isin(tokens, list(self._media))

    def _catch_up(self, state: SequenceState, prefix: Ints) -> Ints:
        """Text that the draft model has not read, the root last, short enough for one pack; what
        rounds without drafts left beyond that is read here. Empty where its context ends.
        """
        news = self._read + np.flatnonzero(self._is_text(prefix[self._read :]))
        if state.length + len(news) > self._draft.info.max_context:
            return prefix[:0]
        while len(news) > CATCH_UP:
            chain, news = news[:CATCH_UP], news[CATCH_UP:]
            self._draft.forward([state], [_Pack(prefix[chain].tolist()).tree()], Needs())
            self._draft.keep(state, np.arange(1, CATCH_UP, dtype=np.int32))
            self._read = int(chain[-1]) + 1
        return prefix[news]

    def _write(self, state: SequenceState, news: Ints, budget: int) -> DraftTree:
        """Grow a draft level by level, running the draft model once each."""
        config = self._drafter.config
        budget = min(budget, self._drafter.fixed_budget)
        levels = min(config.depth, -(-budget // config.width))
        levels = min(levels, self._draft.info.max_context - state.length - len(news) + 1)
        self._pack = pack = _Pack(news.tolist())
        tree: list[_Node] = []
        layer = [_Node(int(news[-1]), 1.0, -2, -1)]  # what was run last; the root is no guess
        at = [-1]  # index in the draft of each of them
        out = self._draft.forward([state], [pack.tree()], Needs())[0]
        first = pack.given - 1  # index in the pack of the layer's first node
        for level in range(1, levels + 1):
            room = min(config.width, budget - len(tree))
            rows = len(out.row_ids) - len(layer)  # of what was read before the root
            layer = self._next(out, rows, layer, at, first)[:room]
            at = [*range(len(tree), len(tree) + len(layer))]
            tree += layer
            runs = [pair for pair in zip(layer, at, strict=True) if pair[0].token not in self._eos]
            if level == levels or not runs:
                break
            layer, at = [node for node, _ in runs], [where for _, where in runs]
            first = len(pack)
            for node in layer:
                pack.add(node.token, node.place)
            out = self._draft.grow(state, pack.tree(), Needs())
        return DraftTree(
            np.array([node.token for node in tree], np.int32),
            np.array([node.above for node in tree], np.int32),
            np.array([node.score for node in tree], np.float32),
        )

    def _sketch(
        self, state: SequenceState, news: Ints, budget: int, drawing: Drawing, at: int
    ) -> DraftTree:
        """Draw a draft level by level, running the draft model once each."""
        config = self._drafter.config
        room = self._draft.info.max_context - state.length - len(news) + 1
        depth = min(drawing.depth, config.depth, room)
        budget = min(budget, self._drafter.fixed_budget)
        sketch = Sketch(drawing._replace(depth=depth), at, budget, config.width, self._eos)
        self._pack = pack = _Pack(news.tolist())
        places = [pack.given - 1]  # in the pack, of the layer's nodes
        out = self._draft.forward([state], [pack.tree()], Needs())[0]
        while sketch.going:
            new = sketch.draw(self._words(out.logits[-len(places) :]))
            if not sketch.going:
                break
            first = len(pack)
            for token, place in new:
                pack.add(token, places[place])
            places = [*range(first, len(pack))]
            out = self._draft.grow(state, pack.tree(), Needs())
        return sketch.tree()

    def _words(self, logits: Any) -> npt.NDArray[np.float64]:
        """[n, V] logits over the target's ids, with nothing left for media."""
        import torch

        size = self._drafter.vocab_size
        known: npt.NDArray[np.float64] = torch.as_tensor(logits)[:, :size].double().cpu().numpy()
        lacks = size - known.shape[1]
        words = np.pad(known, ((0, 0), (0, lacks)), constant_values=-np.inf)
        words[:, [media for media in self._media if media < size]] = -np.inf
        return words

    def _next(
        self, out: TargetOut, rows: int, layer: list[_Node], at: list[int], first: int
    ) -> list[_Node]:
        """All children of a layer, likeliest first; of equal ones the earlier parent's."""
        found = []
        for number, (node, above) in enumerate(zip(layer, at, strict=True)):
            row = rows + number
            chances = _softmax(out.row_logits[row])
            for token, chance in zip(out.row_ids[row].tolist(), chances.tolist(), strict=True):
                if 0 <= token < self._drafter.vocab_size and token not in self._media:
                    found.append(_Node(token, node.score * chance, above, first + number))
        return sorted(found, key=lambda node: -node.score)


class _Pack:
    """What the draft model runs in one round: a chain of text that ends with the root, then guesses
    level by level. Grows at its end only, so that what has run stays where it is.
    """

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.given = len(text)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        for token in text:
            self.add(token, len(self.tokens) - 1)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int) -> None:
        """Hang a token below a node; -1 makes it the first."""
        self.tokens.append(token)
        self.parents.append(parent)

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The given text and, below the root, the guesses that these tokens are, as indices."""
        path = list(range(self.given))
        for token in tokens:
            below = [
                at
                for at in range(self.given, len(self))
                if self.parents[at] == path[-1] and self.tokens[at] == token
            ]
            if not below:
                break
            path.append(below[0])
        return path

    def tree(self) -> PackedTree:
        """As the model takes it; `order` is of no use here."""
        size = len(self)
        depths = np.zeros(size, np.int32)
        above = np.zeros((size, MAX_PACK), bool)
        for at, parent in enumerate(self.parents):
            if parent >= 0:
                depths[at] = depths[parent] + 1
                above[at] = above[parent]
            above[at, at] = True
        octets = np.packbits(above, axis=1, bitorder="little")
        return PackedTree(
            tokens=np.array(self.tokens, np.int32),
            parents=np.array(self.parents, np.int32),
            depths=depths,
            ancestors=octets.view("<u8").astype(np.uint64),
            order=np.arange(size - 1, dtype=np.int32),
        )


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[k] probabilities within a row."""
    weights = np.exp(logits - logits[0])
    probabilities: npt.NDArray[np.float32] = weights / weights.sum()
    return probabilities

"""A recorded answer in the place of a model: the target of a replay, and the rows it hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from eyespan._core import pack
from eyespan.diagnostics.recorded import HOW_TO_RECORD, Recorded, Recording, Rows
from eyespan.drafters.base import Ask, Drafter, Session
from eyespan.errors import ConfigError, InputError
from eyespan.sequence import Observer, Running
from eyespan.target.base import SequenceState, TargetInfo
from eyespan.types import (
    ROW_SIZE,
    Cut,
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
    from eyespan.target.weights import TargetWeights


def running_for(one: Recorded, watch: Observer | None = None) -> Running:
    """A request whose target says the recorded answer again, and ends where it ended."""
    output, prompt = one.output, len(one.request.prompt_ids)
    left = [len(output)]

    def on_token(token: int, source: str) -> Cut | None:
        left[0] -= 1
        return None if left[0] else "stop"

    def draw(logits: Any, ids: Ints) -> int:
        return int(output[len(ids) - prompt])

    return Running(one.request, on_token=on_token, draw=draw, observer=watch)


def check_feeds(recording: Recording, needs: Needs, name: str) -> None:
    """Refuse a drafter that a trace cannot feed.

    Raises:
        ConfigError: it reads hidden states, attention or visual tokens, which no trace holds.
        InputError: it reads rows, and this trace has none, or too few of the prompt's.
    """
    if needs.hidden_layers or needs.visual_attention or needs.visual_tokens:
        raise ConfigError(
            f"replaying drafter '{name}'",
            found="it reads hidden states, attention or visual tokens",
            needed="a drafter that reads tokens and rows only is needed: a trace holds no more",
            todo="Run it on a model: `eyespan generate --drafter ...`.",
        )
    for one in recording.requests:
        if needs.rows and one.states and not len(one.rows):
            raise _no_rows(recording, name, f"request {one.request.id} holds none")
        if needs.prompt_rows == "all" and len(one.seeds) < _text_tokens(one):
            raise _no_rows(recording, name, "it holds the prompt's first occurrences only")


def _no_rows(recording: Recording, name: str, found: str) -> InputError:
    return InputError(
        f"replaying '{name}' on trace {recording.name}",
        found=found,
        needed="the target's rows are needed: run a drafter that asks for them while recording",
        todo=f"{HOW_TO_RECORD} For the whole prompt's rows add `--option seed_context=true`.",
    )


def _text_tokens(one: Recorded) -> int:
    return int((~np.isin(one.request.prompt_ids, list(one.request.media_ids))).sum())


def prompt_rows(one: Recorded, needs: Needs) -> Rows:
    """The recorded rows of the prompt that a drafter asked for."""
    if needs.prompt_rows == "none":
        return Rows.none()
    if needs.prompt_rows == "all":
        return one.seeds
    tokens = one.request.prompt_ids[one.seeds.at]
    _, first = np.unique(tokens, return_index=True)
    kept = np.sort(first)
    return Rows(one.seeds.at[kept], one.seeds.ids[kept], one.seeds.logits[kept])


def prefill_of(one: Recorded, needs: Needs) -> Prefill:
    """What the prompt's forward brought, as far as the trace tells it. Of the row after the last
    prompt position only the chosen token is known.
    """
    rows = prompt_rows(one, needs)
    next_ids = np.full(ROW_SIZE, -1, np.int32)
    next_logits = np.full(ROW_SIZE, -np.inf, np.float32)
    next_ids[0], next_logits[0] = one.output[0], 0.0
    return Prefill(
        next_row_ids=next_ids,
        next_row_logits=next_logits,
        logits=None,
        positions=rows.at,
        row_ids=rows.ids,
        row_logits=rows.logits,
    )


class SeenRows:
    """Every row of one recorded answer, by the text it follows.

    A text is named by how far it is the answer's, and by the tokens after it leaves the answer: so
    rounds with other borders find the same row.

    Args:
        one: the recorded request.
    """

    def __init__(self, one: Recorded) -> None:
        self._output = one.output
        self._number: dict[tuple[int, ...], int] = {}
        ids = [np.full((1, ROW_SIZE), -1, np.int32)]
        logits = [np.full((1, ROW_SIZE), -np.inf, np.float32)]
        count = 1
        for each in one.rounds:
            if each.row_ids is None or each.row_logits is None:
                continue
            for number, key in enumerate(self._keys(each.root, each.tokens, each.parents), count):
                self._number.setdefault(key, number)
            ids.append(each.row_ids)
            logits.append(each.row_logits)
            count += len(each.tokens)
        self._ids, self._logits = np.concatenate(ids), np.concatenate(logits)

    def of(self, root: int, tree: PackedTree) -> TargetOut:
        """Rows [n, K] at every node of a pack; those that were never seen are padding.

        Args:
            root: index in the answer of the pack's root.
            tree: the pack.
        """
        numbers = [self._number.get(key, 0) for key in self._keys(root, tree.tokens, tree.parents)]
        return TargetOut(
            row_ids=self._ids[numbers], row_logits=self._logits[numbers], logits=_NoLogits()
        )

    def _keys(self, root: int, tokens: Ints, parents: Ints) -> list[tuple[int, ...]]:
        """For each node: how many answer tokens its text shares, then the tokens that differ."""
        output, last = self._output, len(self._output) - 1
        keys: list[tuple[int, ...]] = [(root,)]
        for token, parent in zip(tokens[1:].tolist(), parents[1:].tolist(), strict=True):
            above = keys[parent]
            at = above[0]
            if len(above) == 1 and at < last and output[at + 1] == token:
                keys.append((at + 1,))
            else:
                keys.append((*above, token))
        return keys


class _NoLogits:
    """A trace holds no logits; the loop hands one node's to the draw, which does not read them."""

    def __getitem__(self, node: int) -> None:
        return None


class RecordedTarget:
    """Implements `eyespan.target.base.Target` over the answers of a recording.

    Args:
        recording: whose requests are its prompts.
        vocab_size: of the recorded target.
    """

    model: Any = None
    tokenizer: Any = None

    def __init__(self, recording: Recording, vocab_size: int) -> None:
        first = recording.requests[0]
        self.info = TargetInfo(
            name=first.model, family="recorded", vocab_size=vocab_size,
            media_ids=first.request.media_ids, eos_ids=first.request.eos_ids,
            max_context=max(len(one.text) for one in recording.requests),
            hidden_size=0, layers=0, dtype="", device="", attention="", masks="explicit",
        )  # fmt: skip

    def prefill(self, prompt: Any, needs: Needs) -> tuple[Any, Prefill]:
        """Begin an answer; `prompt` is a `Recorded`."""
        return _State(prompt), prefill_of(prompt, needs)

    def forward(
        self, states: Sequence[Any], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """The rows that were seen at the nodes."""
        return [state.rows.of(state.root, tree) for state, tree in zip(states, trees, strict=True)]

    def grow(self, state: Any, tree: PackedTree, needs: Needs) -> TargetOut:
        """The rows of a tree that has gained nodes: looking all up again costs no forward."""
        return state.rows.of(state.root, tree)  # type: ignore[no-any-return]

    def drop(self, state: Any) -> None:
        """A pack leaves nothing behind: the root moves when something is kept."""

    def keep(self, state: Any, path: Ints) -> None:
        """Move the root behind the accepted path."""
        state.root += 1 + len(path)

    def prepare(self, prompt: Any, images: Any = (), videos: Any = ()) -> Any:
        """A recording is ready as it is."""
        return prompt

    def weights(self) -> TargetWeights:
        """A trace holds none; drafters that need them are refused before they ask."""
        raise NotImplementedError("a recorded target has no weights")

    def prompt_from_ids(self, input_ids: Any, **media: Any) -> Any:
        """A trace answers no other prompts."""
        raise NotImplementedError("a recorded target answers its own prompts only")

    def prompt_from_generate(self, input_ids: Any, model_kwargs: Mapping[str, Any]) -> Any:
        """A trace answers no other prompts."""
        raise NotImplementedError("a recorded target answers its own prompts only")

    def release(self, state: SequenceState) -> Any:
        """There is no cache."""
        return None

    def decode(self, ids: Any) -> str:
        """There is no tokenizer: ids as they are."""
        return " ".join(f"#{int(token)}" for token in ids)

    def detach(self) -> None:
        """There is no model."""


class _State:
    """Where a replayed answer stands; a recording has no cache that could fill up."""

    room: int | None = None

    def __init__(self, one: Recorded) -> None:
        self.rows = SeenRows(one)
        self.root = 0


class KnownRows:
    """A drafter whose sessions see only nodes with a known row, as if no other had been sent.

    Args:
        drafter: the real one.

    Attributes:
        nodes: packed nodes, roots included, whose rows were known.
    """

    name: ClassVar[str] = "replayed"

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.needs = drafter.needs
        self.fixed_budget, self.extra_nodes = drafter.fixed_budget, drafter.extra_nodes
        self.nodes = 0

    def begin(self, request: Request, prefill: Prefill) -> Session:
        """The drafter's own session, with its eyes on what is known."""
        session = self._drafter.begin(request, prefill)
        return _KnownSession(session, self) if self.needs.rows else session

    def propose_many(self, asks: Sequence[Ask]) -> list[DraftTree]:
        """The drafter's own proposals, from its own sessions."""
        return self._drafter.propose_many(
            [
                ask._replace(session=ask.session.inner)
                if isinstance(ask.session, _KnownSession)
                else ask
                for ask in asks
            ]
        )

    def config_dict(self) -> dict[str, object]:
        """The drafter's."""
        return self._drafter.config_dict()

    def is_warm(self, scope: str | None) -> bool:
        """The drafter's."""
        return self._drafter.is_warm(scope)

    def reset(self) -> None:
        """Forget what the drafter shares."""
        self._drafter.reset()


class _KnownSession:
    def __init__(self, inner: Session, owner: KnownRows) -> None:
        self.inner, self._owner = inner, owner

    def propose(self, prefix: Ints, budget: int) -> DraftTree:
        return self.inner.propose(prefix, budget)

    def observe(self, step: Step) -> None:
        step = known_part(step)
        self._owner.nodes += len(step.tree)
        self.inner.observe(step)


def known_part(step: Step) -> Step:
    """A round as if only the nodes whose rows are known had been sent. Those above a known node are
    known themselves: they stood in the recorded pack that held it, or in the answer.
    """
    known = step.out.row_ids[:, 0] >= 0
    if known.all():
        return step
    known[0] = True
    kept = np.flatnonzero(known)
    place = np.cumsum(known) - 1
    tree = step.tree
    parents = place[tree.parents[kept[1:]]] - 1
    small = PackedTree(
        *pack(tree.tokens[kept[1:]], parents.astype(np.int32), None, int(tree.tokens[0]))
    )
    out = replace(step.out, row_ids=step.out.row_ids[kept], row_logits=step.out.row_logits[kept])
    # the answer's last token has no row where it ended a pack; its session is over then
    path = np.array([place[node] for node in step.verdict.path if known[node]], np.int32)
    return replace(step, tree=small, out=out, verdict=replace(step.verdict, path=path))

"""What every drafter owes its users, checked for every name in the table: the same drafts for the
same text, nothing of one scope in another, sizes that are kept, a reset that resets, memory that
stays bounded and still learns, look-ups that do not read the whole history, and no media.

A new drafter needs one line in `SMALL`: options that make its memory tiny.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.budget import depths_of
from eyespan.drafters import DRAFTERS, TRAINED
from eyespan.drafters.base import Drafter
from eyespan.engine import Decoder
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.types import DraftTree, Ints, Needs, PackedTree, TargetOut
from tests.drafting import ints, packed_of, prefill_of, request_of, show
from tests.toy_drafters import WEIGHTED, drafter_for
from tests.toys import WIDTH, ToyState, ToyTarget

SMALL: dict[str, dict[str, Any]] = {
    "draft_model": {"draft_model": ToyTarget(vocab=4096, max_context=64)},
    "hybrid": {"max_rows": 64, "max_suffix_tokens": 128},
    "lookahead": {"max_nodes": 512, "max_prompt_tokens": 64},
    "none": {},
    "prompt_lookup": {"max_tokens": 256},
    "recap": {"max_rows": 64, "max_suffix_tokens": 128},
    "sam": {"max_tokens": 128},
    "stand": {"max_rows": 64},
    "suffix": {"max_local_tokens": 128, "max_global_tokens": 128},
    "token_recycling": {},
    "tree_recycling": {"max_rows": 64},
    "viskip": {"max_tokens": 256},
}
NEVER_LEARNS = {"none", "draft_model"}
MEDIA = frozenset({0, 5})


class Recording(ToyTarget):
    """A toy that remembers every pack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.packs: list[tuple[list[int], list[int]]] = []

    def forward(
        self, states: Sequence[ToyState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        self.packs += [(tree.tokens.tolist(), tree.parents.tolist()) for tree in trees]
        return super().forward(states, trees, needs)


def begin(decoder: Decoder, prompt: Sequence[int], limit: int, scope: str = "a") -> Running:
    target = decoder.target
    request = request_of(prompt, media=MEDIA, eos=target.info.eos_ids, scope=scope, limit=limit)
    running = Running(request, on_token=lambda token, source: None)
    decoder.start(running, request.prompt_ids)  # type: ignore[arg-type]
    return running


def answer(drafter: Drafter, prompt: Sequence[int], limit: int, scope: str = "a") -> list[Any]:
    """Every pack of one request, in order."""
    target = Recording(vocab=16, media_ids=MEDIA)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
    running = begin(decoder, prompt, limit, scope)
    while running.finish is None:
        decoder.step([running])
    return target.packs


def toy_drafter(name: str, **options: Any) -> Drafter:
    if name in WEIGHTED:  # forwards of a real network: as few as show that it has levels
        options |= {"width": 2, "depth": 2}
    return drafter_for(name, ToyTarget(vocab=16, media_ids=MEDIA), **options)


def few(name: str, limit: int) -> int:
    """Tokens of an answer: eight show all that a trained head, which remembers nothing, does."""
    return min(limit, 8) if name in WEIGHTED else limit


every = pytest.mark.parametrize("name", DRAFTERS)
prompts = st.lists(st.integers(0, 12), min_size=1, max_size=20)
limits = st.integers(1, 40)


@every
@settings(max_examples=10, deadline=None)
@given(prompt=prompts, limit=limits)
def test_the_same_request_drafts_the_same_and_nothing_of_another_scope(
    name: str, prompt: list[int], limit: int
) -> None:
    limit, longest = few(name, limit), few(name, 40)
    cold = answer(toy_drafter(name), prompt, limit)
    warm = toy_drafter(name)
    answer(warm, prompt, longest, scope="another")
    answer(warm, [3, 4, *prompt], longest, scope="a third")
    assert answer(warm, prompt, limit) == cold


@every
@settings(max_examples=10, deadline=None)
@given(prompt=prompts, limit=limits)
def test_after_a_reset_a_drafter_is_new(name: str, prompt: list[int], limit: int) -> None:
    drafter, limit = toy_drafter(name), few(name, limit)
    cold = answer(drafter, prompt, limit)
    drafter.reset()
    assert not drafter.is_warm("a")
    assert answer(drafter, prompt, limit) == cold


@every
@settings(max_examples=10, deadline=None)
@given(prompt=prompts)
def test_asking_does_not_change_the_answer(name: str, prompt: list[int]) -> None:
    """Budgets are kept, 0, 1 and huge ones too; asking thrice is asking once; and no draft holds
    media or reaches past what may still be committed.
    """
    limit = few(name, 30)
    expected = answer(toy_drafter(name), prompt, limit)
    drafter = toy_drafter(name)
    target = Recording(vocab=16, media_ids=MEDIA)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
    running = begin(decoder, prompt, limit)
    while running.finish is None:
        session, room = running.session, running.room
        assert session is not None
        for budget in (0, 1, 2, 7, 100):
            draft = session.propose(running.ids, budget)
            again = session.propose(running.ids, budget)
            assert len(draft) <= budget + (drafter.extra_nodes if budget else 0)
            assert draft.tokens.tolist() == again.tokens.tolist()
            assert draft.parents.tolist() == again.parents.tolist()
            assert not MEDIA & set(draft.tokens.tolist())
        sent = len(target.packs)
        decoder.step([running])
        for tokens, parents in target.packs[sent:]:
            tree = DraftTree(ints(tokens[1:]), ints([parent - 1 for parent in parents[1:]]))
            assert depths_of(tree).max(initial=0) < room
    assert target.packs == expected


@every
@pytest.mark.parametrize("left", [1, 3, 6])
def test_no_draft_reaches_beyond_the_context(name: str, left: int) -> None:
    """More tokens may be asked for than the target has positions: the last ones are plain ones'."""
    prompt = [3, 4, 6, 7] * 3 + [3]
    edge = len(prompt) + left
    target = Recording(vocab=16, media_ids=MEDIA, eos_ids=frozenset())
    drafter = toy_drafter(name)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
    request = request_of(prompt, media=MEDIA, eos=(), scope="a", limit=30)
    running = Running(request, on_token=lambda token, source: None, max_context=edge)
    decoder.start(running, request.prompt_ids)  # type: ignore[arg-type]
    while len(running.ids) < edge:
        before, sent = len(running.ids), len(target.packs)
        decoder.step([running])
        for tokens, parents in target.packs[sent:]:
            tree = DraftTree(ints(tokens[1:]), ints([parent - 1 for parent in parents[1:]]))
            assert before + depths_of(tree).max(initial=0) <= edge
    assert running.output_ids.tolist() == target.plain(prompt, len(running.output_ids))


@every
def test_requests_that_take_turns_draft_as_if_alone(name: str) -> None:
    alone = [answer(toy_drafter(name), prompt, 25, scope=str(prompt)) for prompt in ([3, 4], [7])]
    drafter = toy_drafter(name)
    target = Recording(vocab=16, media_ids=MEDIA)
    decoder = Decoder(target, drafter, Policy("fixed", drafter))  # type: ignore[arg-type]
    batch = [begin(decoder, prompt, 25, scope=str(prompt)) for prompt in ([3, 4], [7])]
    packs: list[list[Any]] = [[], []]
    while any(running.finish is None for running in batch):
        for running, own in zip(batch, packs, strict=True):
            if running.finish is None:
                decoder.step([running])
                own.append(target.packs[-1])
    assert packs == alone


# Memory


def weight(thing: Any, seen: set[int] | None = None) -> int:
    """Roughly the bytes that an object holds on to: arrays, containers, and what the compiled core
    says of itself.
    """
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if type(thing).__module__ == "eyespan._core":
        return int(getattr(thing, "nbytes", 0))
    if isinstance(thing, bytes | str):
        return len(thing)
    inside: list[Any] = []
    if isinstance(thing, Mapping):
        inside = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inside = list(thing)
    inside += [
        getattr(thing, slot)
        for slot in getattr(type(thing), "__slots__", ())
        if slot != "__weakref__" and hasattr(thing, slot)
    ]
    inside += list(getattr(thing, "__dict__", {}).values())
    return 8 + sum(weight(part, seen) for part in inside)


def feed(
    drafter: Drafter,
    session: Any,
    text: list[int],
    news: Sequence[int],
    rng: np.random.Generator,
) -> None:
    """Commit tokens one a round. The target's best guess at the root is the token that comes, and
    elsewhere it counts on.
    """
    for token in news:
        others = rng.permutation(np.arange(4000, 4090))[:7].tolist()
        draft = session.propose(ints(text), 8)
        tree = packed_of(draft, text[-1])
        rows = [[token, *others], *([guess + 1, *others] for guess in tree.tokens[1:].tolist())]
        extras = extras_of(drafter, len(tree))
        show(session, text, [token], draft=draft, row_ids=rows, extras=extras)
        text.append(int(token))


def extras_of(drafter: Drafter, nodes: int) -> dict[str, Any]:
    """What a target hands out besides rows: no attention on pictures, and states that are zero."""
    states = np.zeros((nodes, len(drafter.needs.hidden_layers), WIDTH), np.float32)
    return {"visual_attention": 0.0, "hidden": states}


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in TRAINED])
def test_memory_is_bounded_and_still_learns(name: str) -> None:
    """Trained heads have no memory; what they keep of a text is one pair a token
    (`parity/test_heads.py`).
    """
    assert name in SMALL, "give the new drafter a line in SMALL"
    drafter = drafter_for(name, ToyTarget(vocab=4096), **SMALL[name])
    rng = np.random.default_rng(0)
    text = [2, 3]
    request = request_of(text, media=MEDIA, eos={1}, scope="a")
    session = drafter.begin(request, prefill_of(extras_of(drafter, len(text))))
    text.append(4)
    weights = []
    for _ in range(3):
        feed(drafter, session, text, rng.integers(10, 4000, 500), rng)
        weights.append(weight((drafter, session)))
    assert weights[2] <= 1.3 * weights[0] + 1024
    if name not in NEVER_LEARNS:
        phrase = list(range(3001, 3011))
        feed(drafter, session, text, [*phrase, *phrase, *phrase[:5]], rng)
        draft = session.propose(ints(text), 40)
        assert phrase[5] in draft.tokens[draft.parents == -1]


@every
def test_scopes_are_bounded(name: str) -> None:
    """Ten thousand users, each in a scope of their own, leave no more behind than the first few."""
    small = {"max_scopes": 4} if "max_scopes" in toy_drafter(name).config_dict() else {}
    drafter = toy_drafter(name, **small)
    weights = []
    for user in range(60):
        answer(drafter, [3, 4, user % 7 + 6], 6, scope=f"user {user}")
        weights.append(weight(drafter))
    assert weights[-1] <= 1.2 * weights[9] + 256


class Watched(np.ndarray[Any, Any]):
    """A history that counts the elements anyone reads of it."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        part = np.asarray(self)[key]
        Watched.read += int(np.size(part))
        return part

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        Watched.read += self.size
        return getattr(function, method)(*(np.asarray(item) for item in inputs), **options)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        Watched.read += self.size
        plain = [np.asarray(item) if isinstance(item, Watched) else item for item in inputs]
        return function(*plain, **options)

    def tolist(self) -> Any:
        Watched.read += self.size
        return super().tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        Watched.read += self.size
        return super().tobytes(order)


@every
def test_A44_a_draft_reads_no_more_of_a_longer_history(name: str) -> None:
    most = []
    for length in (100, 1000, 10_000):
        rng = np.random.default_rng(length)
        text = rng.integers(6, 16, length).tolist()
        drafter = toy_drafter(name)
        request = request_of(text, media=MEDIA, scope="a")
        session = drafter.begin(request, prefill_of(extras_of(drafter, length)))
        reads = []
        text.append(8)
        for _ in range(20):
            history: Ints = ints(text).view(Watched)
            Watched.read = 0
            session.propose(history, 100)
            reads.append(Watched.read)
            token = int(rng.integers(6, 16))
            show(session, text, [token], extras=extras_of(drafter, 1))
            text.append(token)
        most.append(max(reads))
    assert max(most) <= 200

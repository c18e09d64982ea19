"""Every trained head: what it drafts with its cache is what a plain forward of it says, training
sees what drafting sees, and the text stays the target's whatever random weights guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eyespan.drafters import TRAINED, make_drafter
from eyespan.drafters._attention import GROWTH, CachedAttention, KeyValues
from eyespan.drafters._checkpoint import write_head
from eyespan.drafters._head import TrainState
from eyespan.drafters._trained import TrainedSession
from eyespan.drafters._unroll import unroll
from eyespan.drafters.base import Ask
from eyespan.engine import Decoder
from eyespan.errors import ConfigError, InputError, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.target import HuggingFaceTarget
from eyespan.target.base import Prompt
from eyespan.testing import (
    SEEING,
    packed,
    plain_answer,
    random_checkpoint,
    random_head,
    tiny_images,
    tiny_target,
)
from eyespan.train.batch import TrainBatch
from eyespan.types import DraftTree, Ints, Needs, Request, Step, Verdict

FIELDS: dict[str, dict[str, Any]] = {
    "fovea": {"correct_depth": 2},
    "vispec": {"slots": 3},
}
"""Config fields that show more of a method than its defaults do."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in TRAINED},
    "eagle3 reduced": ("eagle3", {"draft_vocab_size": 90}),
    "vispec one slot": ("vispec", {"slots": 1}),
    "fovea fixed_prefix": ("fovea", {"interface": "fixed_prefix"}),
    "fovea dynamic_insertion": ("fovea", {"interface": "dynamic_insertion"}),
    "fovea correction_rebuild": ("fovea", {"interface": "correction_rebuild"}),
    "fovea random top_k": ("fovea", {"retrieval": "top_k", "top_k": 2, "query": "random"}),
    "fovea static": ("fovea", {"query": "static_image", "memory_limit": 3}),
    "fovea agnostic dense": ("fovea", {"query": "query_agnostic", "retrieval": "dense"}),
    "fovea without": ("fovea", {"correction": False, "depth_embedding": False, "gate": False}),
}


COMPARED = (*TRAINED, "eagle3 reduced", "vispec one slot", "fovea fixed_prefix")
"""Variants whose context does not change from round to round."""


@lru_cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


def drafter_of(variant: str, target: HuggingFaceTarget, folder: Path, **options: Any) -> Any:
    name, fields = VARIANTS[variant]
    fields = {"width": 3, "depth": 4, "nodes": 12, **FIELDS.get(name, {}), **fields}
    path = random_checkpoint(name, target.weights(), folder / variant.replace(" ", "-"), **fields)
    vocab = target.info.vocab_size
    drafter = make_drafter(name, vocab_size=vocab, checkpoint=path, **options)
    drafter.bind(target)  # type: ignore[attr-defined]
    return drafter


def prompt_of(target: HuggingFaceTarget, images: int, text: str = "What is it?") -> Prompt:
    return target.prepare(text, tiny_images(images))


def request_of(target: HuggingFaceTarget, prompt: Prompt, limit: int = 24) -> Request:
    return Request(
        id="r",
        prompt_ids=prompt.ids,
        media_ids=target.info.media_ids,
        eos_ids=target.info.eos_ids,
        max_new_tokens=limit,
    )


def decode(
    target: HuggingFaceTarget, drafter: Any, prompts: Sequence[Prompt], limit: int
) -> list[Running]:
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    batch = []
    for prompt in prompts:
        running = Running(request_of(target, prompt, limit), on_token=lambda token, source: None)
        decoder.start(running, prompt)
        batch.append(running)
    while going := [running for running in batch if running.finish is None]:
        decoder.step(going)
    return batch


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_random_weights_change_no_word(variant: str, family: str, tmp_path: Path) -> None:
    target = target_of(family)
    drafter = drafter_of(variant, target, tmp_path)
    prompts = [prompt_of(target, images) for images in (0, 1, 3)]
    for prompt, running in zip(prompts, decode(target, drafter, prompts, 20), strict=True):
        assert running.output_ids.tolist() == plain_answer(target, prompt, 20).tolist()
        assert running.counters.drafted > 5
        assert "drafter fault" not in running.counters.plain_steps


def follow(
    target: HuggingFaceTarget, drafter: Any, prompt: Prompt, rounds: int
) -> tuple[TrainedSession, Ints]:
    """A session after some rounds in which the best chain of drafts was (said to be) accepted."""
    state, prefill = target.prefill(prompt, drafter.needs)
    session = drafter.begin(request_of(target, prompt), prefill)
    prefix = np.append(prompt.ids, prefill.next_row_ids[0]).astype(np.int32)
    for at in range(rounds):
        draft = session.propose(prefix, 4)
        tree = packed(draft, int(prefix[-1]))
        out = target.forward([state], [tree], drafter.needs)[0]
        path = chain(tree, at)  # rounds accept 0, 1, 2, ... nodes
        tokens = (*tree.tokens[path].tolist(), int(out.row_ids[path[-1] if len(path) else 0, 0]))
        target.keep(state, path)
        session.observe(Step(prefix, tree, out, Verdict(path, tokens[-1], tokens)))
        prefix = np.append(prefix, np.array(tokens, np.int32)).astype(np.int32)
    state.close()
    return session, prefix


def chain(tree: Any, length: int) -> Ints:
    """Packed nodes of some root path of at most `length` nodes."""
    path: list[int] = []
    for node in range(1, len(tree)):
        if len(path) < length and tree.parents[node] == (path[-1] if path else 0):
            path.append(node)
    return np.array(path, np.int32)


def path_tokens(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path[::-1]


def plain_scores(
    drafter: Any, target: HuggingFaceTarget, prompt: Prompt, text: Ints, drafts: Sequence[int]
) -> Tensor:
    """[V] log-probabilities after `drafts`, without sessions, batches or trees: the target reads
    prompt and text once, and the head is run over all pairs, one forward for every drafted token.
    """
    head = drafter.head
    states = states_of(target, prompt, text, head.reads)
    _, seen = target.prefill(prompt, drafter.needs)
    condition = drafter._look(seen.extras.get("visual_tokens"))
    media = torch.from_numpy(np.isin(text[1:], list(target.info.media_ids)))[None]
    pairs = head.prompt(states[None, 1:, 0], head.lift(states[None, :-1]), media, condition)
    x, positions = pairs.x[0], torch.arange(1, len(text))
    if pairs.visible is not None:
        x, positions = x[pairs.visible[0]], positions[pairs.visible[0]]
    if has_front(drafter):
        front, _ = head.front(condition, head.static_weights(condition))
        x = torch.cat([front[0], x])
        positions = torch.cat([torch.arange(-front.shape[1], 0), positions])
    for step in range(len(drafts) + 1):
        config = drafter.config
        cache = KeyValues(
            head.slots, config.kv_heads, config.head_dim, dtype=x.dtype, device=x.device
        )
        cache.reserve(len(x))
        last = head.stack(x[None], positions[None], CachedAttention(cache, 0, None)).last[:, -1:]
        if step < len(drafts):
            embeds = head.embed(torch.tensor([[drafts[step]]]))
            new = head.inputs(embeds, head.feedback(last), condition)[0]
            x = torch.cat([x, new])
            positions = torch.cat([positions, positions[-1:] + 1])
    logits = head.scores(last, len(drafts), condition, None)[0, 0]
    full = torch.full((target.info.vocab_size,), -torch.inf)
    names = head.token_ids()
    full[torch.arange(len(logits)) if names is None else names] = logits
    full[list(target.info.media_ids)] = -torch.inf
    return full.log_softmax(-1)


def has_front(drafter: Any) -> bool:
    """Whether the entries that the mean visual token takes stand before the context."""
    return getattr(drafter.config, "interface", "") == "fixed_prefix"


def states_of(
    target: HuggingFaceTarget, prompt: Prompt, text: Ints, layers: tuple[int, ...]
) -> Tensor:
    """[L, R, D] states of prompt and text from one prefill and plain steps."""
    needs = Needs(hidden_layers=layers)
    state, prefill = target.prefill(prompt, needs)
    found = [prefill.extras["hidden"]]
    for token in text[len(prompt.ids) :]:
        out = target.forward([state], [packed(DraftTree.empty(), int(token))], needs)[0]
        target.keep(state, np.empty(0, np.int32))
        found.append(out.extras["hidden"])
    state.close()
    return torch.as_tensor(np.concatenate(found))


@torch.no_grad()
@pytest.mark.parametrize("images", [0, 2])
@pytest.mark.parametrize("variant", COMPARED)
def test_a_tree_scores_as_plain_forwards_do(variant: str, images: int, tmp_path: Path) -> None:
    """Cache, tree mask, positions, batching and rounds change nothing of what the head says."""
    target = target_of("qwen2_5_vl")
    drafter = drafter_of(variant, target, tmp_path)
    prompt = prompt_of(target, images)
    session, prefix = follow(target, drafter, prompt, rounds=3)
    tree = session.propose(prefix, 12)
    assert len(tree) == 12
    assert tree.scores is not None
    for node in (0, 4, 11):
        path = path_tokens(tree, node)
        expected = sum(
            float(plain_scores(drafter, target, prompt, prefix, path[:at])[path[at]])
            for at in range(len(path))
        )
        assert np.log(tree.scores[node]) == pytest.approx(expected, abs=2e-3)
    best = plain_scores(drafter, target, prompt, prefix, []).topk(3).indices
    assert set(best.tolist()) == set(tree.tokens[tree.parents == -1].tolist())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_drafts_what_each_drafts_alone(variant: str, tmp_path: Path) -> None:
    target = target_of("llava")
    drafter = drafter_of(variant, target, tmp_path)
    asks = []
    for images, rounds, text in ((0, 0, "Say"), (1, 3, "What is here?"), (2, 1, "And this?")):
        session, prefix = follow(target, drafter, prompt_of(target, images, text), rounds)
        asks.append(Ask(session, prefix, 12))
    copies = []
    for images, rounds, text in ((0, 0, "Say"), (1, 3, "What is here?"), (2, 1, "And this?")):
        session, prefix = follow(target, drafter, prompt_of(target, images, text), rounds)
        copies.append(Ask(session, prefix, 12))
    together = drafter.propose_many(asks)
    again = drafter.propose_many(asks)
    for ask, tree, same in zip(copies, together, again, strict=True):
        if "random" not in variant:
            alone = ask.session.propose(ask.prefix, 12)
            assert tree.tokens.tolist() == alone.tokens.tolist()
            assert tree.parents.tolist() == alone.parents.tolist()
            assert np.allclose(tree.scores, alone.scores, atol=1e-4)  # type: ignore[arg-type]
        assert tree.tokens.tolist() == same.tokens.tolist()
        assert not np.isin(tree.tokens, list(target.info.media_ids)).any()
    # The next round of a batch starts from contexts that the batch wrote back.
    for ask, copy in zip(asks, copies, strict=True):
        assert torch.allclose(
            ask.session.context.root, copy.session.context.root, atol=1e-4  # type: ignore[attr-defined]
        ) or "random" in variant  # fmt: skip


@pytest.mark.parametrize("name", ["fovea", "dream"])
def test_a_context_holds_one_pair_a_token(name: str, tmp_path: Path) -> None:
    """Also where the drafter was not asked for a while; a second question adds nothing."""
    target = target_of("llava")
    drafter = drafter_of(name, target, tmp_path)
    prompt = prompt_of(target, 1)
    state, prefill = target.prefill(prompt, drafter.needs)
    session = drafter.begin(request_of(target, prompt), prefill)
    prefix = np.append(prompt.ids, prefill.next_row_ids[0]).astype(np.int32)
    for _ in range(5):
        tree = packed(DraftTree.empty(), int(prefix[-1]))
        out = target.forward([state], [tree], drafter.needs)[0]
        target.keep(state, np.empty(0, np.int32))
        token = int(out.row_ids[0, 0])
        session.observe(Step(prefix, tree, out, Verdict(np.empty(0, np.int32), token, (token,))))
        prefix = np.append(prefix, token).astype(np.int32)
    for _ in range(2):
        session.propose(prefix, 12)
        cache = session.context.cache
        assert cache.length == len(prefix) - 1
        assert cache.keys.shape[-2] <= len(prefix) + 2 * GROWTH
        assert not session.context.waiting


def batch_of(
    target: HuggingFaceTarget, reads: Sequence[int], images: Sequence[int], count: int = 9
) -> TrainBatch:
    """Answers of the target as a batch, padded on the right."""
    texts, states, visuals = [], [], []
    wanted = (0, -1, 1, *(layer for layer in reads if layer > 0))
    for pictures in images:
        prompt = prompt_of(target, pictures, "What?" + "!" * pictures)
        answer = plain_answer(target, prompt, count)
        text = np.concatenate([prompt.ids, answer])
        states.append(states_of(target, prompt, text, wanted))
        _, prefill = target.prefill(prompt, Needs(visual_tokens=True))
        seen = prefill.extras["visual_tokens"]
        visuals.append(torch.zeros(0, 64) if seen is None else torch.as_tensor(seen))
        texts.append((text, len(prompt.ids)))
    pad = torch.nn.utils.rnn.pad_sequence
    whole = pad(states, batch_first=True)
    ids = pad([torch.from_numpy(text.astype(np.int64)) for text, _ in texts], batch_first=True)
    supervise = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (text, start) in enumerate(texts):
        supervise[row, start - 1 : len(text) - 1] = True
    logits = whole[:, :, 1] @ target.weights().lm_head.T
    top = logits.topk(20, dim=-1)
    real = pad([torch.ones(len(text), dtype=torch.bool) for text, _ in texts], batch_first=True)
    return TrainBatch(
        input_ids=ids,
        embeds=whole[:, :, 0],
        final=whole[:, :, 1],
        mid=whole[:, :, 2],
        layers={layer: whole[:, :, at] for at, layer in enumerate(wanted) if at > 2},
        top_ids=top.indices,
        top_logits=top.values,
        log_sum_exp=logits.logsumexp(-1),
        supervise=supervise,
        media=torch.from_numpy(np.isin(ids.numpy(), list(target.info.media_ids))) & real,
        visual=pad(visuals, batch_first=True),
        visual_mask=pad([torch.ones(len(v), dtype=torch.bool) for v in visuals], batch_first=True),
    )


@torch.no_grad()
@pytest.mark.parametrize("variant", COMPARED)
def test_A48_training_sees_what_drafting_sees(variant: str, tmp_path: Path) -> None:
    """The unrolled steps of a batch equal the chain of drafts of each sequence."""
    target = target_of("llava")
    drafter = drafter_of(variant, target, tmp_path)
    head = drafter.head
    batch = batch_of(target, head.reads, [1, 0])
    condition = head.look(batch.visual, batch.visual_mask)
    front = None
    if has_front(drafter):
        front = head.front(condition, head.static_weights(condition))
    for drafted in unroll(head, batch, condition, 3, prefix=front):
        scores = head.scores(drafted.last, drafted.step, condition, None).log_softmax(-1)
        for row, images in enumerate([1, 0]):
            prompt = prompt_of(target, images, "What?" + "!" * images)
            places = drafted.at[row][drafted.rows[row]].tolist()
            for at in (places[0], places[-1]):
                text = batch.input_ids[row, : at + 1].numpy().astype(np.int32)
                root = at - drafted.step
                if root < len(prompt.ids):
                    continue  # decoding never drafts there: the first token is the prefill's
                own = text[: root + 1]
                expected = plain_scores(drafter, target, prompt, own, text[root + 1 :].tolist())
                names = head.token_ids()
                own_scores = scores[row, places.index(at)]
                expected = expected if names is None else expected[names]
                text_ids = torch.isfinite(expected)
                found = own_scores[text_ids].log_softmax(-1)
                assert torch.allclose(found, expected[text_ids].log_softmax(-1), atol=2e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_A49_losses_are_finite_and_reach_the_weights(variant: str) -> None:
    name, fields = VARIANTS[variant]
    target = target_of("llava")
    head = random_head(name, target.weights(), **{**FIELDS.get(name, {}), **fields})
    batch = batch_of(target, head.reads, [1, 0, 2])
    state = TrainState(generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        rough = head.training_losses(batch, state)
    found = head.training_losses(batch, state)
    assert torch.isfinite(found["loss"])
    assert rough["loss"].item() == pytest.approx(found["loss"].item(), rel=0.1)
    assert found["loss"] > 0
    assert found["accuracy"].shape == found["hit"].shape
    found["loss"].backward()  # type: ignore[no-untyped-call]
    touched = [p.grad is not None and bool(p.grad.any()) for p in head.parameters()]
    assert sum(touched) > 0.5 * len(touched)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in head.parameters())


@pytest.mark.parametrize(
    ("name", "layers"),
    [("fovea", 1), ("fovea", 3), ("dream", 3), ("eagle3", 1), ("msd", 1), ("vispec", 1)],
)
def test_A49_rows_that_see_nothing_stay_finite(name: str, layers: int) -> None:
    """Behind a short sequence of a batch stands padding that nobody may see, layer upon layer."""
    target = target_of("llava")
    head = random_head(name, target.weights(), **FIELDS.get(name, {}), layers=layers).train()
    batch = batch_of(target, head.reads, [2, 0])
    batch = replace(batch, supervise=batch.supervise & torch.tensor([[True], [False]]))
    found = head.training_losses(batch, TrainState(progress=0.5))
    found["loss"].backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(found["loss"])
    for parameter in head.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize("name", TRAINED)
def test_A48_what_a_head_learned_it_drafts(name: str, tmp_path: Path) -> None:
    """Two answers learnt by heart: training says so, and decoding accepts the drafts."""
    target = target_of("llava")
    head = random_head(name, target.weights(), **FIELDS.get(name, {})).train()
    batch = batch_of(target, head.reads, [1, 0], count=24)
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3)
    for step in range(200):
        found = head.training_losses(batch, TrainState(progress=step / 200))
        optimiser.zero_grad()
        found["loss"].backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if found["accuracy"].min() > 0.95:
            break
    assert found["accuracy"][0] > 0.95
    write_head(tmp_path, head, target.weights().record(), dtype="float16")
    drafter = make_drafter(name, vocab_size=target.info.vocab_size, checkpoint=str(tmp_path))
    drafter.bind(target)  # type: ignore[attr-defined]
    prompts = [prompt_of(target, images, "What?" + "!" * images) for images in (1, 0)]
    batch_run = decode(target, drafter, prompts, 24)
    for prompt, running in zip(prompts, batch_run, strict=True):
        assert running.output_ids.tolist() == plain_answer(target, prompt, 24).tolist()
    tokens = sum(len(running.output_ids) for running in batch_run)
    assert tokens / sum(running.counters.forwards for running in batch_run) > 2.0


@pytest.mark.parametrize("name", TRAINED)
def test_a_drafter_of_another_target_is_refused(name: str, tmp_path: Path) -> None:
    target, other = target_of("llava"), tiny_target("llava", seed=1)
    drafter = drafter_of(name, target, tmp_path)
    with pytest.raises(UnsupportedTarget, match="a weight of its head is"):
        drafter.bind(other)
    with pytest.raises(UnsupportedTarget, match="was trained for 'tiny llava'"):
        drafter.attach(target_of("qwen2_5_vl").weights())
    half = tiny_target("llava", dtype=torch.bfloat16)
    drafter.attach(half.weights())


def test_options_and_checkpoints_are_checked(tmp_path: Path) -> None:
    target = target_of("llava")
    path = random_checkpoint("fovea", target.weights(), tmp_path / "a")
    with pytest.raises(ConfigError, match="shapes the weights"):
        make_drafter("fovea", vocab_size=9, checkpoint=path, layers=3)
    with pytest.raises(ConfigError, match="known are checkpoint"):
        make_drafter("fovea", vocab_size=9, checkpoint=path, nods=3)
    with pytest.raises(ConfigError, match="mass"):
        make_drafter("fovea", vocab_size=9, checkpoint=path, mass=2.0)
    with pytest.raises(InputError, match=r"no readable manifest\.json"):
        make_drafter("fovea", vocab_size=9, checkpoint=str(tmp_path / "b"))
    without = make_drafter("fovea", vocab_size=9, nodes=7)
    assert without.fixed_budget == without.config_dict()["nodes"] == 7
    with pytest.raises(ConfigError, match="no checkpoint"):
        Engine(target, "fovea")
    with pytest.raises(ConfigError, match=r"FoveaConfig\.query"):
        random_head("fovea", target.weights(), query="query_agnostic", depth_embedding=False)


def test_the_most_frequent_ids_become_eagle3s_vocabulary() -> None:
    target = target_of("llava")
    head = random_head("eagle3", target.weights(), draft_vocab_size=4)
    counts = torch.zeros(target.info.vocab_size)
    counts[[50, 9, 200]] = torch.tensor([3.0, 5.0, 1.0])
    head.prepare(counts)
    names = head.token_ids()
    assert names is not None
    assert names.tolist() == [0, 9, 50, 200]  # of ids never seen, the lowest
    rows: Any = head.head  # type: ignore[assignment]
    assert torch.equal(rows.weight, target.weights().lm_head[names])


def test_msd_sees_pictures_in_the_second_half_of_its_training() -> None:
    head = random_head("msd", target_of("llava").weights())
    shares = [head.visual_share(progress) for progress in (0.0, 0.5, 0.75, 1.0)]
    assert shares == [0.0, 0.0, 0.5, 1.0]


def test_a_picture_larger_than_the_memory_keeps_evenly_spaced_entries(tmp_path: Path) -> None:
    target = target_of("llava")
    head: Any = random_head("fovea", target.weights(), memory_limit=3)
    whole: Any = random_head("fovea", target.weights())
    visual, mask = torch.randn(1, 7, 64), torch.ones(1, 7, dtype=torch.bool)
    small, large = head.look(visual, mask), whole.look(visual, mask)
    assert torch.equal(small["keys"], large["keys"][:, [0, 2, 4]])


@pytest.mark.parametrize("query", ["state_only", "query_agnostic", "static_image", "random"])
def test_controls_change_what_a_node_asks(query: str) -> None:
    target = target_of("llava")
    own: Any = random_head("fovea", target.weights(), retrieval="top_k", top_k=2)
    control: Any = random_head("fovea", target.weights(), retrieval="top_k", top_k=2, query=query)
    memory = own.look(torch.randn(1, 9, 64), torch.ones(1, 9, dtype=torch.bool))
    states = torch.randn(1, 5, 64)
    lots = torch.Generator().manual_seed(1)
    asked = [head.attention(states, 1, memory, lots)[0] for head in (own, control)]
    assert not torch.allclose(*asked)
    assert all((rows > 0).sum(-1).tolist() == [2] * 5 for rows in asked)
    same_for_all = torch.allclose(asked[1], asked[1][:1].expand(5, -1))
    assert same_for_all == (query in ("query_agnostic", "static_image"))


@torch.no_grad()
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3"])
def test_A47_states_at_tree_nodes_equal_a_plain_forwards(family: str) -> None:
    """What a head reads at a node is what the model's own forward over the root path has there."""
    target = tiny_target(family)
    prompt = target.prepare("Say", tiny_images(1 if family in SEEING else 0))
    layers = (0, 1, -1)
    state, prefill = target.prefill(prompt, Needs(hidden_layers=layers))
    draft = DraftTree(
        np.array([40, 41, 42, 43], np.int32), np.array([-1, -1, 0, 2], np.int32), None
    )
    root = int(prefill.next_row_ids[0])
    tree = packed(draft, root)
    out = target.forward([state], [tree], Needs(hidden_layers=layers))[0]
    for node in range(len(tree)):
        text: list[int] = []
        at = node
        while at >= 0:
            text.append(int(tree.tokens[at]))
            at = int(tree.parents[at])
        step, _ = target.prefill(prompt, Needs())
        for token in text[::-1]:
            plain = target.forward(
                [step], [packed(DraftTree.empty(), token)], Needs(hidden_layers=layers)
            )[0]
            target.keep(step, np.empty(0, np.int32))
        assert np.allclose(out.extras["hidden"][node], plain.extras["hidden"][0], atol=1e-4)
    whole = target.model(
        input_ids=prompt.input_ids, position_ids=prompt.position_ids, output_hidden_states=True,
        **prompt.media,
    )  # fmt: skip
    for place, layer in enumerate(layers):
        own = whole.hidden_states[layer][0].numpy()
        assert np.allclose(prefill.extras["hidden"][:, place], own, atol=1e-4)
    head = target.weights().lm_head
    assert torch.allclose(whole.hidden_states[-1] @ head.T, whole.logits, atol=1e-4)

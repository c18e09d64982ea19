"""Does the picture matter where drafts fail, and which source of guesses does it favour? (RECAP
figure 1, section 3.1, appendix E.)

Every answer is drafted as usual; then its text is held fixed and read again under a mean and a
matched wrong picture. With P(z | J) the target's probability of token z under picture J:

* visual dependence of a round is the smaller, over both controls J, of log P(root | own) minus
  log P(root | J), where the root token is the target's own choice after the round's root; the round
  counts as changed when either control makes the target choose another token;
* visual support of a source s is the smaller, over both controls, of L_s(own) - L_s(J), with
  L_s(J) = log sum of P(z | J) over its candidates (equations 12 and 13). The sources are the
  one-token row (U) and the most specific longer one (G or C).

An anchor is valid when reading the answer under its own picture chooses the recorded token again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from eyespan._core import Memory, RowMap
from eyespan.diagnostics.controls import mean_pictures, read_answer, wrong_pictures
from eyespan.diagnostics.matched import CAP, first_nodes, matched_length
from eyespan.diagnostics.questions import Question
from eyespan.diagnostics.record import Collected
from eyespan.diagnostics.recorded import Recorded, recorded_of
from eyespan.diagnostics.sources import Maps
from eyespan.drafters._recap_config import RecapConfig
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget
from eyespan.types import DraftTree, Ints

LEAST, MOST = 2, 8
"""Candidates of each source, the same number of both (appendix E)."""
OVERLAP = 0.25
"""Most of them that both sources may share."""

Logs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One round with a draft whose anchor is valid.

    Attributes:
        benchmark, group: of its request.
        accepted: draft tokens.
        drop: visual dependence.
        changed_mean, changed_wrong: whether that control changes the target's choice.
    """

    benchmark: str
    group: str
    accepted: int
    drop: float
    changed_mean: bool
    changed_wrong: bool

    @property
    def changed(self) -> bool:
        """Whether either control changes it."""
        return self.changed_mean or self.changed_wrong


@dataclass(frozen=True, slots=True)
class Aligned:
    """One state at which both sources have a say of their own.

    Attributes:
        benchmark, group: of its request.
        token_support, context_support: the paper's E_U and E_GC.
        gain: matched length of a tree from contexts alone minus that of one from tokens alone, at
            equal node counts.
    """

    benchmark: str
    group: str
    token_support: float
    context_support: float
    gain: int

    @property
    def relative(self) -> float:
        """E_GC - E_U: what quintiles are made of."""
        return self.context_support - self.token_support

    @property
    def context_share(self) -> float:
        """exp(E_GC) / (exp(E_U) + exp(E_GC))."""
        return float(1.0 / (1.0 + np.exp(-self.relative)))


@dataclass(frozen=True, slots=True)
class Found:
    """What a run of the diagnostics saw.

    Attributes:
        anchors, aligned: in order.
        rounds: rounds with a draft, anchors that are not valid included.
        answers: requests.
    """

    anchors: tuple[Anchor, ...]
    aligned: tuple[Aligned, ...]
    rounds: int
    answers: int


def measure(
    target: HuggingFaceTarget,
    every: Sequence[Question],
    *,
    tell: Callable[[str], None],
    max_new_tokens: int,
) -> Found:
    """Draft, then read again under both controls. A request without any other picture is left out.

    Args:
        target: the model.
        every: the questions; each benchmark has a memory of its own.
        tell: told what is under way.
        max_new_tokens: longest answer.
    """
    engine = Engine(target, "recap", budget="fixed")
    anchors: list[Anchor] = []
    aligned: list[Aligned] = []
    rounds = answers = 0
    for name in dict.fromkeys(one.benchmark for one in every):
        engine.reset()
        maps = Maps(target.info.vocab_size, seeded=True)
        for at, query in enumerate(every):
            wrong = wrong_pictures(every, at)
            if query.benchmark != name or wrong is None:
                continue
            answers += 1
            tell(f"{name}: {query.name} ({answers} of {len(every)})")
            trace, limit = Collected(), max_new_tokens
            engine.generate(query.messages, query.pictures, max_new_tokens=limit, trace=trace)
            one = recorded_of(trace.lines)
            views = (query.pictures, mean_pictures(query), wrong)
            logs = [_logs(target, query, pictures, one) for pictures in views]
            maps.open(one)
            rounds += _look(one, query, maps, logs, anchors, aligned)
    return Found(tuple(anchors), tuple(aligned), rounds, answers)


def _logs(
    target: HuggingFaceTarget, query: Question, pictures: Sequence[Image.Image], one: Recorded
) -> dict[int, Logs]:
    """Answer index of every round's root -> [V] log probabilities after it, under pictures."""
    wanted = {each.root for each in one.rounds}
    found = {}
    for start, out in read_answer(target, query, pictures, one.output):
        for at in range(start, start + len(out.row_ids)):
            if at in wanted:
                found[at] = log_softmax(out.logits[at - start].double().cpu().numpy())
    return found


def log_softmax(logits: npt.NDArray[np.float64]) -> Logs:
    """[V] log probabilities."""
    shifted = logits - logits.max()
    result: Logs = shifted - np.log(np.exp(shifted).sum())
    return result


def _look(
    one: Recorded,
    query: Question,
    maps: Maps,
    logs: Sequence[dict[int, Logs]],
    anchors: list[Anchor],
    aligned: list[Aligned],
) -> int:
    """Judge every round of an answer, then let the maps learn it; returns rounds with a draft."""
    drafted, kind, group = 0, query.benchmark, query.group
    for each in one.rounds:
        token = int(one.output[each.root + 1]) if each.root < one.states else None
        views = [by_root[each.root] for by_root in logs]
        if token is not None and len(each.tokens) > 1 and not each.cut:
            drafted += 1
            own, *controls = views
            if int(own.argmax()) == token:
                drops = [float(own[token] - view[token]) for view in controls]
                changed = [int(view.argmax()) != token for view in controls]
                anchors.append(
                    Anchor(kind, group, len(each.path), min(drops), changed[0], changed[1])
                )
                found = _alignment(one, each.root, maps, views)
                if found is not None:
                    aligned.append(Aligned(kind, group, *found))
        prefix = one.prefix(each.root)
        if each.row_ids is not None and each.row_logits is not None:
            maps.memory.refresh(
                prefix[-3:-1], each.tokens, each.parents, each.row_ids, each.row_logits, maps.media
            )
    return drafted


def _alignment(
    one: Recorded, root: int, maps: Maps, views: Sequence[Logs]
) -> tuple[float, float, int] | None:
    """E_U, E_GC and the contextual gain at a round's root, or None where it is not eligible."""
    prefix = one.prefix(root)
    rows = maps.rows(prefix)
    if len(rows) < 2 or rows[-1].order != 1:
        return None
    context, tokens = (
        [i for i in rows[at].ids if i not in maps.media_ids and i >= 0] for at in (0, -1)
    )
    budget = min(len(context), len(tokens), MOST)
    context, tokens = context[:budget], tokens[:budget]
    if budget < LEAST or len(set(context) & set(tokens)) > OVERLAP * budget:
        return None
    gain = _gain(prefix, one.output[root + 1 :].tolist(), maps)
    return support(views, tokens), support(views, context), gain


def support(views: Sequence[Logs], candidates: Sequence[int]) -> float:
    """Visual support of candidates (equations 12 and 13).

    Args:
        views: [V] log probabilities under the own, the mean and the wrong picture.
        candidates: ids.
    """
    own, *controls = (float(np.logaddexp.reduce(view[list(candidates)])) for view in views)
    return min(own - control for control in controls)


def _gain(prefix: Ints, ahead: Sequence[int], maps: Maps) -> int:
    """Matched length of contexts alone minus that of tokens alone, at equal node counts."""
    nothing = RowMap(order=1, max_rows=1)
    sources = [Memory(nothing, maps.c, maps.g), Memory(maps.u)]
    rules = RecapConfig(fusion="fixed_prior").rules()

    def draft(memory: Memory, nodes: int) -> DraftTree:
        found = memory.propose(prefix[-3:], rules, nodes, maps.media, maps.eos)
        return DraftTree(found[0], found[1])

    equal = min(len(draft(memory, CAP)) for memory in sources)
    if not equal:
        return 0
    lengths = [matched_length(first_nodes(draft(one, equal), equal), ahead) for one in sources]
    return lengths[0] - lengths[1]

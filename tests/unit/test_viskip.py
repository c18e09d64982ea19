"""ViSkip: where the gate stands, what it spares, and whose options it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eyespan.drafters import make_drafter
from eyespan.drafters.base import Ask, Gate
from eyespan.drafters.viskip import ViSkip
from eyespan.engine import Decoder
from eyespan.errors import ConfigError
from eyespan.policy import Policy
from eyespan.sequence import Running
from eyespan.types import Needs, TargetOut
from eyespan.verbs.options import drafter_options
from tests.drafting import ints, prefill_of, request_of, show
from tests.toys import ToyTarget


def looking(share: float) -> TargetOut:
    nothing = np.empty((0, 8), np.float32)
    return TargetOut(
        row_ids=nothing.astype(np.int32),
        row_logits=nothing,
        logits=None,
        extras={"visual_attention": share},
    )


def test_after_judges_a_pass_and_before_a_draft() -> None:
    after = ViSkip(vocab_size=16)
    assert isinstance(after, Gate)
    assert [after.passes(looking(share)) for share in (0.0, 0.34, 0.35, 1.0)] == [1, 1, 0, 0]
    before = ViSkip(vocab_size=16, gate="before")
    assert before.passes(looking(1.0))


@pytest.mark.parametrize(("gate", "drafts"), [("after", [3, 3, 3]), ("before", [0, 3, 0])])
def test_before_spares_the_draft_that_follows_a_look(gate: str, drafts: list[int]) -> None:
    drafter = ViSkip(
        vocab_size=16, wrapped="prompt_lookup", gate=gate, variant="transformers", draft=3
    )
    text = [1, 2, 3, 4, 5, 1, 2]
    session = drafter.begin(request_of(text), prefill_of({"visual_attention": 0.9}))
    sizes = []
    for share in (0.1, 0.5, 0.0):
        text = [*text, 3]
        (draft,) = drafter.propose_many([Ask(session, ints(text), 127)])
        assert draft.tokens.tolist() == session.propose(ints(text), 127).tokens.tolist()
        sizes.append(len(draft))
        show(session, text, [1, 2], extras={"visual_attention": share})
        text = [*text, 1, 2]
    assert sizes == drafts


def answer(gate: str, threshold: float) -> tuple[list[int], Any]:
    target = ToyTarget(eos_ids=frozenset())
    drafter = ViSkip(
        vocab_size=16, wrapped="recap", gate=gate, threshold=threshold, max_rows=1 << 10
    )
    decoder = Decoder(target, drafter, Policy("fixed", drafter))
    running = Running(request_of([2, 3, 4]), on_token=lambda token, source: None)
    decoder.start(running, running.request.prompt_ids)  # type: ignore[arg-type]
    while len(running.output_ids) < 120:
        decoder.step([running])
    text = running.output_ids[:120].tolist()
    assert text == target.plain([2, 3, 4], 120)
    return text, running.counters


def test_the_text_stays_and_only_the_count_of_forwards_moves() -> None:
    _, ungated = answer("after", 1.0)
    _, after = answer("after", 0.35)
    _, before = answer("before", 0.35)
    _, shut = answer("after", 0.0)
    assert ungated.accepted > after.accepted > 0
    assert shut.accepted == 0
    assert shut.drafted > 0  # the price of judging afterwards
    assert before.plain_steps["empty"] > 0
    assert before.drafted < after.drafted


def test_needs_and_sizes_are_the_wrapped_drafters() -> None:
    drafter = ViSkip(vocab_size=16, wrapped="token_recycling")
    assert drafter.needs == Needs(rows=True, visual_attention=True)
    assert drafter.fixed_budget == 80
    scoped = drafter.begin(request_of([1], scope="a"), prefill_of({"visual_attention": 0.0}))
    show(scoped, [1, 2], [3], extras={"visual_attention": 0.0})
    assert drafter.is_warm("a")
    assert not drafter.is_warm("b")
    drafter.reset()
    assert not drafter.is_warm("a")


def test_options_reach_the_wrapped_drafter() -> None:
    pairs = ["wrapped=recap", "nodes=20", "gate=before", "threshold=0.5"]
    options = drafter_options("viskip", pairs)
    assert options == {"wrapped": "recap", "nodes": 20, "gate": "before", "threshold": 0.5}
    drafter = make_drafter("viskip", vocab_size=16, **options)
    assert drafter.config_dict().items() >= options.items()
    assert drafter.fixed_budget == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gate": "between"}, "one of after, before"),
        ({"threshold": 1.5}, "from 0 to 1"),
        ({"threshold": True}, "from 0 to 1"),
        ({"wrapped": "viskip"}, "another drafter than itself"),
        ({"wrapped": "recapp"}, "Did you mean 'recap'"),
        ({"treshold": 0.5}, "Did you mean 'threshold'"),
        ({"wrapped": "recap", "noeds": 4}, "Did you mean 'nodes'"),
        ({"max_draft": 0}, "from 2 to 127"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_drafter("viskip", vocab_size=16, **options)

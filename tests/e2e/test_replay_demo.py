"""What the paper says about reuse holds on the demo model's own recorded answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyespan.bench.held_out import MAX_NEW_TOKENS
from eyespan.diagnostics import sources
from eyespan.diagnostics.questions import questions
from eyespan.diagnostics.record import record
from eyespan.diagnostics.recorded import read_recordings, vocabulary
from eyespan.diagnostics.replay import replay
from eyespan.drafters import make_drafter
from eyespan.target.loading import load_target


@pytest.mark.slow
def test_finer_keys_recall_more_and_cover_less_and_own_pictures_help(tmp_path: Path) -> None:
    every = questions(["demo"], 36)
    target, silent = load_target("demo"), lambda _: None
    files = record(target, every, tmp_path, tell=silent, max_new_tokens=MAX_NEW_TOKENS)
    recordings = read_recordings(files)
    size = vocabulary(recordings)
    states = dict.fromkeys(sources.ORDERS, 0)
    hits = dict.fromkeys(sources.ORDERS, 0.0)
    own = other = 0.0
    for recording in recordings:
        found = sources.coverage(recording, size, seeded=False)
        for name in sources.ORDERS:
            states[name] += found.recall[name].states
            hits[name] += found.recall[name].hits
        swapped = sources.swapped(recording, size)
        assert swapped is not None
        own, other = own + swapped.own.hits, other + swapped.other.hits
        drafted = replay(recording, make_drafter("recap", vocab_size=size), vocab_size=size)
        assert drafted.known == drafted.drafted + drafted.rounds, "the run's own settings"
    assert states["U"] > states["C"] > states["G"] > 100
    recall = [hits[name] / states[name] for name in sources.ORDERS]
    assert recall[0] < recall[1] < recall[2]
    assert own > other

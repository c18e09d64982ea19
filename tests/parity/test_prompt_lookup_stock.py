"""The transformers variant proposes what transformers' own prompt lookup proposes."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from eyespan.drafters.prompt_lookup import PromptLookup
from tests.drafting import open_session


def test_same_candidates_on_random_texts() -> None:
    stock = PromptLookupCandidateGenerator(max_length=10**9)
    drafter = PromptLookup(vocab_size=64, variant="transformers")
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        text = rng.integers(0, rng.integers(2, 40), rng.integers(3, 80)).astype(np.int32)
        ids, _ = stock.get_candidates(torch.from_numpy(text.astype(np.int64))[None])
        draft = open_session(drafter, text[:-1].tolist()).propose(text, 127)
        assert draft.tokens.tolist() == ids[0, len(text) :].tolist()
        found += len(draft)
    assert found > 1000

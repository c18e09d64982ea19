"""arctic-inference's suffix tree by replay: what it would have guessed of the answers that stock
`generate()` wrote. Its engine is vLLM's, so there are passes to count here and no seconds.

    python -m benchmarks.peers.replay_arctic PROMPTS EYESPAN_RESULTS OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arctic_inference.suffix_decoding import SuffixDecodingCache

from benchmarks.peers.timed import requests

DEPTH = 24
"""Deepest match and longest draft, as vLLM sets them."""


def replay(cache: Any, name: str, prompt: Sequence[int], answer: Sequence[int], tree: bool) -> int:
    """Passes of the model for one answer, the prompt's included; the cache learns it."""
    cache.start_request(name, list(prompt))
    text, left, forwards = list(prompt), list(answer), 0
    written = 1  # the prompt's own pass writes one token
    while left:
        forwards += 1
        text += left[:written]
        cache.add_active_response(name, left[:written])
        left = left[written:]
        draft = cache.speculate(name, text, max_spec_tokens=DEPTH, use_tree_spec=tree)
        written = 1 + accepted(draft.token_ids, draft.parents, left)
    cache.stop_request(name)
    return forwards


def accepted(tokens: Sequence[int], parents: Sequence[int], answer: Sequence[int]) -> int:
    """How many tokens of the answer's beginning stand on one path from the root."""
    children = {
        (parent, token): at for at, (parent, token) in enumerate(zip(parents, tokens, strict=True))
    }
    node, depth = -1, 0
    for token in answer:
        following = children.get((node, token))
        if following is None:
            break
        node, depth = following, depth + 1
    return depth


def main(prompts: str, results: str, out: str) -> None:
    """A line for each prompt that has an answer, chains and trees with a cache each."""
    ids = {line["id"]: line["ids"] for line in requests(Path(prompts))}
    caches = {
        False: SuffixDecodingCache(max_tree_depth=DEPTH),
        True: SuffixDecodingCache(max_tree_depth=DEPTH),
    }
    lines = []
    for line in requests(Path(results)):
        stock = line["turns"]["stock"]
        turns = {"stock": stock}
        for tree, cache in caches.items():
            passes = replay(cache, line["id"], ids[line["id"]], stock["ids"], tree)
            name = f"arctic suffix {'tree' if tree else 'chain'} (replay)"
            turns[name] = {"ids": stock["ids"], "forwards": passes, "seconds": None}
        lines.append({"id": line["id"], "category": line["category"], "turns": turns})
    Path(out).write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

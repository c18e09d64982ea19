"""The part of the comparison that runs in every library's own environment."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch


class Answer(NamedTuple):
    """What a method wrote after a prompt.

    Attributes:
        ids: the new tokens, the end included.
        forwards: passes of the model, the prompt's included; None where a library does not tell.
    """

    ids: list[int]
    forwards: int | None = None


Request = Mapping[str, Any]
"""A prompt: "id", "category" and "ids", the tokens."""
Method = Callable[[Request, int], Answer]
"""(request, most new tokens) -> answer."""


def requests(file: Path) -> Iterator[Request]:
    """Lines of a file that `benchmarks.peers.prompts` wrote."""
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def stock(model: Any, **options: Any) -> Method:
    """Greedy `model.generate()` of transformers, with further options such as prompt look-up."""

    def write(request: Request, limit: int) -> Answer:
        prompt = torch.tensor([request["ids"]])
        with torch.no_grad():
            out = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=limit,
                do_sample=False,
                **options,
            )
        return Answer(out[0, prompt.shape[1] :].tolist())

    return write


def run(methods: Mapping[str, Method], prompts: Path, out: Path, *, limit: int, seed: int) -> None:
    """Let the methods take turns on every prompt and write a line for each; goes on where an
    earlier run stopped. The first method is what the others are compared with.

    Args:
        methods: by name.
        prompts: a request each line.
        out: JSON lines.
        limit: new tokens at most.
        seed: of the order of turns.
    """
    done = {line["id"] for line in requests(out)} if out.exists() else set()
    lines = list(requests(prompts))
    for method in methods.values():  # along the very path that is timed
        method(lines[0], min(limit, 16))
    with out.open("a", encoding="utf-8") as file:
        for line in lines:
            if line["id"] in done:
                continue
            order = list(methods)
            random.Random(f"{seed}/{line['id']}").shuffle(order)
            turns = {name: _turn(methods[name], line, limit) for name in order}
            record = {"id": line["id"], "category": line["category"], "turns": turns}
            file.write(json.dumps(record) + "\n")
            file.flush()


def _turn(method: Method, request: Request, limit: int) -> dict[str, Any]:
    before = perf_counter()
    answer = method(request, limit)
    seconds = perf_counter() - before
    return {"ids": answer.ids, "forwards": answer.forwards, "seconds": seconds}

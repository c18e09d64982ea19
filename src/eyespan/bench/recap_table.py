"""RECAP's parts, one by one: tau on the demo's held-out set, and what share of template and of
picture-only tokens was drafted.

    python -m eyespan.bench.recap_table --count 48 --out recap_table.json

Answers do not depend on the row; forwards do. Trees have the published size ("fixed").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eyespan.bench.held_out import MAX_NEW_TOKENS, Ask, asks
from eyespan.bench.manifest import manifest, progress, write_json
from eyespan.demo.picture_tokens import picture_spans
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.target import HuggingFaceTarget, load_target
from eyespan.trace import Trace

_FUSIONS = ("fixed_prior", "no_prior", "uniform", "gate", "backoff")
_NO_SUFFIX = {"suffix_tokens": 0}

ROWS: Mapping[str, Mapping[str, Any]] = {
    "RECAP, 63 + 4": {},
    "U, fixed search, no suffix": {"orders": "U", "search": "fixed", **_NO_SUFFIX},
    "U, fixed search of 80, no suffix": {
        "orders": "U",
        "search": "fixed",
        "nodes": 80,
        **_NO_SUFFIX,
    },
    "U, no suffix": {"orders": "U", **_NO_SUFFIX},
    "U+C, no suffix": {"orders": "U+C", **_NO_SUFFIX},
    "U+C+G, no suffix": _NO_SUFFIX,
    "U": {"orders": "U"},
    "U+C": {"orders": "U+C"},
    "U per request": {"persist": "request"},
    "U per request, no suffix": {"persist": "request", **_NO_SUFFIX},
    **{f"fusion {name}": {"fusion": name} for name in _FUSIONS},
    **{f"fusion {name}, no suffix": {"fusion": name, **_NO_SUFFIX} for name in _FUSIONS},
    "suffix at the earliest occurrence": {"suffix_occurrence": "earliest"},
}
"""Name of a row, and the fields of RECAP's config that it changes."""


@dataclass(slots=True)
class Tally:
    """What one row cost, and how its tokens came.

    Attributes:
        tokens, forwards: of all answers.
        drafted: {picture-only?: tokens that were drafted and accepted}.
        all: {picture-only?: tokens with text}.
    """

    tokens: int
    forwards: int
    drafted: dict[bool, int]
    all: dict[bool, int]

    @property
    def tau(self) -> float:
        """Tokens per forward over all answers."""
        return self.tokens / self.forwards

    def share(self, picture: bool) -> float:
        """Accepted share of one class of tokens."""
        return self.drafted[picture] / max(self.all[picture], 1)

    def add(self, ask: Ask, tokens: Sequence[str], drafted: Sequence[bool]) -> None:
        """Class the tokens of an answer: picture-only is one that shows a character of a span.

        Args:
            ask: whose answer it is.
            tokens: the text of each; the end has none and is left out.
            drafted: whether it was a draft's.
        """
        text = "".join(tokens)
        told = bytearray(len(text))
        for start, end in picture_spans(text, ask.subject, ask.turn):
            told[start:end] = b"\1" * (end - start)
        at = 0
        for token, guessed in zip(tokens, drafted, strict=True):
            if token:
                picture = any(told[at : at + len(token)])
                at += len(token)
                self.all[picture] += 1
                self.drafted[picture] += guessed


class Lines(Trace):
    """A trace that stays in memory: the lines of the last request."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Keep these lines only."""
        self.lines = list(lines)

    def committed(self) -> Iterator[tuple[int, bool]]:
        """The answer's tokens, and whether each was a draft's."""
        for line in self.lines:
            if line["type"] == "step":
                yield from ((line["tokens"][node], True) for node in line["accepted"])
            if line["type"] in ("prefill", "step") and line["next"] is not None:
                yield line["next"], False


def texts(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; a character of several tokens belongs to its last one."""
    added, shown = [], ""
    for count in range(1, len(ids) + 1):
        text = decode(list(ids[:count]))
        whole = not text.endswith("\ufffd")
        added.append(text[len(shown) :] if whole else "")
        shown = text if whole else shown
    return added


def measure(
    target: HuggingFaceTarget, options: Mapping[str, Any], requests: Iterable[Ask]
) -> Tally:
    """Run one row over the requests, its memory empty at the start."""
    drafter = make_drafter("recap", vocab_size=target.info.vocab_size, **options)
    engine, trace = Engine(target, drafter, budget="fixed"), Lines()
    tally = Tally(0, 0, {False: 0, True: 0}, {False: 0, True: 0})
    for ask in requests:
        made = engine.generate(
            ask.messages, [ask.image], max_new_tokens=MAX_NEW_TOKENS, trace=trace
        )
        tally.tokens += len(made.token_ids)
        tally.forwards += made.forwards
        tokens, drafted = zip(*trace.committed(), strict=True)
        tally.add(ask, texts(target.decode, tokens), drafted)
    return tally


def main(
    count: Annotated[int, typer.Option(min=1, help="Pictures of the held-out set.")] = 48,
    out: Annotated[Path | None, typer.Option(help="Where the rows go as JSON.")] = None,
    model: Annotated[str, typer.Option(help="'demo', a folder or a Hugging Face id.")] = "demo",
) -> None:
    """Print RECAP's ablations as a Markdown table."""
    target, requests = load_target(model), list(asks(count))
    tallies = {}
    for number, (name, options) in enumerate(ROWS.items(), 1):
        tallies[name] = measure(target, options, requests)
        progress(f"{number}/{len(ROWS)} {name}: tau {tallies[name].tau:.3f}")
    print(table(tallies, len(requests)))
    if out:
        rows = {
            name: {
                "options": dict(ROWS[name]),
                "tau": tally.tau,
                "tokens": tally.tokens,
                "forwards": tally.forwards,
                "template_share": tally.share(False),
                "picture_share": tally.share(True),
            }
            for name, tally in tallies.items()
        }
        write_json(out, {"manifest": manifest(), "count": count, "rows": rows})


def table(tallies: Mapping[str, Tally], requests: int) -> str:
    """The rows as Markdown."""
    first = next(iter(tallies.values()))
    lines = [
        f"{requests} requests, {first.tokens} tokens, of those with text "
        f"{first.all[False]} template and {first.all[True]} picture-only.",
        "",
        "| RECAP with | tau | template tokens drafted | picture-only tokens drafted |",
        "|---|---:|---:|---:|",
    ]
    for name, tally in tallies.items():
        shares = f"{tally.share(False):.1%} | {tally.share(True):.1%}"
        lines.append(f"| {name} | {tally.tau:.3f} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)

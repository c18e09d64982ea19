"""`eyespan inspect`: a trace file as a readable tree. Needs no model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from eyespan.errors import InputError
from eyespan.trace import read_trace
from eyespan.verbs import console
from eyespan.verbs.words import Words, words_of

EPILOG = """
Examples:

eyespan generate --trace run.jsonl --image chart.png "Describe the chart."

eyespan inspect run.jsonl

eyespan inspect run.jsonl --step 4
"""

REJECTED = 2
"""Rejected guesses shown below a node unless all are asked for."""


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by --trace.")],
    step: Annotated[
        int | None,
        typer.Option("--step", "-s", metavar="K", min=0, help="Only this step, with every guess."),
    ] = None,
    request: Annotated[
        str | None, typer.Option("--request", "-r", metavar="ID", help="Only this request.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every guess of every step, not the best ones.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Whose tokenizer writes ids as text; default: the trace's own.",
        ),
    ] = None,
) -> None:
    """Show a trace step by step: what was guessed, what was accepted, where it came from.

    Accepted guesses are bold. After a guess stand its score and, where it is not the drafter
    itself, its origin. Tokens are text when the trace's model is the demo or a folder on this
    machine (or --model names one), and ids otherwise.
    """
    requests = read_trace(file)
    ids = [str(lines[0].get("id")) for lines in requests]
    chosen = [lines for lines, name in zip(requests, ids, strict=True) if request in (None, name)]
    if not chosen:
        raise InputError(
            f"request '{request}' of {file}" if request else f"trace file {file}",
            found="not there" if request else "it holds no request",
            needed=f"it holds {', '.join(ids) or 'nothing'}",
            todo="Pick one of these." if ids else "Write one with `eyespan generate --trace FILE`.",
        )
    out = console.answers()
    for lines in chosen:
        words = words_of(model, str(lines[0].get("model")))
        out.print(request_tree(file, lines, words, step=step, everything=everything))


def request_tree(
    file: Path, lines: list[dict[str, Any]], words: Words, *, step: int | None, everything: bool
) -> Tree:
    """One request of a trace.

    Raises:
        InputError: no such step, or a line that lacks a field.
    """
    try:
        steps = [line for line in lines if line["type"] == "step"]
        shown = steps if step is None else [line for line in steps if line["i"] == step]
        if step is not None and not shown:
            raise InputError(
                f"step {step} of {file}",
                found="no such step",
                needed=f"request {lines[0]['id']} has {len(steps)}, counted from 0",
                todo="Pick one of these.",
            )
        tree = Tree(_headline(lines[0]))
        for line in lines:
            if line["type"] == "prefill" and step is None:
                seeds = f"{len(line['rows'])} rows seeded memory"
                tree.add(Text(f"prefill: {seeds}, first token {words(line['next'])}"))
            elif line["type"] == "step" and line in shown:
                full = everything or step is not None
                _add_step(tree, line, words, str(lines[0]["drafter"]), full)
            elif line["type"] == "end":
                tree.add(_summary(line, steps))
        if lines[-1]["type"] != "end":
            tree.add(Text("no end: the run was interrupted", "red"))
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"trace file {file}",
            found=f"a line of another shape ({error})",
            needed="lines as `--trace` writes them",
            todo="Write it again with `eyespan generate --trace FILE`.",
        ) from error
    return tree


def _headline(request: dict[str, Any]) -> Text:
    media = set(request["media_ids"])
    pictures = sum(token in media for token in request["prompt_ids"])
    text = Text(f"request {request['id']}", "bold")
    return text.append(
        f": {request['model']}, drafter {request['drafter']}, budget "
        f"{request.get('budget', '?')}, {request['memory']} memory, prompt of "
        f"{len(request['prompt_ids'])} tokens ({pictures} media), at most "
        f"{request['max_new_tokens']} new",
        "none",
    )


def _add_step(tree: Tree, line: dict[str, Any], words: Words, drafter: str, full: bool) -> None:
    """A step's line and its tree of guesses."""
    drafted, accepted = len(line["tokens"]) - 1, len(line["accepted"])
    label = Text(f"step {line['i']}", "bold").append(f" after {words(line['tokens'][0])}:", "dim")
    for node in line["accepted"]:
        label.append(" ").append(words(line["tokens"][node]), _style(line["origin"][node]))
    if line["next"] is not None:
        label.append(f" {words(line['next'])}", "none")
    label.append(f"  ({accepted} of {drafted} accepted)" if drafted else "  (no guess)", "none")
    if line.get("cut"):
        label.append(f", ends: {line['cut']}", "yellow")
    label.append(f", {sum(line['ms'].values()):.1f} ms", "dim")
    branch = tree.add(label)
    _add_guesses(branch, line, 0, words, drafter, full)


def _add_guesses(
    branch: Tree, line: dict[str, Any], parent: int, words: Words, drafter: str, full: bool
) -> None:
    """The children of a node, accepted one first, then by score."""
    children = [node for node, above in enumerate(line["parents"]) if above == parent and node > 0]
    accepted = set(line["accepted"])
    children.sort(key=lambda node: (node not in accepted, -line["scores"][node], node))
    limit = len(children) if full else REJECTED + bool(accepted.intersection(children))
    for node in children[:limit]:
        style = _style(line["origin"][node]) if node in accepted else "dim"
        label = Text(words(line["tokens"][node]), style).append(
            f"  {line['scores'][node]:.3f}", "dim"
        )
        if line["origin"][node] != drafter:
            label.append(f" {line['origin'][node]}", "dim")
        if node in accepted:
            label.append("  accepted", "none")
        below = branch.add(label)
        if full or node in accepted:
            _add_guesses(below, line, node, words, drafter, full)
    if len(children) > limit:
        branch.add(Text(f"{len(children) - limit} more", "dim"))


def _style(origin: str) -> str:
    return console.style_of(origin)


def _summary(end: dict[str, Any], steps: list[dict[str, Any]]) -> Text:
    """What the request cost and where its tokens came from."""
    sources = Counter(line["origin"][node] for line in steps for node in line["accepted"])
    origins = ", ".join(f"{count} from {name}" for name, count in sources.most_common())
    seconds = end["seconds"]
    return Text("end ", "bold").append(
        f"({end['finish']}): {len(end['output_ids'])} tokens in {end['forwards']} forwards, tau "
        f"{end['tau']:.2f}; {end['drafted']} drafted, {end['accepted']} accepted"
        f"{f' ({origins})' if origins else ''}; "
        + ", ".join(f"{stage} {seconds[stage]:.3f} s" for stage in seconds),
        "none",
    )

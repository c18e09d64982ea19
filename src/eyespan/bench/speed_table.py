"""Speed on the demo's held-out set, by kind of picture: our loop plain, with "auto" and "fixed"
trees, and stock `generate()`, all taking turns on every request.

    python -m eyespan.bench.speed_table --count 48 --out speed_table.json

Memories live for the whole stream, as they do in use, and are emptied after the warm-up, which runs
on other pictures. A request is answered once by every side, so none sees it twice. "noise" is a
second plain side over the first; requests where a side wrote something else have no speed there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from eyespan.bench.clock import Race, Side, engine_side, race
from eyespan.bench.held_out import MAX_NEW_TOKENS, Ask, asks
from eyespan.bench.manifest import manifest, progress, write_json
from eyespan.bench.stock import stock_side
from eyespan.generation import Engine
from eyespan.target import load_target

WARM_UP_SEED = 1
WARM_UP_SAMPLES = 6


class Field:
    """The engines that run against each other on one target.

    Args:
        target: the model.
        drafter: a name.
    """

    def __init__(self, target: Any, drafter: str) -> None:
        self._target = target
        self._engines = {
            "plain": Engine(target, "none", budget=0),
            "auto": Engine(target, drafter, budget="auto"),
            "fixed": Engine(target, drafter, budget="fixed"),
            "noise": Engine(target, "none", budget=0),
        }

    def run(self, ask: Ask) -> Race:
        """One turn of every side on one request."""
        sides: dict[str, Side] = {
            name: engine_side(
                engine, ask.messages, [ask.image], max_new_tokens=MAX_NEW_TOKENS, fresh=False
            )
            for name, engine in self._engines.items()
        }
        stock = stock_side(self._target, ask.messages, [ask.image], max_new_tokens=MAX_NEW_TOKENS)
        return race({**sides, **({"stock": stock} if stock else {})}, rounds=1, warm_up=False)

    def reset(self) -> None:
        """Empty all memories."""
        for engine in self._engines.values():
            engine.reset()


def summarise(races: Sequence[Race]) -> dict[str, Any]:
    """One row: medians over requests."""
    row: dict[str, Any] = {"requests": len(races)}
    for name in ("auto", "fixed"):
        made = [found.answers[name].generation for found in races]
        tokens = sum(len(one.token_ids) for one in made if one)
        row[f"tau_{name}"] = tokens / sum(one.forwards for one in made if one)
    speeds = {
        "S_auto": ("auto", "plain"),
        "S_auto_stock": ("auto", "stock"),
        "S_fixed": ("fixed", "plain"),
        "S_fixed_stock": ("fixed", "stock"),
        "noise": ("noise", "plain"),
    }
    for field, (side, over) in speeds.items():
        ratios = [ratio for found in races for ratio in found.ratios(side, over)]
        row[field] = median(ratios) if ratios else None
        if field in ("S_auto", "noise") and ratios:
            row[f"{field}_p10"] = float(np.quantile(ratios, 0.1))
    row["different"] = sorted({name for found in races for name in found.different})
    return row


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    columns = {
        "tau_auto": "tau auto",
        "S_auto": "S auto",
        "S_auto_p10": "P10",
        "S_auto_stock": "S auto / stock",
        "tau_fixed": "tau fixed",
        "S_fixed": "S fixed",
        "S_fixed_stock": "S fixed / stock",
        "noise": "plain / plain",
        "noise_p10": "P10",
    }
    lines = [
        f"| kind | requests | {' | '.join(columns.values())} | outputs |",
        f"|---|---:|{'---:|' * len(columns)}---|",
    ]
    for kind, row in rows.items():
        cells = ["-" if row.get(name) is None else f"{row[name]:.2f}" for name in columns]
        outputs = ", ".join(row["different"]) + " DIFFERENT" if row["different"] else "equal"
        lines.append(f"| {kind} | {row['requests']} | {' | '.join(cells)} | {outputs} |")
    return "\n".join(lines)


def main(
    count: Annotated[int, typer.Option(min=1, help="Pictures of the held-out set.")] = 48,
    out: Annotated[Path | None, typer.Option(help="Where the rows go as JSON.")] = None,
    model: Annotated[str, typer.Option(help="'demo', a folder or a Hugging Face id.")] = "demo",
    drafter: Annotated[str, typer.Option(help="Which drafter races.")] = "recap",
) -> None:
    """Print speeds by kind of picture as a Markdown table."""
    field = Field(load_target(model), drafter)
    progress("warming up")
    for ask in asks(WARM_UP_SAMPLES, seed=WARM_UP_SEED):
        field.run(ask)
    field.reset()
    races: dict[str, list[Race]] = defaultdict(list)
    requests = list(asks(count))
    for number, ask in enumerate(requests, 1):
        found = field.run(ask)
        races[ask.kind].append(found)
        speed = found.speed("auto")
        progress(f"{number}/{len(requests)} {ask.name}: S {f'{speed:.2f}' if speed else '-'}")
    rows = {kind: summarise(found) for kind, found in races.items()}
    rows["all"] = summarise([one for found in races.values() for one in found])
    print(table(rows))
    if out:
        write_json(out, {"manifest": manifest(), "count": count, "rows": rows})


if __name__ == "__main__":
    typer.run(main)

"""One table of all libraries: python -m benchmarks.peers.table RESULT.jsonl ... [--out FILE]

S is the mean over prompts of stock `generate()`'s seconds over the method's, both from the same
process; a prompt where a method wrote other tokens than stock has no S there and is counted. tau is
tokens a pass of the model, the prompt's pass included; replays have a tau alone.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.peers.timed import requests
from eyespan.bench.manifest import manifest, write_json

COLUMNS = (
    "method",
    "prompts",
    "tau",
    "S over stock",
    "S where best",
    "S where worst",
    "other text",
)


def rows(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for every method of one process, stock's first."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[str, list[int]] = defaultdict(list)
    forwards: dict[str, list[int]] = defaultdict(list)
    different: dict[str, int] = defaultdict(int)
    counted: dict[str, int] = defaultdict(int)
    for line in lines:
        base = line["turns"]["stock"]
        for name, turn in line["turns"].items():
            if turn["ids"] != base["ids"]:
                different[name] += 1
                continue
            counted[name] += 1
            if turn["seconds"] is not None:
                ratios[name][line["category"]].append(base["seconds"] / turn["seconds"])
            if turn["forwards"] is not None:
                tokens[name].append(len(turn["ids"]))
                forwards[name].append(turn["forwards"])
    found = []
    for name in dict.fromkeys([*counted, *different]):
        every = [one for some in ratios[name].values() for one in some]
        means = {category: mean(some) for category, some in ratios[name].items()}
        named = {which: f"{means[at]:.2f} ({at})" for which, at in _ends(means).items()}
        found.append(
            {
                "method": name,
                "prompts": counted[name],
                "tau": sum(tokens[name]) / sum(forwards[name]) if forwards[name] else None,
                "S": mean(every) if every else None,
                "best": named.get("best"),
                "worst": named.get("worst"),
                "different": different[name],
            }
        )
    return found


def _ends(means: Mapping[str, float]) -> dict[str, str]:
    """The categories with the highest and the lowest mean."""
    if not means:
        return {}
    return {"best": max(means, key=means.__getitem__), "worst": min(means, key=means.__getitem__)}


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table, fastest first; those without a speed last."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
    for row in sorted(found, key=lambda one: (-(one["S"] or 0.0), -(one["tau"] or 0.0))):
        tau, speed = ("-" if row[key] is None else f"{row[key]:.2f}" for key in ("tau", "S"))
        cells = (row["method"], row["prompts"], tau, speed, row["best"] or "-", row["worst"] or "-")
        lines.append(f"| {' | '.join(map(str, cells))} | {row['different']} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table and keep its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="one file a library")
    parser.add_argument("--out", type=Path, help="where rows and manifest go as JSON")
    args = parser.parse_args()
    found = [row for file in args.results for row in rows(requests(file))]
    kept = [row for row in found if row["method"] != "stock"]
    print(markdown(kept))
    if args.out:
        write_json(args.out, json.loads(json.dumps({"manifest": manifest(), "rows": kept})))


if __name__ == "__main__":
    main()

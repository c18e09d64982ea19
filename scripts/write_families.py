"""Write docs/families.md from the table of families and their tiny twins; `--check` only says
whether it is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eyespan.errors import UnsupportedTarget
from eyespan.target import HuggingFaceTarget
from eyespan.target.families import FAMILIES
from eyespan.target.probe import check_needs
from eyespan.target.states import CHAIN_MIXERS, TREE_MIXERS
from eyespan.testing import EVERY_SEEING, EVERY_TEXT, tiny_target
from eyespan.types import Needs

PAGE = Path(__file__).parents[1] / "docs" / "families.md"

HEAD = """\
<!-- Written by scripts/write_families.py; change the rows in src/eyespan/target/families. -->

# Model families

Each row below is tested with a tiny random model of that type in transformers' own code: the logits
of every drafted node against a forward over its path alone, what is kept of a draft against a fresh
run, and whole answers against `generate()` for 0, 1 and 2 pictures (and videos where the family
takes them). `eyespan doctor MODEL` shows the row of a model that you have, and tries a draft on it.

* **drafts**: `trees`, or `chains` where a recurrent state only moves forward.
* **tree masks**: `explicit` is one tensor for all layers; `hook` joins the tree with the model's
  own rule (windows, chunks, padding, pictures that see themselves); a chain needs none but the
  model's `own`.
* **not for**: drafters that are refused when they are loaded, since the model has nothing for them
  to read (trained drafters: its states and its tables; `fovea` and `hybrid`: features of pictures;
  `viskip`: attention on pictures). All others of docs/papers.md work.
* **cache**: what the layers remember. `windows` forget, `shared` layers read another layer's,
  `pictures` are attended to outside the text.
"""

TAIL = """
## Any other model

A text-only decoder needs no row: what it can do is found out when it is loaded, by looking at the
layers of a filled cache and by running one draft against single steps. A vision-language type
without a row is refused, since nobody could say which of its tokens stand for pixels.

Recurrent states are taken by layer class. Trees: {trees}. Chains: {chains}. Any other class is
refused when the model is loaded, as are encoder-decoders, quantised or offloaded caches, attention
other than `sdpa` and `eager`, and dynamically quantised layers. A chain that is rejected costs no
forward: the tokens that the state lost ride along in the next one.

Not taken, as found in transformers 5.24: Mamba 1 and Jamba (their scan of several tokens starts
from an empty state), Nemotron-H (a step and a block of tokens differ by more than rounding), BLIP-2
and InstructBLIP around an encoder-decoder (T5), Gemma 3n with pictures (its tower needs timm and
torchvision; the text model is in the table), Llama 4 with pictures (its forward fails; the text
model is in the table).
"""


def page(target_of: Callable[[str], HuggingFaceTarget] = tiny_target) -> str:
    """The page's text.

    Args:
        target_of: the tiny target of a name.
    """
    tiny = {name: target_of(name) for name in (*EVERY_SEEING, *EVERY_TEXT)}
    lines = [HEAD, "## With pictures", ""]
    lines += ["| family | model type | drafts | tree masks | cache | not for | videos |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in FAMILIES:
        for kind in row.model_types:
            twins = [t for n, t in tiny.items() if n in EVERY_SEEING and _type(t) == kind]
            if not twins:
                raise SystemExit(f"model type '{kind}' has no tiny twin in eyespan.testing")
            cells = [row.title, f"`{kind}`", *_abilities(twins)]
            lines.append(_row([*cells, "yes" if row.watches else "no"]))
    lines += [
        "",
        "## Text only",
        "",
        "| model type | drafts | tree masks | cache | not for |",
        "|---|---|---|---|---|",
    ]
    kinds = dict.fromkeys(_type(tiny[name]) for name in EVERY_TEXT)
    for kind in kinds:
        twins = [tiny[name] for name in EVERY_TEXT if _type(tiny[name]) == kind]
        lines.append(_row([f"`{kind}`", *_abilities(twins)]))
    tail = TAIL.format(trees=_names(TREE_MIXERS), chains=_names(CHAIN_MIXERS))
    return "\n".join(lines) + "\n" + tail


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _type(target: HuggingFaceTarget) -> str:
    return str(target.model.config.model_type)


def _names(classes: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(classes))


def _abilities(twins: list[HuggingFaceTarget]) -> list[str]:
    """Drafts, masks, cache and refused drafters, of all variants of one type."""
    return [
        " or ".join(dict.fromkeys(twin.info.drafts for twin in twins)),
        " or ".join(dict.fromkeys(twin.info.masks for twin in twins)),
        "; ".join(dict.fromkeys(twin.remembers for twin in twins)),
        ", ".join(dict.fromkeys(name for twin in twins for name in _not_for(twin))) or "-",
    ]


def _not_for(target: HuggingFaceTarget) -> list[str]:
    """Drafters that loading refuses: what it tries is tried here."""
    states = Needs(hidden_layers=(0,))
    names = []
    if not _is_read(target, states, weights=True):
        names.append("trained drafters")
    elif not _is_read(target, replace(states, visual_tokens=True)):
        names.append("fovea")
    if not _is_read(target, Needs(visual_attention=True)):
        names.append("viskip")
    return names


def _is_read(target: HuggingFaceTarget, needs: Needs, *, weights: bool = False) -> bool:
    try:
        check_needs(target, needs)
        if weights:
            target.weights()
    except UnsupportedTarget:
        return False
    return True


def main() -> None:
    """Write the page, or fail when it is stale."""
    fresh = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
    elif PAGE.read_text() != fresh:
        sys.exit(f"{PAGE.name} is stale: run python scripts/write_families.py")


if __name__ == "__main__":
    main()

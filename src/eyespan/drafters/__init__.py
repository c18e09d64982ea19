"""The table of drafters: a name, and where its class lives. Entries are imported on use, so that
`import eyespan` stays light; a table can be read and searched, which discovery cannot.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eyespan.drafters.base import Drafter
from eyespan.errors import unknown_name

if TYPE_CHECKING:
    from eyespan.target.base import Target

DRAFTERS: dict[str, str] = {
    "draft_model": "eyespan.drafters.draft_model:DraftModel",
    "dream": "eyespan.drafters.dream:Dream",
    "eagle3": "eyespan.drafters.eagle3:Eagle3",
    "fovea": "eyespan.drafters.fovea:Fovea",
    "hybrid": "eyespan.drafters.hybrid:Hybrid",
    "lookahead": "eyespan.drafters.lookahead:Lookahead",
    "msd": "eyespan.drafters.msd:Msd",
    "none": "eyespan.drafters.none:NoDrafter",
    "prompt_lookup": "eyespan.drafters.prompt_lookup:PromptLookup",
    "recap": "eyespan.drafters.recap:Recap",
    "sam": "eyespan.drafters.sam:Sam",
    "stand": "eyespan.drafters.stand:Stand",
    "suffix": "eyespan.drafters.suffix:Suffix",
    "token_recycling": "eyespan.drafters.token_recycling:TokenRecycling",
    "tree_recycling": "eyespan.drafters.tree_recycling:TreeRecycling",
    "viskip": "eyespan.drafters.viskip:ViSkip",
    "vispec": "eyespan.drafters.vispec:Vispec",
}

TRAINED = ("dream", "eagle3", "fovea", "msd", "vispec")
"""Names that need a checkpoint."""


def with_shipped_weights(name: str, target: Target, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a drafter, with the weights that come along where none are named and these were
    trained for this very target, however it was loaded.

    Args:
        name: of the drafter.
        target: that it will draft for.
        options: as given.
    """
    parts = {name}
    if name == "hybrid":
        parts |= {str(options.get("first", "recap")), str(options.get("second", "fovea"))}
    heads = parts.intersection(TRAINED)
    if "checkpoint" in options or not heads:
        return options
    from eyespan.drafters._checkpoint import DEMO, comes_along

    fits = all(comes_along(head, target) for head in heads)
    return {"checkpoint": DEMO, **options} if fits else options


def make_drafter(name: str, *, vocab_size: int, **options: Any) -> Drafter:
    """Build a drafter by name.

    Args:
        name: a key of `DRAFTERS`.
        vocab_size: ids of the target, [0, vocab_size).
        **options: fields of the drafter's config; unknown ones are refused.

    Raises:
        ConfigError: unknown name or option, or a value out of range.
    """
    if name not in DRAFTERS:
        raise unknown_name("drafter", name, DRAFTERS)
    module, _, attribute = DRAFTERS[name].partition(":")
    factory: Any = getattr(import_module(module), attribute)
    drafter: Drafter = factory(vocab_size=vocab_size, **options)
    return drafter

"""Which ids are never text, and which end an answer."""

from __future__ import annotations

from typing import Any

from eyespan.target.families import Family


def eos_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: the generation config's, else the decoder's or tokenizer's."""
    candidates = (
        model.generation_config.eos_token_id if model.generation_config is not None else None,
        getattr(model.config.get_text_config(decoder=True), "eos_token_id", None),
        None if tokenizer is None else tokenizer.eos_token_id,
    )
    for found in candidates:
        if found is not None:
            return frozenset(int(i) for i in (found if isinstance(found, list) else [found]))
    return frozenset()


def picture_ids_of(config: Any) -> frozenset[int]:
    """Ids in whose place projected features stand; the marks around them are not among these."""
    names = ("image_token_id", "video_token_id", "image_patch_id", "vision_config.image_token_id")
    found = (_field(config, name) for name in names)
    return frozenset(int(i) for i in found if i is not None)


def media_ids_of(
    config: Any, tokenizer: Any, family: Family, eos_ids: frozenset[int]
) -> frozenset[int]:
    """Ids that stand for pixels, sound or padding.

    A padding id that is something else too (the end of an answer in GPT-2 and many Llamas, the
    unknown token elsewhere) is text and stays out.

    Args:
        config: the model's config.
        tokenizer: or None.
        family: its row names the fields and tokens to look for.
        eos_ids: see `eos_ids_of`.
    """
    text_config = config.get_text_config(decoder=True)
    media: list[Any] = []
    for field in family.media_fields:
        found = _field(config, field)
        media += found if isinstance(found, (list, tuple)) else [found]
    padding = [getattr(source, "pad_token_id", None) for source in (text_config, tokenizer)]
    words = set(eos_ids)
    if tokenizer is not None:
        added = tokenizer.get_added_vocab()
        media += [added.get(token) for token in family.media_tokens]
        words |= {tokenizer.unk_token_id, tokenizer.bos_token_id}
    media += [i for i in padding if i not in words]
    return frozenset(int(i) for i in media if i is not None)


def _field(config: Any, path: str) -> Any:
    """A config's field, through its parts; None where there is none."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config

"""A byte tokenizer and a chat template, so that any string is a prompt."""

from __future__ import annotations

from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PAD, BOS, EOS, IMAGE, MEDIA_START, MEDIA_END, IMAGE_PAD, VIDEO_PAD = range(8)
"""Ids of the special tokens; bytes follow."""

_SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<image>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

CHAT = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}IMAGE{% elif p['type'] == 'video' %}VIDEO"
    "{% else %}{{ p['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A chat template in which the family's marks replace the words IMAGE and VIDEO."""

VOCAB_SIZE = len(_SPECIAL) + 256
"""Ids of `tiny_tokenizer`, and rows of every tiny model's head."""


def tiny_tokenizer() -> Any:
    """A byte tokenizer: ids 0-7 are special (`<pad>`, `<s>`, `</s>`, media), then 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*_SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=list(_SPECIAL[3:]),
        chat_template=CHAT.replace("IMAGE", "").replace("VIDEO", ""),
    )

"""Tiny targets, drafters and hypothesis strategies for tests, ours and yours: no downloads.

    target = tiny_target("qwen2_5_vl")
    prompt = target.prepare("What is this?", tiny_images(1))
    drafter = OracleDrafter(target, [prompt])

The models have random weights, drawn so that logits spread over about +-8 and the best token is
meaningful. Pictures are real: they go through the family's own processor and vision tower. Text is
bytes (one id each), so any string is a prompt.
"""

from eyespan.testing.drafters import OracleDrafter, RandomDrafter, plain_answer
from eyespan.testing.heads import random_checkpoint, random_head
from eyespan.testing.models import (
    CHAINS,
    EVERY_SEEING,
    EVERY_TEXT,
    FILMED,
    SEEING,
    TEXT_ONLY,
    WATCHING,
    tiny_images,
    tiny_model,
    tiny_prompt,
    tiny_target,
    tiny_video,
)
from eyespan.testing.processors import tiny_processor
from eyespan.testing.text_models import WINDOW
from eyespan.testing.tokens import VOCAB_SIZE, tiny_tokenizer
from eyespan.testing.trees import draft_trees, histories, packed, random_tree, root_path

__all__ = [
    "CHAINS",
    "EVERY_SEEING",
    "EVERY_TEXT",
    "FILMED",
    "SEEING",
    "TEXT_ONLY",
    "VOCAB_SIZE",
    "WATCHING",
    "WINDOW",
    "OracleDrafter",
    "RandomDrafter",
    "draft_trees",
    "histories",
    "packed",
    "plain_answer",
    "random_checkpoint",
    "random_head",
    "random_tree",
    "root_path",
    "tiny_images",
    "tiny_model",
    "tiny_processor",
    "tiny_prompt",
    "tiny_target",
    "tiny_tokenizer",
    "tiny_video",
]

"""The demo's byte-level BPE of 2,048 tokens: one token a digit, one token a lexicon word.

Pieces that stand in the vocabulary are taken whole (`ignore_merges`), so a word of the lexicon is
one token with and without its leading space; any other text falls back to merges and bytes.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from eyespan.demo import lexicon
from eyespan.demo.generator import SUBJECTS, training_sample

VOCAB_SIZE: Final = 2048
PAD, END, USER, ASSISTANT, IMAGE = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<image>"
SPECIALS: Final = (PAD, END, USER, ASSISTANT, IMAGE)
PIECE: Final = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+"
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{ '<|assistant|>' }}"
    "{%- else -%}{{ '<|user|>' }}{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<image>' }}"
    "{%- elif part['type'] == 'text' -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def _pre_tokenizer() -> Any:
    return Sequence(
        [Split(Regex(PIECE), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _corpus(samples: int, seed: int) -> Iterator[str]:
    weights = dict.fromkeys(SUBJECTS, 1.0)
    for index in range(samples):
        for turn in training_sample(seed, index, weights).turns:
            yield turn.question
            yield turn.answer


def build_tokenizer(samples: int = 3000, seed: int = 0) -> PreTrainedTokenizerFast:
    """Train on generated questions and answers, with every lexicon word as often as any other."""
    corpus = list(_corpus(samples, seed))
    pieces = dict.fromkeys(piece for text in corpus for piece in re.findall(PIECE, text))
    for word in lexicon.all_words():
        pieces |= {word: None, f" {word}": None}
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = _pre_tokenizer()
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    trained.train_from_iterator([*corpus, *(word for word in pieces for _ in range(20))], trainer)
    spell = ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = sorted(
        {"".join(part for part, _ in spell.pre_tokenize_str(piece)) for piece in pieces}
        - set(alphabet)
    )
    merges = [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
    return _assemble(alphabet, spelled, merges)


def _assemble(
    alphabet: list[str], words: list[str], merges: list[tuple[str, ...]]
) -> PreTrainedTokenizerFast:
    """Specials, bytes, whole words, then as many merges as there is room for."""
    order = list(dict.fromkeys([*SPECIALS, *alphabet, *words]))
    known, kept = set(order), []
    if len(order) > VOCAB_SIZE:
        raise ValueError(
            f"asked for {VOCAB_SIZE} tokens, found {len(order)} needed ones; shorten the lexicon"
        )
    for left, right in merges:
        if left + right not in known:
            if len(order) == VOCAB_SIZE:
                continue
            order.append(left + right)
            known.add(left + right)
        if left in known and right in known:
            kept.append((left, right))
    model = BPE(
        vocab={token: index for index, token in enumerate(order)}, merges=kept, ignore_merges=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens={"image_token": IMAGE},
        model_max_length=2048,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast

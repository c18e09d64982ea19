"""The demo's architecture: a SigLIP tower, a projector and a Llama text model, and how it grows in
depth.
"""

import copy
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

from eyespan.demo.canvas import SIDE

PATCH = 16  # pixels: two characters
PATCHES = (SIDE // PATCH) ** 2  # 144 visual tokens
SHALLOW = 4  # text layers until the model is grown
_ROPE_THETA = 1e6  # leaves most of a head free of position, to match words by


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig:
    """Sizes of the model; the defaults are the shipped one."""

    vocab_size: int = 2048
    text_layers: int = 12
    text_width: int = 256
    text_inner: int = 640
    text_heads: int = 4
    tower_layers: int = 5
    tower_width: int = 192
    tower_heads: int = 4


def build_model(
    config: DemoConfig, *, image_id: int, end_id: int, pad_id: int
) -> LlavaForConditionalGeneration:
    """A fresh model with random weights, in the stock class."""
    text = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.text_width,
        intermediate_size=config.text_inner,
        num_hidden_layers=config.text_layers,
        num_attention_heads=config.text_heads,
        num_key_value_heads=config.text_heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    vision = SiglipVisionConfig(
        hidden_size=config.tower_width,
        intermediate_size=4 * config.tower_width,
        num_hidden_layers=config.tower_layers,
        num_attention_heads=config.tower_heads,
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=image_id,
            image_seq_length=PATCHES,
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            tie_word_embeddings=True,
        )
    )


def seed_positions(model: LlavaForConditionalGeneration, amplitude: float = 4.0) -> None:
    """Keep the upper half of the tower's width for places: waves of evenly spaced frequencies.

    Neighbours are then a rotation apart and any two places nearly orthogonal. From the stock start
    (noise far smaller than the patch embeddings) attention stayed blind to places for 20,000 pages.
    The patch embedding writes the lower half only; `place_mask` keeps it so in training.
    """
    embeddings = model.model.vision_tower.embeddings
    side, half = int(PATCHES**0.5), model.config.vision_config.hidden_size // 2
    angles = torch.arange(side)[:, None] * _frequencies(half // 4)
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    grid = torch.cat([axis.repeat(side, 1), axis.repeat_interleave(side, 0)], dim=1)
    with torch.no_grad():
        embeddings.position_embedding.weight[:, half:] = amplitude * grid
        embeddings.patch_embedding.weight[half:] = 0.0


def place_mask(gradient: Tensor) -> Tensor:
    """Gradient of the patch embedding without the outputs that are kept for places."""
    half = len(gradient) // 2
    return torch.cat([gradient[:half], torch.zeros_like(gradient[half:])])


def seed_neighbours(model: LlavaForConditionalGeneration, gain: float = 2.2) -> None:
    """Point most heads of every tower layer but the first at patches to the right and left.

    A word is several patches wide, so reading one needs just this attention; it is a rotation of
    the waves of `seed_positions`, and training is free to change it.
    """
    config = model.config.vision_config
    half, size = config.hidden_size // 2, config.hidden_size // config.num_attention_heads
    waves = half // 4
    kept = torch.linspace(0, waves - 1, size // 4).round().long()
    turn = _frequencies(waves)[kept]
    reach = ((1, 2, 3), (1, 2, 3), (1, -1, -2), (-1, -2, -3, -4))
    for layer, offsets in zip(model.model.vision_tower.encoder.layers[1:], reach, strict=False):
        for head, offset in enumerate(offsets[: config.num_attention_heads]):
            query = torch.zeros(size, config.hidden_size)
            key = torch.zeros(size, config.hidden_size)
            part = torch.arange(len(kept))
            for base, shift in ((0, offset), (2, 0)):
                sine, cosine = half + base * waves + kept, half + (base + 1) * waves + kept
                up, down = base * len(kept) + part, (base + 1) * len(kept) + part
                key[up, sine] = key[down, cosine] = 1.0
                query[up, sine] = query[down, cosine] = (turn * shift).cos()
                query[up, cosine], query[down, sine] = (turn * shift).sin(), -(turn * shift).sin()
            rows = slice(head * size, (head + 1) * size)
            with torch.no_grad():
                for linear, weight in (
                    (layer.self_attn.q_proj, query),
                    (layer.self_attn.k_proj, key),
                ):
                    linear.weight[rows] = gain * weight
                    linear.bias[rows] = 0.0


def _frequencies(waves: int) -> Tensor:
    """Evenly spaced below half a turn a patch: sums of such waves peak at one place only."""
    return (torch.arange(waves) + 0.5) * torch.pi / waves


def seed_copying(
    model: LlavaForConditionalGeneration, before: Tensor, layers: tuple[int, ...], gain: float = 2.0
) -> None:
    """Start two heads of some text layers as readers: from a word to the patch that follows it.

    `before`, [D, D], maps a visual token to the embedding of the word before its own, so a key made
    with it meets the query of that word. Values are copied as they are: visual tokens are trained
    to lie near the embedding of their own word. Only slowly turning pairs of the rotary embedding
    take part.
    """
    config = model.config.text_config
    width, heads = config.hidden_size, config.num_attention_heads
    size = width // heads
    pairs = torch.arange(size * 7 // 32, size // 2)
    slow = torch.cat([pairs, pairs + size // 2])
    before = before / before.norm(dim=1).mean()
    for layer in layers:
        attention = model.model.language_model.layers[layer].self_attn
        for head in range(heads // 2):
            frame = torch.linalg.qr(torch.randn(width, size)).Q.T
            rows = slice(head * size, (head + 1) * size)
            query = torch.zeros(size, width)
            query[slow] = gain * frame[: len(slow)]
            with torch.no_grad():
                attention.q_proj.weight[rows] = query
                attention.k_proj.weight[rows] = query @ before
                attention.v_proj.weight[rows] = frame
                attention.o_proj.weight[:, rows] = 0.5 * frame.T


def seed_embeddings(model: LlavaForConditionalGeneration, tokenizer: Tokenizer, seed: int) -> None:
    """Give the forms of one word ("mug", " mug", "Mug") a shared vector plus one for the space and
    one for the capital.

    The visual tokens are trained to name words; with shared vectors, naming one form names all of
    them.
    """
    rng = torch.Generator().manual_seed(seed)
    table = model.get_input_embeddings().weight
    width = table.shape[1]
    space, capital = 0.5 * torch.randn(2, width, generator=rng) / width**0.5
    bases: dict[str, Tensor] = {}
    with torch.no_grad():
        for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            word = token.removeprefix("Ġ")
            fresh = torch.randn(width, generator=rng) / width**0.5
            base = bases.setdefault(word.lower() or token, fresh)
            table[index] = (
                base
                + (space if token != word and word else 0)
                + (capital if word[:1].isupper() else 0)
            )


def grow(model: LlavaForConditionalGeneration, layers: int) -> LlavaForConditionalGeneration:
    """A deeper model with the same outputs: each layer is followed by copies of itself that add
    nothing yet.

    The copies start with zeroed `o_proj` and `down_proj`, so the residual stream passes through
    them unchanged.
    """
    stack = model.model.language_model.layers
    if layers % len(stack):
        below = max(1, layers // len(stack)) * len(stack)
        raise ValueError(
            f"asked to grow to {layers} layers; the model has {len(stack)}; "
            f"needed: a multiple of that; ask for {below} or {below + len(stack)}"
        )
    config = copy.deepcopy(model.config)
    config.text_config.num_hidden_layers = layers
    config.text_config.layer_types = None
    grown = LlavaForConditionalGeneration(config)
    state = {
        name: value
        for name, value in model.state_dict().items()
        if ".layers." not in name or "language" not in name
    }
    missing = grown.load_state_dict(state, strict=False)
    if missing.unexpected_keys:
        raise RuntimeError(f"weights without a place in the grown model: {missing.unexpected_keys}")
    repeat = layers // len(stack)
    for index, layer in enumerate(grown.model.language_model.layers):
        layer.load_state_dict(stack[index // repeat].state_dict())
        if index % repeat:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
    return grown

"""The demo's training code: tokenizer, growth, labels and the packed batch, on tiny models."""

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

from eyespan.demo.canvas import CHARS
from eyespan.demo.data import Batch, Encoder, batches, collate
from eyespan.demo.dense import NOTHING, DenseLabels, Labeller
from eyespan.demo.generator import SUBJECTS, training_sample
from eyespan.demo.guide import NOWHERE, places
from eyespan.demo.lexicon import all_words
from eyespan.demo.model import DemoConfig, build_model, grow, seed_neighbours, seed_positions
from eyespan.demo.optim import orthogonalise
from eyespan.demo.tokenizer import PIECE, VOCAB_SIZE, build_tokenizer
from eyespan.demo.train import TrainConfig, Trainee

TINY = DemoConfig(
    text_layers=4, text_width=32, text_inner=48, text_heads=2, tower_layers=1, tower_width=32
)
WEIGHTS = dict.fromkeys(SUBJECTS, 1.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(samples=400)


@pytest.fixture(scope="module")
def trainee(tokenizer: PreTrainedTokenizerFast) -> Trainee:
    torch.manual_seed(0)
    return Trainee(build_model(TINY, image_id=4, end_id=1, pad_id=0))


def test_every_lexicon_word_is_one_token_with_and_without_space(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert len(tokenizer) == VOCAB_SIZE
    for word in all_words():
        assert len(tokenizer.tokenize(word)) == len(tokenizer.tokenize(f" {word}")) == 1


def test_digits_are_split_and_any_text_comes_back(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.tokenize("2037.50") == ["2", "0", "3", "7", ".", "5", "0"]
    for text in ("| Lima | 45 |\n|---|---|", 'naïve {"x": 1}', "zügig 漢字 🙂"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_growth_keeps_every_output(trainee: Trainee) -> None:
    model = trainee.model.eval()
    ids = torch.randint(5, 200, (2, 9))
    with torch.inference_mode():
        before = model(input_ids=ids).logits
        grown = grow(model, 12).eval()
        assert grown.config.text_config.num_hidden_layers == 12
        assert torch.equal(grown(input_ids=ids).logits, before)


def test_growth_to_no_multiple_is_refused(trainee: Trainee) -> None:
    with pytest.raises(ValueError, match="ask for 8 or 12"):
        grow(trainee.model, 10)


def test_turns_asked_apart_score_as_if_each_were_alone(
    trainee: Trainee, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Packed questions share the picture but must not see one another."""
    backend = tokenizer.backend_tokenizer
    encode, label = Encoder(backend), Labeller(backend)
    sample = training_sample(0, 3, WEIGHTS, apart=True)

    def answer(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return trainee.losses(batch, language=True, dense=True)["answer"]

    packed = answer(collate([encode(sample, apart=True)], label))
    alone = [
        answer(collate([encode(dataclasses.replace(sample, turns=(turn,)))], label))
        for turn in sample.turns
    ]
    assert torch.allclose(packed, torch.cat(alone), atol=1e-4)


def test_losses_are_those_of_the_stock_forward(
    trainee: Trainee, tokenizer: PreTrainedTokenizerFast
) -> None:
    backend = tokenizer.backend_tokenizer
    row = Encoder(backend)(training_sample(0, 5, WEIGHTS))
    batch = collate([row], Labeller(backend))
    with torch.inference_mode():
        ours = trainee.losses(batch, language=True, dense=True)["answer"]
        logits = trainee.model(input_ids=batch.ids, pixel_values=batch.pixels).logits
    wanted = batch.targets != NOTHING
    stock = F.cross_entropy(logits[wanted], batch.targets[wanted], reduction="none")
    assert torch.allclose(ours, stock, atol=1e-4)


def test_a_resumed_stream_goes_on_where_it_stopped(tokenizer: PreTrainedTokenizerFast) -> None:
    backend = tokenizer.backend_tokenizer

    def stream(start: int) -> list[Batch]:
        source = batches(backend, seed=1, start=start, size=2, weights=WEIGHTS)
        return [next(source) for _ in range(3)]

    assert torch.equal(stream(0)[2].ids, stream(2)[0].ids)
    assert not torch.equal(stream(0)[0].pixels, stream(2)[0].pixels)


def test_labels_spell_the_page(tokenizer: PreTrainedTokenizerFast) -> None:
    """Characters, and the tokens that start in each patch, are those of the drawn text."""
    page = training_sample(0, 0, {**dict.fromkeys(SUBJECTS, 0.0), "text": 1.0}).page
    labels: DenseLabels = Labeller(tokenizer.backend_tokenizer)([page])
    rows = labels.chars.view(12, 24)
    starts = labels.tokens[0, :, :2, 0]
    found = [int(token) for token in starts.flatten() if token != NOTHING]
    pieces = [piece.strip() for run in page.runs for piece in re.findall(PIECE, run.text)]
    assert tokenizer.convert_ids_to_tokens(found) == [piece for piece in pieces if piece]
    for run in page.runs:
        drawn = "".join(CHARS[int(code)] for code in rows[run.row, run.col :])
        assert drawn.startswith(run.text)


def test_guided_places_are_where_the_text_stands(tokenizer: PreTrainedTokenizerFast) -> None:
    """Most picture tokens have a place, and the patch there is labelled with that very token."""
    backend = tokenizer.backend_tokenizer
    placed = agreed = shown = 0
    for index in range(12):
        sample = training_sample(2, index, {**WEIGHTS, "scene": 0.0})
        label = Labeller(backend)([sample.page])
        for turn in sample.turns:
            written = backend.encode(turn.answer, add_special_tokens=False)
            for token, at, patch in zip(
                written.ids,
                written.offsets,
                places(turn, sample.page, written.offsets),
                strict=True,
            ):
                shown += any(start <= at[0] < end for start, end in turn.picture_spans)
                if patch != NOWHERE:
                    placed += 1
                    agreed += token in label.tokens[0, patch, :2].flatten().tolist()
    assert placed > 0.85 * shown
    assert agreed == placed


def test_guided_heads_keep_their_scores_when_the_model_grows(
    trainee: Trainee, tokenizer: PreTrainedTokenizerFast
) -> None:
    row = Encoder(tokenizer.backend_tokenizer)(training_sample(0, 5, WEIGHTS))
    batch = collate([row], Labeller(tokenizer.backend_tokenizer))
    with torch.inference_mode():
        before = trainee.losses(batch, language=True, dense=True)
        after = Trainee(grow(trainee.model, 12)).losses(batch, language=True, dense=True)
    for name in ("own_loss", "next_loss"):
        assert torch.allclose(before[name], after[name], atol=1e-5)


def test_the_towers_seeded_heads_look_at_the_neighbours() -> None:
    """Reading a word needs its next patches; without this start the tower never looked at them."""
    torch.manual_seed(0)
    model = build_model(DemoConfig(text_layers=1), image_id=4, end_id=1, pad_id=0)
    seed_positions(model)
    seed_neighbours(model)
    tower = model.model.vision_tower
    layer = tower.encoder.layers[1]
    with torch.inference_mode():
        seen = tower(torch.rand(1, 3, 192, 192) * 2 - 1, output_hidden_states=True)
        normed = layer.layer_norm1(seen.hidden_states[1])
        query, key = (
            linear(normed).view(144, 4, 48).transpose(0, 1)
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )
        weights = (query @ key.transpose(1, 2) / 48**0.5).softmax(-1)
    middle = 5 * 12 + 4
    assert [int(weights[head, middle].argmax()) - middle for head in range(3)] == [1, 2, 3]
    assert weights[:3, middle].amax(-1).min() > 0.9


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 24, 40)))
    assert ((values > 0.6) & (values < 1.3)).all()


def test_rate_rises_holds_and_falls_to_zero(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = TrainConfig(stage="tower", out=tmp_path, steps=100, warmup=10, decay=0.5)
    assert config.rate(0) == pytest.approx(0.1)
    assert config.rate(30) == 1.0
    assert config.rate(75) == pytest.approx(0.5)
    assert config.rate(100) == 0.0

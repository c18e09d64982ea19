"""Prompts: what is refused before any forward, and where pictures go."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eyespan.errors import InputError, UnsupportedRequest
from eyespan.target import HuggingFaceTarget
from eyespan.target.prefill import row_positions
from eyespan.testing import SEEING, tiny_images, tiny_model, tiny_target, tiny_tokenizer
from eyespan.types import Needs

IMAGE = {"type": "image"}


@lru_cache
def target_of(family: str) -> HuggingFaceTarget:
    return tiny_target(family)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


SPELLED = [
    ("llava", "Look: <image> here"),
    ("llava_next", "<image>"),
    ("qwen2_vl", "a<|image_pad|>b"),
    ("qwen2_5_vl", "<|vision_start|>"),
    ("qwen2_5_vl", "and <|video_pad|>"),
    ("llava", "padding <pad>"),
]


@pytest.mark.parametrize("images", [0, 1, 2])
@pytest.mark.parametrize(("family", "words"), SPELLED)
def test_A11_spelled_placeholders_are_refused(family: str, words: str, images: int) -> None:
    with pytest.raises(InputError, match="its text spells '<"):
        target_of(family).prepare(words, tiny_images(images))


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("family", SEEING)
def test_A11_no_media_token_can_be_typed(family: str, role: str) -> None:
    """Every id that is never text, spelled out by anybody, alone and inside a word."""
    target = target_of(family)
    for media in sorted(target.info.media_ids):
        word = target.tokenizer.decode([media], skip_special_tokens=False)
        for said in (word, f"a{word}b"):
            chat = [{"role": role, "content": said}, user(IMAGE, text("What?"))]
            with pytest.raises(InputError, match="its text spells"):
                target.prepare(chat, tiny_images(1))


@pytest.mark.parametrize("family", SEEING)
def test_almost_spelled_placeholders_are_text(family: str) -> None:
    prompt = target_of(family).prepare("< image > <|image-pad|> &lt;image&gt;", [])
    assert not np.isin(prompt.ids, [3, 4, 5, 6, 7]).any()


@pytest.mark.parametrize(("places", "pictures"), [(1, 0), (2, 1), (1, 2), (3, 0)])
def test_A11_places_and_pictures_must_match(places: int, pictures: int) -> None:
    chat = [user(*[IMAGE] * places, text("What?"))]
    with pytest.raises(InputError, match=rf"{pictures} image\(s\): {places} place"):
        target_of("llava").prepare(chat, tiny_images(pictures))


def test_pictures_of_a_long_chat_need_places() -> None:
    chat = [user(text("Hi")), {"role": "assistant", "content": "Yes?"}, user(text("What?"))]
    with pytest.raises(InputError, match="0 place"):
        target_of("llava").prepare(chat, tiny_images(1))


@pytest.mark.parametrize("family", SEEING)
def test_pictures_stand_before_the_text_by_default(family: str) -> None:
    target, pictures = target_of(family), tiny_images(2)
    plain = target.prepare("What?", pictures)
    placed = target.prepare([user(IMAGE, IMAGE, text("What?"))], pictures)
    after = target.prepare([user(text("What?"), IMAGE, IMAGE)], pictures)
    assert plain.ids.tolist() == placed.ids.tolist()
    assert plain.images == 2
    assert sorted(after.ids.tolist()) == sorted(plain.ids.tolist())
    assert after.ids.tolist() != plain.ids.tolist()


@pytest.mark.parametrize("empty", ["", "   ", [], [user()], [user(text(" \n"))]])
def test_nothing_to_say_is_refused(empty: Any) -> None:
    with pytest.raises(InputError, match=r"no text and no image"):
        target_of("llava").prepare(empty)


def test_a_picture_without_words_is_a_prompt() -> None:
    assert target_of("llava").prepare("", tiny_images(1)).images == 1


@pytest.mark.parametrize(
    "chat",
    [
        [{"content": "no role"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [{"type": "audio"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["text"]}],
    ],
)
def test_malformed_chats_are_refused(chat: list[Any]) -> None:
    with pytest.raises(InputError, match="a chat"):
        target_of("llava").prepare(chat)


def test_pictures_for_a_text_model_and_text_without_a_tokenizer() -> None:
    with pytest.raises(InputError, match="reads text only"):
        target_of("llama").prepare("What?", tiny_images(1))
    with pytest.raises(InputError, match="without a processor"):
        HuggingFaceTarget(tiny_model("llama")).prepare("What?")


def test_without_a_chat_template_one_text_is_written_plainly() -> None:
    target = tiny_target("llava")
    target.processor.chat_template = None
    prompt = target.prepare("What?", tiny_images(1))
    assert target.tokenizer.decode(prompt.ids) == "<image>" * 4 + "\nWhat?"
    with pytest.raises(InputError, match="no chat template"):
        target.prepare([user(text("Hi")), user(text("What?"))])


@pytest.mark.parametrize("family", SEEING)
def test_rows_of_the_prompt_are_never_media(family: str) -> None:
    target = target_of(family)
    prompt = target.prepare("What is this? What is that?", tiny_images(2))
    _, full = target.prefill(prompt, Needs(prompt_rows="all"))
    _, first = target.prefill(prompt, Needs(prompt_rows="first"))
    _, none = target.prefill(prompt, Needs())
    media = list(target.info.media_ids)
    assert not np.isin(prompt.ids[full.positions], media).any()
    assert len(full.positions) == (~np.isin(prompt.ids, media)).sum()
    firsts = prompt.ids[first.positions].tolist()
    assert len(firsts) == len(set(firsts)) == len(set(prompt.ids[full.positions].tolist()))
    assert all(prompt.ids[:at].tolist().count(prompt.ids[at]) == 0 for at in first.positions)
    where = np.searchsorted(full.positions, first.positions)
    assert np.array_equal(first.row_ids, full.row_ids[where])
    assert none.positions.size == 0
    assert full.row_ids[-1].tolist() == none.next_row_ids.tolist() == first.next_row_ids.tolist()
    assert int(none.logits.argmax()) == none.next_row_ids[0]


def test_first_occurrences() -> None:
    ids = np.array([5, 3, 3, 5, 6, 0, 6, 7], np.int32)
    assert row_positions(ids, frozenset({0, 3}), "first").tolist() == [0, 4, 7]
    assert row_positions(ids, frozenset({0, 3}), "all").tolist() == [0, 3, 4, 6, 7]
    assert row_positions(ids, frozenset({0, 3}), "none").size == 0


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "llama"])
def test_hidden_states_and_visual_tokens(family: str) -> None:
    target = target_of(family)
    prompt = target.prepare("What?", tiny_images(2) if family in SEEING else [])
    needs = Needs(hidden_layers=(0, 1, -1), visual_tokens=True)
    _, prefill = target.prefill(prompt, needs)
    hidden = prefill.extras["hidden"]
    assert hidden.shape == (len(prompt), 3, 64)
    head = target.model.get_output_embeddings().weight.detach().numpy()
    assert np.allclose(head @ hidden[-1, -1], prefill.logits, atol=1e-4)
    embedded = target.model.get_input_embeddings()(prompt.input_ids)[0].detach().numpy()
    placeholder = np.isin(prompt.ids, [3, 6])
    assert np.array_equal(hidden[~placeholder, 0], embedded[~placeholder])
    visual = prefill.extras["visual_tokens"]
    if family in SEEING:
        assert np.array_equal(hidden[placeholder, 0], visual)
    else:
        assert visual is None


def test_arguments_that_trees_cannot_honour_are_refused() -> None:
    target = target_of("llama")
    ids = torch.tensor([[40, 41]])
    with pytest.raises(UnsupportedRequest, match="arguments output_magic"):
        target.prompt_from_generate(ids, {"output_magic": True})
    with pytest.raises(UnsupportedRequest, match=r"shape \(2, 2\)"):
        target.prompt_from_generate(ids.expand(2, 2), {})
    with pytest.raises(UnsupportedRequest, match="2 ids beside"):
        target.prompt_from_generate(ids, {"position_ids": torch.arange(5)[None]})
    with pytest.raises(InputError, match="shape"):
        target.prompt_from_ids([])


def test_what_the_processor_refuses_is_one_sentence() -> None:
    sliver = Image.new("RGB", (2, 700))
    with pytest.raises(InputError, match="aspect ratio"):
        target_of("qwen2_5_vl").prepare("What?", [sliver])
    target = tiny_target("llama")
    target.processor.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="roles must alternate"):
        target.prepare("What?")


def test_a_vision_model_with_a_tokenizer_alone_reads_text() -> None:
    target = HuggingFaceTarget(tiny_model("llava"), tiny_tokenizer())
    assert "What?" in target.tokenizer.decode(target.prepare("What?").ids)
    with pytest.raises(InputError, match="with its processor"):
        target.prepare("What?", tiny_images(1))


def test_A11_what_parts_and_roles_spell_together_is_refused() -> None:
    target = target_of("llava")
    for chat in ([user(text("<ima"), text("ge>"))], [{"role": "user<image>", "content": "hi"}]):
        with pytest.raises(InputError, match="'<image>'"):
            target.prepare(chat)


@pytest.mark.parametrize("prompt", [None, 5, b"hi", ["hi"], {"role": "user"}, "half \ud800"])
def test_what_is_no_prompt_is_one_sentence(prompt: Any) -> None:
    with pytest.raises(InputError, match="a chat"):
        target_of("llava").prepare(prompt)


@pytest.mark.parametrize(
    "pictures", [None, 5, tiny_images(1)[0], [None], [5], ["a\0.png"], ["~no one.png"]]
)
def test_what_is_no_picture_is_one_sentence(pictures: Any) -> None:
    with pytest.raises(InputError, match="image"):
        target_of("llava").prepare("hi", pictures)


def test_ids_without_an_embedding_are_refused() -> None:
    target = target_of("llava")
    for ids in ([-1], [5, 10**6]):
        with pytest.raises(InputError, match="lie in"):
            target.prompt_from_ids(ids)

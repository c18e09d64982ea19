"""The one implementation of `Target`: an unpatched Hugging Face model as prompts and packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from eyespan.errors import InputError, UnsupportedTarget
from eyespan.target import cache as caches
from eyespan.target import states
from eyespan.target.attention import (
    columns_watched,
    unseen,
)
from eyespan.target.base import Message, Prompt, SequenceState, TargetInfo
from eyespan.target.capabilities import Capabilities, check_unchanged, inspect_model
from eyespan.target.families import family_of
from eyespan.target.features import Encoder
from eyespan.target.given import room_of
from eyespan.target.images import Picture, open_pictures
from eyespan.target.inputs import PromptMaker
from eyespan.target.media import eos_ids_of, media_ids_of, picture_ids_of
from eyespan.target.packs import Packs
from eyespan.target.prefill import read_prompt
from eyespan.target.prefix import Mark, Prefix, prefix_after, resume
from eyespan.target.probe import check_needs
from eyespan.target.static import WIDTHS, Passes
from eyespan.target.video import Clip, Film, Video, open_videos
from eyespan.target.weights import TargetWeights, weights_of
from eyespan.types import Floats, Ints, Needs, PackedTree, Prefill, TargetOut


class HuggingFaceTarget:
    """A transformers model behind the `Target` protocol.

    The model is put into eval mode (dropout would make every comparison meaningless); `detach()`
    puts its training flag back. Nothing else about it changes, and one model may serve several
    adapters and stock `generate()`, though not from two threads at the same moment.

    Attributes:
        info: facts about it (see `TargetInfo`).
        family: its row in the table of families.
        model: the live model.
        processor, tokenizer: what it was given, or None.
    """

    def __init__(self, model: Any, processor: Any = None, name: str | None = None) -> None:
        """Inspect a live model.

        Args:
            model: causal or image-text-to-text model of transformers >= 5, sdpa or eager attention.
            processor: its processor (pictures) or tokenizer (text only); None allows only
                `prompt_from_ids` and `prompt_from_generate`.
            name: how `info` and error messages call it; default: the config's own.

        Raises:
            UnsupportedTarget: it cannot be verified in trees, with the reason.
        """
        name = name or str(model.config.name_or_path or type(model).__name__)
        self.family = family_of(model.config)
        self._capabilities = found = inspect_model(model, self.family, name)
        self.model = model
        self.processor = processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self._training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            self._look(name, found)
        except BaseException:
            self.detach()
            raise

    def _look(self, name: str, found: Capabilities) -> None:
        """Fill `info` and try a cache."""
        model, known = self.model, found.vocab_size
        eos_ids = frozenset(i for i in eos_ids_of(model, self.tokenizer) if 0 <= i < known)
        media_ids = media_ids_of(model.config, self.tokenizer, self.family, eos_ids)
        self.info = TargetInfo(
            name=name,
            family=self.family.name,
            vocab_size=found.vocab_size,
            media_ids=frozenset(i for i in media_ids if 0 <= i < max(known, found.embeddings)),
            eos_ids=eos_ids,
            max_context=found.max_context,
            hidden_size=found.hidden_size,
            layers=found.layers,
            dtype=str(found.dtype).removeprefix("torch."),
            device=str(found.device),
            attention=found.attention,
            masks=found.masks,
            drafts="chains" if found.states == "chains" else "trees",
            recurrent=found.states != "none",
            one_pass=found.shares and not self.family.step_inputs,
        )
        if found.states == "trees":
            states.install(model)
        self._picture_ids = picture_ids_of(model.config)
        self._encoder = Encoder(model, self.family, self._picture_ids)
        self._prompts = PromptMaker(model, self.processor, self.family, self.info, found)
        self._packs = Packs(model, found, self.family, name, one_pass=self.info.one_pass)
        self._probe()

    def compile_passes(
        self, *, backend: Any = "inductor", widths: Sequence[int] = WIDTHS
    ) -> HuggingFaceTarget:
        """Let single sequences run in compiled passes from here on (see `static.py`); `ready` then
        compiles those that are needed.

        Args:
            backend: of `torch.compile`, a name or a function.
            widths: nodes of the passes, ascending, the first is 1.

        Returns:
            This target.

        Raises:
            UnsupportedTarget: a model that has none, or no compiler here.
        """
        self._packs.compiled = Passes(
            self.model,
            self._capabilities,
            self.family,
            self.info.name,
            backend=backend,
            widths=widths,
        )
        return self

    def ready(self, most: int) -> None:
        """Compile what packs of up to `most` nodes need, where compiled passes are wanted.

        Raises:
            UnsupportedTarget: see `Passes.ready`.
        """
        passes = self._packs.compiled
        if passes is None:
            return
        check_unchanged(self.model, self._capabilities, self.info.name)
        try:
            passes.ready(self, most)
        except UnsupportedTarget:
            passes = self._packs.compiled = None
            raise
        finally:
            self.info = replace(self.info, passes=passes.widths if passes else ())

    @property
    def remembers(self) -> str:
        """What the decoder's layers remember: "all tokens", "windows", "states" and the like."""
        return self._capabilities.remembers

    @property
    def takes_static(self) -> bool:
        """Whether a prompt may bring a static cache: one that forgets nothing and holds only keys
        and values of its tokens.
        """
        return self.remembers == "all tokens"

    @property
    def video_trouble(self) -> str | None:
        """Why files and frames cannot be videos of a prompt; None where they can."""
        try:
            self._prompts.sampler  # noqa: B018 - says why there is none
        except InputError as reason:
            return reason.found
        return None

    def check_text(self, text: str) -> None:
        """Refuse a user's text that no picture can make right: see `prepare`.

        Raises:
            InputError: it spells a placeholder, or is no Unicode.
        """
        self._prompts.check_text(text)

    def open_videos(self, videos: Sequence[Film | Video | Clip]) -> list[Clip]:
        """Open and sample videos as the model's processor does.

        Raises:
            InputError: the model takes none, or one of them cannot be used.
        """
        none = isinstance(videos, Sequence) and not videos
        return [] if none else open_videos(videos, self._prompts.sampler)

    def prepare(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Picture] = (),
        videos: Sequence[Film | Video | Clip] = (),
    ) -> Prompt:
        """Turn text or a chat and its pictures and videos into model inputs.

        Args:
            prompt: one user text, or chat messages (see `Message`).
            images: paths, file contents or opened pictures, in the order of their places in the
                prompt; for a plain text they come before it.
            videos: see `video.py`; in the order of their places, for a plain text behind the
                pictures.

        Raises:
            InputError: nothing to say, a spelled-out placeholder, or pictures that cannot be used.
        """
        return self._prompts.prepare(prompt, open_pictures(images), self.open_videos(videos))

    def prompt_from_ids(self, input_ids: Any, **media: Any) -> Prompt:
        """A prompt from ids [L] or [1, L] and the processor's own tensors."""
        return self._prompts.from_ids(input_ids, media)

    def prompt_from_generate(self, input_ids: Any, model_kwargs: Mapping[str, Any]) -> Prompt:
        """A prompt from what transformers' `generate()` hands to its decoding method.

        Args:
            input_ids: [1, L].
            model_kwargs: positions, cache, mask, and image features that are already computed.

        Raises:
            UnsupportedRequest: an argument that trees cannot honour.
        """
        check_unchanged(self.model, self._capabilities, self.info.name)
        return self._prompts.from_generate(input_ids, model_kwargs)

    def prompts_from_generate(
        self, input_ids: Any, model_kwargs: Mapping[str, Any]
    ) -> list[Prompt]:
        """The single prompts of a batch, without their padding.

        Args:
            input_ids: [B, L], padded at the left.
            model_kwargs: see `prompt_from_generate`.

        Raises:
            UnsupportedRequest: an argument that trees cannot honour, or that cannot be told apart
                by sequences.
        """
        if len(input_ids) == 1:
            return [self.prompt_from_generate(input_ids, model_kwargs)]
        check_unchanged(self.model, self._capabilities, self.info.name)
        return self._prompts.rows_from_generate(input_ids, model_kwargs)

    def resume(self, prompt: Prompt, prefix: Prefix, pictures: Sequence[bytes]) -> Prompt:
        """A conversation's next prompt, on the cache of what it has in common with the last one
        (see `prefix.py`); as it is where nothing can be shared.

        Args:
            prompt: what `prepare` made of the whole conversation.
            prefix: what `prefix_after` made of the last one.
            pictures: digests of the prompt's pictures, in order.
        """
        if self.family.own_masks:  # a prompt whose tokens see each other both ways has no beginning
            return prompt
        return resume(
            prompt,
            prefix,
            pictures,
            picture_ids=self._picture_ids,
            picture_layers=self._capabilities.picture_layers,
            cuts=self._encoder.cuts and not self._encoder.mixes(prompt.media),
            two_way=self.family.two_way,
            weights=self._encoder.weights(),
        )

    def prefix_after(
        self,
        prompt: Prompt,
        ids: Ints,
        cache: Any,
        *,
        pictures: Sequence[bytes],
        before: Sequence[Mark],
    ) -> Prefix:
        """What a conversation has read once `prompt` was answered; see `prefix.py`."""
        weights = self._encoder.weights()
        return prefix_after(prompt, ids, cache, pictures=pictures, before=before, weights=weights)

    def check_needs(self, needs: Needs) -> None:
        """Refuse a drafter that reads what this model does not show (see `probe.py`)."""
        check_needs(self, needs)

    def room(self, prompt: Prompt) -> int | None:
        """Tokens that fit behind a prompt in the cache it brings; raises as `given.py` says."""
        return room_of(prompt, self.info.name, self._capabilities)

    def weights(self) -> TargetWeights:
        """See `weights.py`.

        Raises:
            UnsupportedTarget: its embedding or head is more than a table.
        """
        return weights_of(self.model, self.info.name)

    @torch.no_grad()
    def prefill(self, prompt: Prompt, needs: Needs) -> tuple[SequenceState, Prefill]:
        """Read the prompt once (see `prefill.py`).

        Raises:
            UnsupportedTarget: attention was asked for and cannot be seen, or the model was changed.
        """
        if needs.visual_attention and not self._packs.last_layer:
            raise unseen(self.info.name)
        check_unchanged(self.model, self._capabilities, self.info.name)
        return read_prompt(
            self.model,
            self._capabilities,
            prompt,
            needs,
            family=self.family,
            encoder=self._encoder,
            media_ids=self.info.media_ids,
            picture_ids=self._picture_ids,
            last_layer=self._packs.last_layer if needs.visual_attention else (),
        )

    def read_attention(self, prompt: Prompt, needs: Needs) -> tuple[Prefill, Ints, Floats]:
        """Read a prompt and look at its attention on pictures.

        Args:
            prompt: without a cache.
            needs: see `prefill`.

        Returns:
            What `prefill` brings; [m] the positions where features of pictures stand; and [L, m]
            the last layer's attention of every token on each of them, mean over heads.

        Raises:
            UnsupportedTarget: its attention cannot be seen.
        """
        pictures = np.flatnonzero(np.isin(prompt.ids, list(self._picture_ids))).astype(np.int32)
        if not self._packs.last_layer:
            raise unseen(self.info.name)
        with columns_watched(self._packs.last_layer, torch.from_numpy(pictures).long()) as watched:
            state, prefill = self.prefill(prompt, needs)
        state.close()
        if watched.weights is None or len(watched.weights) != len(prompt):
            raise unseen(self.info.name)
        return prefill, pictures, watched.weights.cpu().numpy()

    def forward(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run one pack per sequence (see `packs.py`)."""
        return self._packs.forward(states, trees, needs)

    def grow(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that a tree has gained since the last forward (see `packs.py`)."""
        return self._packs.grow(state, tree, needs)

    def keep(self, state: SequenceState, path: Ints) -> None:
        """Keep the root and the accepted path of the last pack (see `packs.py`)."""
        self._packs.keep(state, path)

    def drop(self, state: SequenceState) -> None:
        """Forget the last pack, its root too (see `packs.py`)."""
        self._packs.drop(state)

    def release(self, state: SequenceState) -> Any:
        """End a sequence and hand its cache back, behaving as stock's own."""
        return self._packs.release(state)

    def decode(self, ids: Sequence[int] | Ints) -> str:
        """Text of ids, special tokens left out."""
        text: str = self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
        return text

    def detach(self) -> None:
        """Put the training flags back, those of parts included."""
        for module in self._training:
            module.training = True

    def _probe(self) -> None:
        """Fill a real cache with two tokens and look at what it is made of: layers and states are
        created by the first forward, so nothing earlier tells.
        """
        text = (i for i in range(self.info.vocab_size) if i not in self.info.media_ids)
        state, _ = self.prefill(self.prompt_from_ids(list(islice(text, 2))), Needs())
        try:
            caches.check_cache(state.cache, self.info.name, self._capabilities.states)
        finally:
            state.close()

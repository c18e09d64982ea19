"""The one implementation of `Target`: an unpatched Hugging Face model as prompts and packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from eyespan.errors import InputError, UnsupportedTarget
from eyespan.target import cache as caches
from eyespan.target import replay, states
from eyespan.target.attention import (
    Watched,
    columns_watched,
    last_layer_modules,
    row_watched,
    unseen,
)
from eyespan.target.base import Message, Prompt, SequenceState, TargetInfo
from eyespan.target.batch import SharedCache, forward_rows
from eyespan.target.capabilities import Capabilities, check_unchanged, inspect_model
from eyespan.target.extras import hidden_states
from eyespan.target.families import family_of
from eyespan.target.features import Encoder
from eyespan.target.given import room_of
from eyespan.target.images import Picture, open_pictures
from eyespan.target.inputs import PromptMaker
from eyespan.target.media import eos_ids_of, media_ids_of, picture_ids_of
from eyespan.target.prefill import read_prompt
from eyespan.target.prefix import Mark, Prefix, prefix_after, resume
from eyespan.target.probe import check_needs
from eyespan.target.rows import top_rows
from eyespan.target.states import StateTree
from eyespan.target.static import WIDTHS, Passes
from eyespan.target.tree_forward import call_model, forward_tree, step_inputs
from eyespan.target.video import Clip, Film, Video, open_videos
from eyespan.target.weights import TargetWeights, weights_of
from eyespan.types import Floats, Ints, Needs, PackedTree, Prefill, TargetOut, empty_ints


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
        self._shared = SharedCache(model.config)
        if found.states == "trees":
            states.install(model)
        self._picture_ids = picture_ids_of(model.config)
        self._encoder = Encoder(model, self.family, self._picture_ids)
        self._prompts = PromptMaker(model, self.processor, self.family, self.info, found)
        self._passes: Passes | None = None
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
        self._passes = Passes(
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
        if self._passes is not None:
            check_unchanged(self.model, self._capabilities, self.info.name)
            try:
                self._passes.ready(self, most)
            except UnsupportedTarget:
                self._passes = None
                raise
            finally:
                widths = self._passes.widths if self._passes else ()
                self.info = replace(self.info, passes=widths)

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

    @cached_property
    def _last_layer(self) -> tuple[torch.nn.Module, ...]:
        """Where attention is looked at; found when somebody asks first."""
        return last_layer_modules(self.model, self._capabilities.layers)

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
        if needs.visual_attention and not self._last_layer:
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
            last_layer=self._last_layer if needs.visual_attention else (),
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
        if not self._last_layer:
            raise unseen(self.info.name)
        with columns_watched(self._last_layer, torch.from_numpy(pictures).long()) as watched:
            state, prefill = self.prefill(prompt, needs)
        state.close()
        if watched.weights is None or len(watched.weights) != len(prompt):
            raise unseen(self.info.name)
        return prefill, pictures, watched.weights.cpu().numpy()

    @torch.no_grad()
    def forward(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run one pack per sequence: all in one call where `info.one_pass` says so, else one call
        each, since a window counts cached slots and a recurrent state counts calls.

        Args:
            states: different sequences, each kept since its last forward.
            trees: one pack each, `tokens[0]` the root; one node is a plain step.
            needs: only `hidden_layers` and `visual_attention` matter here; rows always come.
        """
        if any(state.pending for state in states):
            raise RuntimeError("keep() must follow every forward(): the last pack is still cached")
        if len(states) > 1 and self.info.one_pass and all(map(SharedCache.takes, states)):
            return self._run_rows(states, trees, needs)
        return [self._run(*pair, needs) for pair in zip(states, trees, strict=True)]

    @torch.no_grad()
    def grow(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that a tree has gained since the last forward; the others stay cached.

        Args:
            state: after a forward over the first nodes of `tree`.
            tree: those nodes in the same order, then [m] new ones.
            needs: see `forward`.

        Returns:
            What the model says at the new nodes.
        """
        old = state.pending
        if self._capabilities.full_attention and state.padding is None:
            return self._run(state, tree, needs)
        self.drop(state)  # a window counts what is cached, siblings too: run the whole tree again
        out = self._run(state, tree, needs)
        return replace(
            out,
            row_ids=out.row_ids[old:],
            row_logits=out.row_logits[old:],
            logits=out.logits[old:],
        )

    def _run(self, state: SequenceState, tree: PackedTree, needs: Needs) -> TargetOut:
        """Run the nodes that are not in the cache yet."""
        with row_watched(self._last_layer if needs.visual_attention else (), row=0) as watched:
            passes = None if needs.visual_attention else self._passes
            output = None if passes is None else passes.run(state, tree)
            if output is None:
                output = forward_tree(
                    self.model,
                    self._capabilities,
                    self.family,
                    state,
                    tree,
                    hidden=bool(needs.hidden_layers),
                )
        state.pending = len(tree)
        row_ids, row_logits = top_rows(output.logits[0])
        return TargetOut(
            row_ids=row_ids,
            row_logits=row_logits,
            logits=output.logits[0],
            extras=self._extras(output, watched, state, len(tree), needs),
        )

    def _run_rows(
        self, states: Sequence[SequenceState], trees: Sequence[PackedTree], needs: Needs
    ) -> list[TargetOut]:
        """Run all packs in one call."""
        with row_watched(self._last_layer if needs.visual_attention else (), row=0) as watched:
            output = forward_rows(
                self.model,
                self._capabilities,
                self.family,
                self._shared,
                states,
                trees,
                hidden=bool(needs.hidden_layers),
            )
        sizes = [len(tree) for tree in trees]
        logits = torch.cat([output.logits[at, :size] for at, size in enumerate(sizes)])
        row_ids, row_logits = top_rows(logits)
        outs, first = [], 0
        for at, (state, tree) in enumerate(zip(states, trees, strict=True)):
            state.pending, state.pack, state.undo = len(tree), tree.tokens, None
            mine = slice(first, first := first + len(tree))
            outs.append(
                TargetOut(
                    row_ids=row_ids[mine],
                    row_logits=row_logits[mine],
                    logits=logits[mine],
                    extras=self._extras(output, watched, state, len(tree), needs, at),
                )
            )
        return outs

    def _extras(
        self,
        output: Any,
        watched: Watched,
        state: SequenceState,
        size: int,
        needs: Needs,
        row: int = 0,
    ) -> dict[str, Any]:
        """What else was asked for, of one row of a call."""
        extras: dict[str, Any] = {}
        if needs.hidden_layers:
            extras["hidden"] = hidden_states(output, needs.hidden_layers, row)[:size]
        if needs.visual_attention:
            seen, name = state.length + size, self.info.name
            extras["visual_attention"] = watched.share(state.pictures, seen, name, row)
        return extras

    @torch.no_grad()
    def keep(self, state: SequenceState, path: Ints) -> None:
        """Keep the root and the accepted path of the last pack, drop its other nodes.

        Args:
            state: after a forward.
            path: [a] packed indices, ascending, root excluded. To drop a committed last token from
                the cache (it becomes the next root), leave it out.
        """
        if state.row is not None:
            state.row.keep(path)
        elif self._capabilities.states == "chains":
            self._keep_chain(state, path)
        else:
            skip = self._capabilities.picture_layers
            caches.keep_path(state.cache, state.length, state.pending, path, skip)
            if isinstance(state.undo, StateTree):
                state.undo.keep(state.cache, path)
            elif self._capabilities.states == "trees":
                replay.settle(state.cache, state.pending)
        kept = 1 + len(path)
        state.length += kept
        state.next_position = state.next_position + kept
        if state.padding is not None:
            state.padding = torch.nn.functional.pad(state.padding, (0, kept), value=True)
        state.pending, state.undo = 0, None
        if len(state.owed) > replay.MOST_OWED:
            self._pay(state)

    def drop(self, state: SequenceState) -> None:
        """Forget the last pack, its root too: as if its forward had never been. Not for models
        with recurrent states, which a pack of one node moves on for good.
        """
        if self.info.recurrent:
            raise RuntimeError("a recurrent state does not forget a whole pack")
        if state.row is not None:
            state.row.drop()
        else:
            caches.drop(state.cache, state.pending, self._capabilities.picture_layers)
        state.pending = 0

    def _keep_chain(self, state: SequenceState, path: Ints) -> None:
        """Keep the first nodes of a chain; states that have seen more go back to where they were
        and are owed what was committed since.
        """
        fed = len(state.owed) + state.pending
        if len(path) == state.pending - 1:
            replay.settle(state.cache, fed)
            caches.drop(state.cache, 0)
            state.owed = empty_ints()
            return
        state.undo.restore(state.cache)
        caches.drop(state.cache, fed)
        state.owed = np.concatenate([state.owed, state.pack[: 1 + len(path)]])

    def _pay(self, state: SequenceState) -> None:
        """Feed the owed tokens alone."""
        owed, state.owed = state.owed, empty_ints()
        count = len(owed)
        inputs: dict[str, Any] = {**step_inputs(state, count)}
        tokens = torch.from_numpy(owed.astype(np.int64))[None].to(self._capabilities.device)
        call_model(
            self.model,
            self._capabilities,
            self.family,
            state.cache,
            input_ids=tokens,
            position_ids=state.next_position + torch.arange(-count, 0, device=tokens.device),
            mask=state.padding,
            logits_to_keep=1,
            **inputs,
        )
        replay.settle(state.cache, count)
        caches.drop(state.cache, 0)

    @torch.no_grad()
    def release(self, state: SequenceState) -> Any:
        """End a sequence and hand its cache back, behaving as stock's own. Guesses of a round that
        an error cut short are dropped.
        """
        if state.pending:
            self.keep(state, empty_ints())
        if len(state.owed):
            self._pay(state)
        cache = state.cache
        caches.end_recording(cache)
        if state.places is not None:
            state.places.leave(cache)
            state.places = None
        state.close()
        return cache

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

"""One call of an enabled model's `generate()`: stock's arguments in, stock's result out."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch

from eyespan.budget import Budget
from eyespan.drafters.base import Drafter
from eyespan.draw import Choice, Chooser, History, Lots, from_stream, greedy
from eyespan.errors import EyespanError, UnsupportedRequest, UnsupportedTarget
from eyespan.generation import Engine
from eyespan.rejection import Verification
from eyespan.sequence import Running
from eyespan.target.base import Prompt, TargetInfo
from eyespan.target.families import family_of
from eyespan.target.loading import load_target
from eyespan.target.shaping import (
    dictionary_result,
    needs_second_answer,
    processors_of_row,
    stacked,
    works_row_by_row,
)
from eyespan.types import Cut, Ints, Request

log = logging.getLogger("eyespan")


def _check_writes_from_ids(model: Any) -> None:
    """Known from the row alone, before loading reads a first token with the model."""
    config = getattr(model, "config", None)
    if hasattr(config, "model_type") and family_of(config).wraps:
        raise UnsupportedTarget(
            f"speculation in generate() of '{type(model).__name__}'",
            found="it starts generate() of the language model inside it, with embeddings",
            needed="a model whose own generate() writes from ids is needed",
            todo="Use eyespan.load(model).generate(...), which takes it.",
        )


class Speculation:
    """An engine behind `generate()`.

    Args:
        model: a live transformers model.
        plain: the class whose `_sample` is stock's loop.
        drafter, budget, drafter_options, verification: see `dropin.enable`.

    Attributes:
        engine: target, drafter and loop.
        fallbacks: calls that ran stock's loop, by reason.
    """

    def __init__(
        self,
        model: Any,
        plain: Any,
        drafter: str | Drafter,
        budget: Budget,
        drafter_options: dict[str, Any],
        verification: Verification = "walk",
    ) -> None:
        _check_writes_from_ids(model)
        target = load_target(model)
        try:
            self.engine = Engine(
                target, drafter, budget=budget, verification=verification, **drafter_options
            )
        except BaseException:
            target.detach()
            raise
        self._plain = plain
        self.fallbacks: Counter[str] = Counter()

    def run(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode one `generate()` call; ids, scores and cache are those of stock's loop."""
        try:
            self._check(
                model, input_ids, logits_processor, generation_config, synced_gpus, model_kwargs
            )
            if len(input_ids) > 1:
                _check_batch(logits_processor, stopping_criteria, generation_config, streamer)
            # `generate()` has made criteria of stop strings by now; their tokenizer tags along
            inputs = {name: value for name, value in model_kwargs.items() if name != "tokenizer"}
            prompts = self.engine.target.prompts_from_generate(input_ids, inputs)
        except EyespanError as reason:
            self._fall_back(reason)
            return self._plain._sample(
                model,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus=synced_gpus,
                streamer=streamer,
                **model_kwargs,
            )
        answers = [
            _Answer(ids[None], stopping_criteria, generation_config, streamer) for ids in input_ids
        ]
        shapes = [logits_processor]
        if len(answers) > 1:
            shapes = [processors_of_row(logits_processor, row) for row in range(len(answers))]
        info = self.engine.target.info
        batch = [
            Running(
                answer.request(prompt.ids, info),
                on_token=answer.on_token,
                draw=answer.draw(shape),
                max_context=info.max_context,
            )
            for answer, prompt, shape in zip(answers, prompts, shapes, strict=True)
        ]
        if self.engine.rejection:
            for running, answer in zip(batch, answers, strict=True):
                running.lots = answer.lots(running.draw)
        cache = self._decode(batch, prompts)
        if streamer is not None:
            streamer.end()
        if len(answers) > 1:
            ids = [answer.ids for answer in answers]
            return stacked(ids, generation_config._pad_token_tensor)
        return answers[0].result(cache)

    def _decode(self, batch: list[Running], prompts: list[Prompt]) -> Any:
        """Run all sequences to their ends; returns the cache of a single one."""
        decoder, cache = self.engine.decoder, None
        left = batch
        try:
            for running, prompt in zip(batch, prompts, strict=True):
                decoder.start(running, prompt)
            while left := [running for running in left if running.finish is None]:
                decoder.step(left)
                for running in left:
                    if running.finish is not None and len(batch) > 1:
                        running.state.close()
        finally:
            for running in batch:
                if len(batch) == 1 and running.state is not None:
                    cache = self.engine.target.release(running.state)
                elif running.state is not None:
                    running.state.close()
        return cache

    def _check(
        self,
        model: Any,
        input_ids: Any,
        processors: Any,
        config: Any,
        synced_gpus: bool,
        kwargs: dict[str, Any],
    ) -> None:
        """Refuse what this loop does not honour; the error's `found` names the reason."""
        dictionary = config.return_dict_in_generate
        reasons = {
            "a copy of the enabled model": model is not self.engine.target.model,
            "embeddings instead of ids": input_ids.shape[1] == 0 or "inputs_embeds" in kwargs,
            "attentions or hidden states of every token": dictionary
            and (config.output_attentions or config.output_hidden_states),
            "classifier-free guidance": any(map(needs_second_answer, processors)),
            "chunked prefill": config.prefill_chunk_size is not None,
            "greedy decoding, where guesses are verified by rejection": self.engine.rejection
            and not config.do_sample,
            "decoding without a cache": not kwargs.get("use_cache", True),
            "no length limit": config.max_length is None,
            "distributed generation": synced_gpus,
        }
        for reason, true in reasons.items():
            if true:
                raise _not_honoured(reason)

    def _fall_back(self, reason: EyespanError) -> None:
        if reason.found not in self.fallbacks:
            log.warning("%s", reason)
        self.fallbacks[reason.found] += 1


def _check_batch(processors: Any, criteria: Any, config: Any, streamer: Any) -> None:
    """Refuse what sequences cannot have that go on at a pace of their own."""
    pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    stops = any(hasattr(criterion, "stop_strings") for criterion in criteria)
    reasons = {
        "sampling of more than one sequence": config.do_sample,  # one stream of numbers for all
        "a streamer for more than one sequence": streamer is not None,
        "scores or a cache of more than one sequence": config.return_dict_in_generate,
        "processors or criteria that may look across sequences": not works_row_by_row(
            processors, criteria
        ),
        "stop strings without an end id for more than one sequence": stops and not pads,
    }
    for reason, true in reasons.items():
        if true:
            raise _not_honoured(reason)


def _not_honoured(reason: str) -> UnsupportedRequest:
    return UnsupportedRequest(
        "speculation in generate()",
        found=reason,
        needed="sequences with ids, a cache and a length limit, whose every token depends on its "
        "own forward alone",
        todo="Stock's own loop answers this call.",
    )


class _Answer:
    """The growing answer as `generate()` shows it to criteria, processors and the streamer."""

    def __init__(self, input_ids: Any, criteria: Any, config: Any, streamer: Any) -> None:
        self._criteria, self._config, self._streamer = criteria, config, streamer
        self._limit = max(config.max_length, input_ids.shape[1] + 1)
        self._room = self._limit - input_ids.shape[1]
        self._history = History(input_ids, self._limit)
        dictionary = config.return_dict_in_generate
        self._scores: tuple[Any, ...] | None = () if dictionary and config.output_scores else None
        self._logits: list[Any] | None = [] if dictionary and config.output_logits else None

    def request(self, prompt_ids: Ints, info: TargetInfo) -> Request:
        """The request behind the call; an end id outside the vocabulary, as -1, ends nothing."""
        ends = self._config._eos_token_tensor
        ids = () if ends is None else ends.flatten().tolist()
        return Request(
            id="generate",
            prompt_ids=prompt_ids,
            media_ids=info.media_ids,
            eos_ids=frozenset(end for end in ids if 0 <= end < info.vocab_size),
            max_new_tokens=self._room,
        )

    def draw(self, processors: Any) -> Chooser | None:
        """The target's choice as stock makes it, with torch's global random numbers; None when
        that is a plain argmax of which nobody wants the scores.
        """
        keeps = self._scores is not None or self._logits is not None
        if not self._config.do_sample and not len(processors) and not keeps:
            return None
        pick = from_stream(None) if self._config.do_sample else greedy
        return Chooser(self._history, processors, pick, self._keep if keeps else None)

    def lots(self, chooser: Any) -> Lots:
        """Distributions and numbers for verification by rejection; torch's global numbers."""
        key = int(torch.randint(2**62, (1,)))
        return Lots(chooser, self._config.temperature or 1.0, None, key)

    def on_token(self, token: int, _source: str) -> Cut | None:
        """Show a committed token around; stop where a criterion says so."""
        self._history.append(token)
        if self._streamer is not None:
            self._streamer.put(torch.tensor([token]))
        stopped = self._criteria(self._history.ids, self._scores)
        return "stop" if bool(stopped.all()) else None

    @property
    def ids(self) -> torch.Tensor:
        """[1, P] prompt and answer."""
        return self._history.ids

    def result(self, cache: Any) -> Any:
        """The ids [1, P], or the dictionary that was asked for."""
        if not self._config.return_dict_in_generate:
            return self._history.ids
        return dictionary_result(
            self._history.ids,
            scores=self._scores,
            logits=None if self._logits is None else tuple(self._logits),
            cache=cache,
        )

    def _keep(self, choice: Choice) -> None:
        if self._scores is not None:
            self._scores += (choice.scores,)
        if self._logits is not None:
            self._logits.append(choice.raw)

"""`load()` and the engine that people hold: generate, stream, decode plainly, close."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event, Lock
from time import perf_counter
from typing import Any, TypeVar

from eyespan.answer import Answer, Granularity
from eyespan.async_stream import AsyncStream
from eyespan.batching import Scheduler, Ticket, spread
from eyespan.budget import Budget, CostCurve
from eyespan.chat_session import Chat
from eyespan.checks import MAX_NEW_TOKENS, check_parts, check_scope
from eyespan.choosing import Choosing
from eyespan.cost import cost_curve
from eyespan.drafters import make_drafter, with_shipped_weights
from eyespan.drafters.base import Bound, Drafter, KnowsTasks
from eyespan.drawn import Drawn
from eyespan.engine import Decoder
from eyespan.errors import BatchError, ConfigError, ContextError, InputError
from eyespan.grammar import Grammars
from eyespan.policy import Policy
from eyespan.rejection import Verification, check_verification
from eyespan.sampling import Sampling
from eyespan.saved_memory import load_memory, save_memory
from eyespan.stream import Stream
from eyespan.target.adapter import HuggingFaceTarget
from eyespan.target.base import Message, Prompt
from eyespan.target.identity import identity_of
from eyespan.target.images import Picture
from eyespan.target.loading import load_target
from eyespan.target.probe import self_test
from eyespan.target.video import Clip, Film, Video
from eyespan.terms import terms_of
from eyespan.trace import Trace, trace_to
from eyespan.types import Generation, Request

AnswerKind = TypeVar("AnswerKind", bound=Answer)


def load(
    model: Any,
    drafter: str = "recap",
    dtype: Any = None,
    device: Any = None,
    budget: Budget = "auto",
    sampling: Sampling | None = None,
    verification: Verification = "walk",
    compiled: bool = False,
    **drafter_options: Any,
) -> Engine:
    """Load a model and a drafter.

    Args:
        model: "demo", a folder, a hub id, or a live transformers model.
        drafter: a name of `eyespan.drafters.DRAFTERS`; "none" decodes plainly.
        dtype: torch dtype or its name; None is float32 on a CPU, the checkpoint's own elsewhere.
        device: torch device or its name; None is CUDA when there is one.
        budget: "auto" (never knowingly slower than plain decoding), "fixed" (the method's
            published tree size) or the most nodes that "auto" may use.
        sampling: how tokens are chosen where a request does not say; greedy by default.
        verification: "walk" (seeds give plain decoding's tokens) or "rejection" (sampled requests
            and drafters that know their probabilities only; the same distribution, more guesses
            survive).
        compiled: compile the model's passes at a few fixed widths with torch.compile: faster steps
            of small models, with and without drafts, for tens of seconds a width at the first load.
        **drafter_options: fields of the drafter's config.

    Raises:
        ConfigError: unknown drafter, option or budget.
        InputError: the model folder lacks a part.
        UnsupportedTarget: the model cannot be verified in trees, or compiled passes were asked for
            and cannot be had.
        UnsupportedRequest: verification by rejection with a drafter that does not know its
            probabilities.
    """
    target = load_target(model, dtype=dtype, device=device, compiled=compiled)
    return Engine(
        target,
        drafter,
        budget=budget,
        sampling=sampling,
        verification=verification,
        **drafter_options,
    )


class Engine:
    """A target, a drafter and the loop. Threads may share it; rounds run one at a time.

    Args:
        target: what `load_target` returned.
        drafter: a name, or a drafter object.
        budget, sampling, verification: see `load`.
        **drafter_options: fields of the drafter's config, when `drafter` is a name.

    Raises:
        ConfigError, UnsupportedTarget: see `load`.
    """

    def __init__(
        self,
        target: HuggingFaceTarget,
        drafter: str | Drafter = "recap",
        *,
        budget: Budget = "auto",
        sampling: Sampling | None = None,
        verification: Verification = "walk",
        **drafter_options: Any,
    ) -> None:
        check_parts(target, drafter, drafter_options)
        self.target = target
        self.sampling = Sampling.of({}, sampling)
        if isinstance(drafter, str):
            drafter_options = with_shipped_weights(drafter, target, drafter_options)
        self.drafter = (
            make_drafter(drafter, vocab_size=target.info.vocab_size, **drafter_options)
            if isinstance(drafter, str)
            else drafter
        )
        self.rejection = check_verification(verification, self.drafter)
        if isinstance(self.drafter, Bound):
            self.drafter.bind(target)
        target.check_needs(self.drafter.needs)
        policy = self._policy(budget)
        if isinstance(target, HuggingFaceTarget):
            most = policy.ask + self.drafter.extra_nodes if policy.ask else 0
            target.ready(1 + min(most, policy.cap))
        if policy.ask > 0:
            self_test(target)
        if policy.auto:
            curve = cost_curve(target, self.drafter.needs)
            policy = self._policy(budget, curve)
        self.policy = policy
        self.decoder = Decoder(target, self.drafter, policy)
        self.lock = Lock()
        """Held while a round runs."""
        self._numbers = count()
        self._grammars: Grammars | None = None

    def _policy(self, budget: Budget, curve: CostCurve | None = None) -> Policy:
        info, drafter = self.target.info, self.drafter
        one_pass, chains = info.one_pass, info.drafts == "chains"
        if self.rejection:
            size = info.vocab_size
            return Drawn(budget, drafter, curve, vocab_size=size, one_pass=one_pass, chains=chains)
        return Policy(budget, drafter, curve, one_pass=one_pass, chains=chains)

    def generate(
        self,
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture] = (),
        **options: Any,
    ) -> Generation:
        """Answer a prompt; takes what `stream` takes and returns when the answer is whole."""
        with self.stream(prompt, images, **options) as stream:
            return stream.finish()

    def stream(
        self,
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture] = (),
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        scope: str | None = None,
        trace: str | Path | Trace | None = None,
        cancel: Event | None = None,
        granularity: Granularity = "block",
        sampling: Sampling | None = None,
        videos: Sequence[Film | Video | Clip] = (),
        **options: Any,
    ) -> Stream:
        """Answer a prompt while it is written.

        Args:
            prompt: a user's text, chat messages in the transformers format, or what the target's
                own `prepare` and `prompt_from_ids` made (its pictures are in it already).
            images: files or pictures, in the order of the prompt's placeholders (before the text
                when the prompt is a plain string).
            max_new_tokens: exact upper bound; cut further where the model's context ends, or a
                static cache that the prompt brings.
            stop: strings that end the answer and are not part of it.
            scope: memory scope; requests learn from each other only inside one scope.
            trace: a file to write (anew), or an open `Trace` that takes many requests.
            cancel: set it from anywhere to end the answer after the current round.
            granularity: "block" gives a chunk a round, "token" one a token; the text is the same.
            sampling: how tokens are chosen; None is the engine's own.
            videos: files, folders or lists of frames, or `eyespan.Video`s that say how to sample
                them, in the order of the prompt's placeholders (before a plain text, behind its
                pictures).
            **options: fields of `Sampling`, on top of it (temperature=0.7, top_p=0.9, seed=1,
                repetition_penalty=1.1, logprobs=5, response_format={...}, ...).

        Raises:
            InputError, ContextError, ConfigError, UnsupportedRequest, OutputError: before the
                first forward.
        """
        return self._open(
            Stream,
            prompt,
            images,
            max_new_tokens=max_new_tokens,
            stop=stop,
            scope=scope,
            trace=trace,
            cancel=cancel,
            granularity=granularity,
            sampling=sampling,
            videos=videos,
            **options,
        )

    def astream(
        self,
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture] = (),
        **options: Any,
    ) -> AsyncStream:
        """Answer a prompt for asyncio; takes what `stream` takes.

        Raises:
            EyespanError: with the first chunk, before the first forward.
        """
        options["cancel"] = cancel = options.get("cancel") or Event()
        return AsyncStream(lambda: self.stream(prompt, images, **options), cancel)

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[Message] | Prompt],
        images: Sequence[Sequence[Picture]] | None = None,
        *,
        videos: Sequence[Sequence[Film | Video | Clip]] | None = None,
        n: int = 1,
        each: Sequence[Mapping[str, Any]] | None = None,
        max_rows: int = 8,
        trace: str | Path | Trace | None = None,
        **options: Any,
    ) -> list[Generation]:
        """Answer many prompts, several at a time; each answer is what `generate` gives alone.

        An answer that ends makes room for the next prompt. One that fails (a picture, a processor)
        leaves the others alone.

        Args:
            prompts: what `generate` takes, any number of them.
            images: each prompt's own pictures; None where no prompt has any.
            videos: each prompt's own videos.
            n: answers to every prompt, standing side by side in the result. The j-th of them is
                drawn with the seed + j, from a generator of its own: not the numbers that
                `model.generate(num_return_sequences=n)` would use, which deals one stream's
                numbers out to the rows.
            each: options of single prompts (limits, seeds, stops, scopes), on top of `options`.
            max_rows: answers written at once; each holds a cache.
            trace: one file for all.
            **options: see `stream`. Processors and criteria are copied, so that their states
                start anew with every answer.

        Raises:
            ConfigError: lists of different lengths, or a bad `n` or `max_rows`.
            BatchError: some requests failed; its `results` holds all answers and errors.
        """
        requests = spread(prompts, images, n, each, options, self.sampling, videos)
        results: list[Any] = [None] * len(requests)
        with ExitStack() as stack:
            sink = trace_to(trace)
            if sink is not None and sink is not trace:
                stack.enter_context(sink)
            scheduler = stack.enter_context(Scheduler(self, max_rows=max_rows))
            left = deque(enumerate(requests))
            while left or scheduler.waiting or scheduler.running:
                while left and scheduler.has_free_row:
                    at, (prompt, pictures, asked) = left.popleft()

                    def store(ticket: Ticket, at: int = at) -> None:
                        results[at] = ticket.error or ticket.generation

                    try:
                        scheduler.submit(prompt, pictures, trace=sink, on_end=store, **asked)
                    except Exception as error:
                        results[at] = error
                scheduler.step()  # all its rows may end at once while more prompts are left here
        if any(isinstance(result, Exception) for result in results):
            raise BatchError(results)
        return results

    def _open(
        self,
        kind: type[AnswerKind],
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture] = (),
        *,
        videos: Sequence[Film | Video | Clip] = (),
        **options: Any,
    ) -> AnswerKind:
        """Check a request whole and make its answer ready; see `stream`."""
        started = perf_counter()
        terms = terms_of(self.sampling, **options)
        inputs = self._inputs(prompt, images, videos)
        request = self._request(inputs, terms.max_new_tokens, terms.scope)
        choosing = Choosing(
            self.target, terms.sampling, inputs, request, self._grammar_compiler, self.rejection
        )
        sink = trace_to(terms.trace)
        return kind(
            self,
            request,
            inputs,
            terms.stops,
            choosing,
            encode=perf_counter() - started,
            trace=sink,
            close_trace=sink is not terms.trace,
            cancel=terms.cancel,
            by_token=terms.granularity == "token",
        )

    def chat(self, system: str | None = None, **options: Any) -> Chat:
        """Begin a conversation, whose earlier turns are read once.

        Args:
            system: what the model is told before all turns; None leaves its template's own.
            **options: of `stream`, for every turn that does not say otherwise. Processors and
                criteria are copied, so that their states start anew with every turn; a trace is
                an open one.

        Raises:
            InputError: the model's folder has no chat template.
            ConfigError: an unknown option or a bad value.
        """
        if isinstance(terms_of(self.sampling, **options).trace, (str, Path)):
            raise ConfigError(
                "trace of a chat",
                found="a path, to which every turn would write anew",
                needed="an open trace takes many turns",
                todo="Pass trace=eyespan.Trace(path), or name a path with a single turn.",
            )
        if not getattr(self.target.processor, "chat_template", None):
            raise InputError(
                f"a chat with '{self.target.info.name}'",
                found="the model's folder has no chat template",
                needed="one is needed to write several turns as text",
                todo="Use generate(), or add chat_template.jinja to the folder.",
            )
        return Chat(self, system, options)

    def _inputs(
        self,
        prompt: str | Sequence[Message] | Prompt,
        images: Sequence[Picture],
        videos: Sequence[Film | Video | Clip],
    ) -> Prompt:
        if not isinstance(prompt, Prompt):
            return self.target.prepare(prompt, images, videos)
        if images or videos:
            raise InputError(
                f"{len(images)} image(s) and {len(videos)} video(s)"
                if videos
                else f"{len(images)} image(s)",
                found="the prompt is prepared already",
                needed="a prepared prompt holds its own pictures",
                todo="Pass the images to `prepare`, or the prompt as text.",
            )
        return prompt

    def _grammar_compiler(self) -> Grammars:
        if self._grammars is None:
            info = self.target.info
            self._grammars = Grammars(self.target.tokenizer, info.vocab_size, info.eos_ids)
        return self._grammars

    def reset(self) -> None:
        """Forget what the drafter shares between requests."""
        with self.lock:
            self.drafter.reset()

    def new_task(self) -> None:
        """A task boundary, for drafters whose memory ends with a task."""
        with self.lock:
            if isinstance(self.drafter, KnowsTasks):
                self.drafter.new_task()

    def save_memory(self, path: str | os.PathLike[str], scope: str | None = None) -> None:
        """Write what the drafter remembers of one memory scope, as a folder of safetensors and
        JSON. A memory that is there already is replaced, all or nothing.

        Args:
            path: the memory's folder.
            scope: which scope; None is the engine's own.

        Raises:
            UnsupportedRequest: the drafter keeps nothing between requests.
            InputError: the scope holds nothing yet, or the folder holds something else.
            OutputError: the folder cannot be written.
        """
        check_scope(scope)
        with self.lock:
            save_memory(path, self.drafter, scope, identity_of(self.target))

    def load_memory(self, path: str | os.PathLike[str], scope: str | None = None) -> None:
        """Replace what the drafter remembers of one memory scope by a saved memory.

        Args:
            path: the memory's folder.
            scope: where it goes; None is the engine's own scope.

        Raises:
            UnsupportedRequest: the drafter keeps nothing between requests.
            InputError: damaged, too large, of another target or other settings; nothing is lost.
        """
        check_scope(scope)
        with self.lock:
            load_memory(path, self.drafter, scope, identity_of(self.target))

    def _request(self, inputs: Prompt, max_new_tokens: int, scope: str | None) -> Request:
        info, length = self.target.info, len(inputs.ids)
        slots = self.target.room(inputs)
        if length >= info.max_context:
            raise ContextError(
                f"a prompt of {length} tokens",
                found="it fills the model's context",
                needed=f"less than {info.max_context} tokens",
                todo="Shorten the prompt, or use fewer or smaller images.",
            )
        return Request(
            id=f"r{next(self._numbers)}",
            prompt_ids=inputs.ids,
            media_ids=info.media_ids,
            eos_ids=info.eos_ids,
            max_new_tokens=min(max_new_tokens, info.max_context - length, slots or MAX_NEW_TOKENS),
            scope=scope,
            conversation=inputs.conversation,
        )

"""transformers' own logits processors for a request's options, in the order of its `generate()`.

Using its classes, not copies of them, makes every option mean what it means there. Two penalties
that transformers lacks stand here beside them. All act on one row, the one that the verify walk is
about to choose from, never on the nodes of a tree that it does not visit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.generation import logits_process as hf_logits
from transformers.generation.utils import GenerateDecoderOnlyOutput

from eyespan.counts import whole
from eyespan.errors import ConfigError
from eyespan.sampling import Sampling


def make_processors(
    sampling: Sampling,
    *,
    prompt_ids: Tensor,
    padding: Tensor | None,
    eos_ids: Sequence[int],
    max_length: int,
    vocab_size: int,
    grammar: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Any:
    """A `LogitsProcessorList` for one request.

    Args:
        sampling: the options.
        prompt_ids: [1, L] on the device where logits will be shaped.
        padding: [1, L] bool, False at left padding, or None.
        eos_ids: ids that end the answer.
        max_length: prompt and answer at most.
        vocab_size: of the language-model head.
        grammar: masks what a grammar forbids; acts after the caller's own processors.

    Raises:
        ConfigError: a value that its processor does not take, or an id outside the vocabulary.
    """
    _check_ids(sampling, vocab_size)
    made = hf.LogitsProcessorList()
    parts = _Parts(sampling, prompt_ids, padding, sorted(eos_ids), max_length, vocab_size)
    for name, make in parts.processors():
        made.append(_made(name, make))
    made.extend(sampling.logits_processors)
    if grammar is not None:
        made.append(grammar)
    if sampling.draws:
        for name, make in parts.cuts():
            made.append(_made(name, make))
    for name, make in parts.last():
        made.append(_made(name, make))
    return made


Part = tuple[str, Callable[[], Any]]


class _Parts:
    """Which processors a request needs; each a name and how to make it."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: Tensor,
        padding: Tensor | None,
        eos_ids: list[int],
        max_length: int,
        vocab_size: int,
    ) -> None:
        self.s, self.prompt, self.vocab_size = sampling, prompt_ids, vocab_size
        self.length, self.max_length = prompt_ids.shape[1], max_length
        self.device = prompt_ids.device
        self.eos_ids = eos_ids
        self.eos = torch.tensor(eos_ids, device=self.device)
        self.skip = None if padding is None else (padding != 0).int().argmax(dim=1)

    def processors(self) -> Iterator[Part]:
        """What shapes scores in greedy decoding too."""
        s, device = self.s, self.device
        if s.sequence_bias:
            bias = dict(s.sequence_bias)
            yield "sequence_bias", lambda: hf.SequenceBiasLogitsProcessor(sequence_bias=bias)
        if s.logit_bias:
            single = {(int(token),): float(add) for token, add in s.logit_bias.items()}
            yield "logit_bias", lambda: hf.SequenceBiasLogitsProcessor(sequence_bias=single)
        if s.encoder_repetition_penalty not in (None, 1):
            yield (
                "encoder_repetition_penalty",
                lambda: hf.EncoderRepetitionPenaltyLogitsProcessor(
                    penalty=float(s.encoder_repetition_penalty or 1), encoder_input_ids=self.prompt
                ),
            )
        if s.repetition_penalty not in (None, 1):
            yield (
                "repetition_penalty",
                lambda: hf.RepetitionPenaltyLogitsProcessor(
                    float(s.repetition_penalty or 1), prompt_ignore_length=self.skip
                ),
            )
        if s.presence_penalty or s.frequency_penalty:
            yield (
                "presence_penalty",
                lambda: CountPenalty(
                    self.length,
                    presence=s.presence_penalty or 0,
                    frequency=s.frequency_penalty or 0,
                ),
            )
        if s.no_repeat_ngram_size:
            size = s.no_repeat_ngram_size
            yield "no_repeat_ngram_size", lambda: hf.NoRepeatNGramLogitsProcessor(size)
        if s.encoder_no_repeat_ngram_size:
            of_prompt = s.encoder_no_repeat_ngram_size
            yield (
                "encoder_no_repeat_ngram_size",
                lambda: hf.EncoderNoRepeatNGramLogitsProcessor(of_prompt, self.prompt),
            )
        if s.bad_words_ids:
            words = [list(word) for word in s.bad_words_ids]
            eos = self.eos if self.eos_ids else None
            yield "bad_words_ids", lambda: hf.NoBadWordsLogitsProcessor(words, eos)
        if s.min_length and self.eos_ids:
            least = s.min_length
            yield (
                "min_length",
                lambda: hf.MinLengthLogitsProcessor(least, self.eos, device=str(device)),
            )
        if s.min_new_tokens and self.eos_ids:
            new = s.min_new_tokens
            yield (
                "min_new_tokens",
                lambda: hf.MinNewTokensLengthLogitsProcessor(
                    self.length, new, self.eos, device=str(device)
                ),
            )
        if s.prefix_allowed_tokens_fn is not None:
            allowed = s.prefix_allowed_tokens_fn
            yield (
                "prefix_allowed_tokens_fn",
                lambda: hf.PrefixConstrainedLogitsProcessor(allowed, 1),
            )
        if s.forced_bos_token_id is not None:
            first = s.forced_bos_token_id
            yield "forced_bos_token_id", lambda: hf.ForcedBOSTokenLogitsProcessor(first)
        if s.forced_eos_token_id is not None:
            last = s.forced_eos_token_id
            yield (
                "forced_eos_token_id",
                lambda: hf.ForcedEOSTokenLogitsProcessor(
                    self.max_length,
                    list(last) if isinstance(last, Sequence) else int(last),
                    device=str(device),
                ),
            )
        if s.remove_invalid_values:
            yield "remove_invalid_values", hf.InfNanRemoveLogitsProcessor
        if s.exponential_decay_length_penalty is not None:
            decay = s.exponential_decay_length_penalty
            yield (
                "exponential_decay_length_penalty",
                lambda: hf.ExponentialDecayLengthPenalty(decay, self.eos, self.length),
            )
        if s.suppress_tokens:
            never = list(s.suppress_tokens)
            yield (
                "suppress_tokens",
                lambda: hf.SuppressTokensLogitsProcessor(never, device=str(device)),
            )
        if s.begin_suppress_tokens:
            not_first = list(s.begin_suppress_tokens)
            begin = self.length + (self.length <= 1 and s.forced_bos_token_id is not None)
            yield (
                "begin_suppress_tokens",
                lambda: hf.SuppressTokensAtBeginLogitsProcessor(
                    not_first, begin, device=str(device)
                ),
            )

    def cuts(self) -> Iterator[Part]:
        """What shapes the distribution that a token is drawn from."""
        s = self.s
        if s.temperature not in (None, 1):
            yield "temperature", lambda: hf.TemperatureLogitsWarper(float(s.temperature or 0))
        if s.top_h is not None:
            yield "top_h", lambda: hf_logits.TopHLogitsWarper(s.top_h)
        if s.top_k:
            yield "top_k", lambda: hf.TopKLogitsWarper(s.top_k)
        if s.top_p is not None and s.top_p < 1:
            yield "top_p", lambda: hf.TopPLogitsWarper(s.top_p)
        if s.min_p is not None:
            yield "min_p", lambda: hf.MinPLogitsWarper(s.min_p)
        if s.typical_p is not None and s.typical_p < 1:
            yield "typical_p", lambda: hf.TypicalLogitsWarper(s.typical_p)
        if s.epsilon_cutoff is not None and 0 < s.epsilon_cutoff < 1:
            yield "epsilon_cutoff", lambda: hf.EpsilonLogitsWarper(s.epsilon_cutoff)
        if s.eta_cutoff is not None and 0 < s.eta_cutoff < 1:
            device = str(self.device)
            yield "eta_cutoff", lambda: hf.EtaLogitsWarper(s.eta_cutoff, device=device)

    def last(self) -> Iterator[Part]:
        """What must come after everything else."""
        config = self.s.watermarking_config
        if config is not None:
            yield (
                "watermarking_config",
                lambda: config.construct_processor(self.vocab_size, str(self.device)),
            )
        if self.s.renormalize_logits:
            yield "renormalize_logits", hf.LogitNormalization


def needs_second_answer(processor: Any) -> bool:
    """Whether a processor runs the model itself, as classifier-free guidance does."""
    return isinstance(
        processor,
        (
            hf_logits.UnbatchedClassifierFreeGuidanceLogitsProcessor,
            hf_logits.ClassifierFreeGuidanceLogitsProcessor,
        ),
    )


_ROW_BY_ROW = (
    hf_logits.ExponentialDecayLengthPenalty,
    hf_logits.ForcedBOSTokenLogitsProcessor,
    hf_logits.ForcedEOSTokenLogitsProcessor,
    hf_logits.InfNanRemoveLogitsProcessor,
    hf_logits.LogitNormalization,
    hf_logits.MinLengthLogitsProcessor,
    hf_logits.MinNewTokensLengthLogitsProcessor,
    hf_logits.NoBadWordsLogitsProcessor,
    hf_logits.NoRepeatNGramLogitsProcessor,
    hf_logits.RepetitionPenaltyLogitsProcessor,
    hf_logits.SequenceBiasLogitsProcessor,
    hf_logits.SuppressTokensAtBeginLogitsProcessor,
    hf_logits.SuppressTokensLogitsProcessor,
)
"""Processors that look at every sequence of a batch alone and keep no state."""


def works_row_by_row(processors: Any, criteria: Any) -> bool:
    """Whether a batch may be shaped and stopped one sequence at a time, each at its own pace: a
    processor or criterion that is not transformers' own may look across sequences.
    """
    return all(type(processor) in _ROW_BY_ROW for processor in processors) and all(
        type(each) in (hf.MaxLengthCriteria, hf.EosTokenCriteria, hf.StopStringCriteria)
        for each in criteria
    )


def processors_of_row(processors: Any, row: int) -> Any:
    """The processors of a batch as one of its sequences needs them."""
    own = hf.LogitsProcessorList()
    for processor in processors:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):  # each sequence's own padding
            processor = copy.copy(processor)
            processor.prompt_ignore_length = ignored[row : row + 1]
        own.append(processor)
    return own


def stacked(sequences: Sequence[Tensor], filler: Any) -> Tensor:
    """[B, P] ids of sequences [1, P_b], the shorter ones filled up at the right.

    Args:
        sequences: ids.
        filler: the padding id as a tensor, or None where all are of one length.
    """
    longest = max(ids.shape[1] for ids in sequences)
    value = 0 if filler is None else int(filler)
    return torch.cat(
        [
            torch.nn.functional.pad(ids, (0, longest - ids.shape[1]), value=value)
            for ids in sequences
        ]
    )


def dictionary_result(ids: Tensor, *, scores: Any, logits: Any, cache: Any) -> Any:
    """What `generate(return_dict_in_generate=True)` returns for a decoder.

    Args:
        ids: [1, P] prompt and answer.
        scores: tuple of [1, V] shaped scores, or None.
        logits: tuple of [1, V] logits, or None.
        cache: of the sequence.
    """
    return GenerateDecoderOnlyOutput(sequences=ids, scores=scores, logits=logits, cache=cache)


class CountPenalty:
    """Presence and frequency penalties: they look at the answer, never at the prompt.

    Args:
        prompt_length: tokens before the answer.
        presence: subtracted from the score of every id that the answer holds.
        frequency: subtracted once for every time that it does.
    """

    def __init__(self, prompt_length: int, *, presence: float, frequency: float) -> None:
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """[B, P] ids and [B, V] scores -> [B, V] scores."""
        said = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores)
        counts.scatter_add_(1, said, torch.ones_like(said, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def _made(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigError(
            name,
            found=" ".join(str(error).split()),
            needed="a value that transformers takes",
            todo="Change it or leave it out.",
        ) from error


def _check_ids(sampling: Sampling, vocab_size: int) -> None:
    """An id outside the vocabulary fails in the middle of an answer; refuse it before."""
    for name in ("bad_words_ids", "sequence_bias"):
        if not all(
            isinstance(word, Sequence) and len(word) for word in getattr(sampling, name) or ()
        ):
            raise ConfigError(
                name,
                found="an entry that is no list of ids",
                needed="one or more ids each",
                todo="Wrap single ids in a list.",
            )
    forced = sampling.forced_eos_token_id
    named: dict[str, list[Any]] = {
        "bad_words_ids": [token for word in sampling.bad_words_ids or () for token in word],
        "logit_bias": list(sampling.logit_bias or ()),
        "sequence_bias": [token for word in sampling.sequence_bias or () for token in word],
        "suppress_tokens": list(sampling.suppress_tokens or ()),
        "begin_suppress_tokens": list(sampling.begin_suppress_tokens or ()),
        "forced_bos_token_id": [sampling.forced_bos_token_id],
        "forced_eos_token_id": list(forced) if isinstance(forced, Sequence) else [forced],
    }
    for name, ids in named.items():
        for token in ids:
            number = whole(token)
            if token is not None and (number is None or not 0 <= number < vocab_size):
                raise ConfigError(
                    name,
                    found=f"id {token!r:.40}",
                    needed=f"ids of this model lie in [0, {vocab_size})",
                    todo="Use ids of the model's own tokenizer.",
                )

"""How well the demo model reads: `python -m eyespan.demo.evaluate --count 240` prints a Markdown
table.

For each kind: the share of facts in greedy answers, with the own picture and with the picture of
another sample of the same kind (what can be guessed without looking); nats per answer token with
the own picture, with the other one, and for a text-only model trained without pictures (`--blind
DIR/blind`).
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from transformers import AutoModelForImageTextToText, AutoProcessor

from eyespan.demo import KINDS, MODEL_DIR, Sample, facts_right, held_out
from eyespan.demo.data import Encoder, to_pixels
from eyespan.demo.dense import NOTHING
from eyespan.demo.train import load_trainee

_LIMIT: Final = 256  # new tokens


@dataclass(slots=True)
class Score:
    """Counts of one kind."""

    facts: int = 0
    right: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tokens: int = 0
    nats: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    exact: int = 0
    turns: int = 0
    written: int = 0  # tokens generated with the own picture


def others(samples: list[Sample]) -> list[Sample]:
    """For each sample, the next one of the same kind and subject (itself if it is the only one)."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[sample.kind, sample.subject].append(index)
    found = list(samples)
    for group in groups.values():
        for index, other in zip(group, [*group[1:], group[0]], strict=True):
            found[index] = samples[other]
    return found


class Reader:
    """Answers questions about pictures with stock `generate`, greedily, in float32."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        self.processor: Any = AutoProcessor.from_pretrained(folder)

    def answer(self, samples: list[Sample], pictures: list[Sample]) -> list[list[str]]:
        """Answers to every turn of each sample about the given pictures.

        Each sees the model's own earlier answers, so no true answer is there to copy from.
        """
        answers: list[list[str]] = [[] for _ in samples]
        for turn in range(max(len(sample.turns) for sample in samples)):
            asked = [index for index, sample in enumerate(samples) if len(sample.turns) > turn]
            texts = [self._prompt(samples[index], answers[index]) for index in asked]
            images = [pictures[index].image for index in asked]
            inputs = self.processor(text=texts, images=images, padding=True, return_tensors="pt")
            with torch.inference_mode():
                out = self.model.generate(**inputs, max_new_tokens=_LIMIT, do_sample=False)
            new = out[:, inputs["input_ids"].shape[1] :]
            written = self.processor.batch_decode(new, skip_special_tokens=True)
            for index, text in zip(asked, written, strict=True):
                answers[index].append(text)
        return answers

    def _prompt(self, sample: Sample, answers: list[str]) -> str:
        messages: list[dict[str, Any]] = []
        for index, turn in enumerate(sample.turns[: len(answers) + 1]):
            content = [{"type": "image"}] if index == 0 else []
            content.append({"type": "text", "text": turn.question})
            messages.append({"role": "user", "content": content})
            if index < len(answers):
                messages.append({"role": "assistant", "content": answers[index]})
        text: str = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        return text

    def nats(self, sample: Sample, picture: Sample) -> tuple[float, int]:
        """Summed nats of the true answers and their number of tokens."""
        row = Encoder(self.processor.tokenizer.backend_tokenizer)(sample)
        with torch.inference_mode():
            logits = self.model(
                input_ids=torch.tensor([row.ids]), pixel_values=to_pixels([picture])
            ).logits[0]
        return _summed(logits, row.targets)


def _summed(logits: torch.Tensor, targets: list[int]) -> tuple[float, int]:
    wanted = torch.tensor(targets)
    loss = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum")
    return float(loss), int((wanted != NOTHING).sum())


def evaluate(
    folder: Path, samples: list[Sample], *, batch: int, blind: Path | None
) -> dict[str, Score]:
    """Scores by kind."""
    reader = Reader(folder)
    scores: dict[str, Score] = {kind: Score() for kind in KINDS}
    paired = others(samples)
    blind_model = load_trainee(blind, reader.processor.tokenizer).model.eval() if blind else None
    encoder = Encoder(reader.processor.tokenizer.backend_tokenizer)
    for sample, other in track(list(zip(samples, paired, strict=True)), "nats"):
        score = scores[sample.kind]
        for name, picture in (("own", sample), ("wrong", other)):
            nats, tokens = reader.nats(sample, picture)
            score.nats[name] += nats
        score.tokens += tokens
        if blind_model is not None:
            row = encoder(sample, with_image=False)
            with torch.inference_mode():
                score.nats["blind"] += _summed(
                    blind_model(input_ids=torch.tensor([row.ids])).logits[0], row.targets
                )[0]
    order = sorted(range(len(samples)), key=lambda index: _length(samples[index]))
    for start in track(range(0, len(order), batch), "facts"):
        chosen = order[start : start + batch]
        _score_facts(reader, scores, [samples[i] for i in chosen], [paired[i] for i in chosen])
    return scores


def _length(sample: Sample) -> tuple[int, int]:
    """Samples of like length decode together."""
    return len(sample.turns), sum(len(turn.answer) for turn in sample.turns)


def _score_facts(
    reader: Reader, scores: dict[str, Score], samples: list[Sample], paired: list[Sample]
) -> None:
    own, wrong = reader.answer(samples, samples), reader.answer(samples, paired)
    for sample, read, guessed in zip(samples, own, wrong, strict=True):
        score = scores[sample.kind]
        for turn, answer, guess in zip(sample.turns, read, guessed, strict=True):
            score.facts += len(turn.facts)
            score.right["own"] += facts_right(turn.facts, answer)
            score.right["wrong"] += facts_right(turn.facts, guess)
            score.exact += answer == turn.answer
            score.turns += 1
            score.written += len(reader.processor.tokenizer(answer)["input_ids"])


def markdown(scores: dict[str, Score]) -> str:
    """The table of the model card."""
    lines = [
        "| kind | facts own | facts wrong | exact answers "
        "| nats own | nats wrong | nats blind | tokens an answer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total = Score()
    for kind, score in [*scores.items(), ("all", total)]:
        if not score.turns:
            continue
        per = {
            name: f"{score.nats[name] / score.tokens:.3f}" if name in score.nats else "-"
            for name in ("own", "wrong", "blind")
        }
        lines.append(
            f"| {kind} | {score.right['own'] / score.facts:.3f} "
            f"({score.right['own']}/{score.facts}) "
            f"| {score.right['wrong'] / score.facts:.3f} | {score.exact}/{score.turns} "
            f"| {per['own']} | {per['wrong']} | {per['blind']} "
            f"| {score.written / score.turns:.0f} |"
        )
        total.facts += score.facts
        total.tokens += score.tokens
        total.exact += score.exact
        total.turns += score.turns
        total.written += score.written
        for name in ("own", "wrong"):
            total.right[name] += score.right[name]
        for name, value in score.nats.items():
            total.nats[name] += value
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--blind", type=Path, default=None, help="text-only checkpoint DIR/blind")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scores = evaluate(args.model, list(held_out(args.count)), batch=args.batch, blind=args.blind)
    Console().print(markdown(scores), soft_wrap=True)


if __name__ == "__main__":
    main()

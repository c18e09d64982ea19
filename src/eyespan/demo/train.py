"""Train the demo model: `python -m eyespan.demo.train --out DIR --stage tower|language|deep|blind`.

tower     tower, projector and embeddings on dense labels: what stands in each patch
language  the whole model with four text layers, on answers (and a little of the dense loss)
deep      the same, grown to twelve text layers without changing its outputs
blind     a text-only model of the same stack, for the floor that no picture is needed for

Every stage writes DIR/STAGE.safetensors and DIR/STAGE.json now and then; `--resume` goes on from
there. A stage starts from the one before it, or from `--init`.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from eyespan.demo.data import Batch, batches
from eyespan.demo.dense import NOTHING, DenseHeads, total_loss
from eyespan.demo.generator import SUBJECTS
from eyespan.demo.guide import Guide
from eyespan.demo.model import (
    SHALLOW,
    DemoConfig,
    build_model,
    grow,
    place_mask,
    seed_copying,
    seed_embeddings,
    seed_neighbours,
    seed_positions,
)
from eyespan.demo.optim import DemoOptimizer
from eyespan.demo.samples import Kind
from eyespan.demo.tokenizer import END, IMAGE, PAD, build_tokenizer

STAGES: Final = ("tower", "language", "deep", "blind")
_BEFORE: Final = {"language": "tower", "deep": "language"}
_COPYING: Final = (1, 2)  # of these, the ones that start with heads that copy the next word


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One stage of training; learning rates are peaks."""

    stage: str
    out: Path
    steps: int
    batch: int = 16
    seed: int = 0
    muon_lr: float = 2e-3
    adam_lr: float = 2e-3
    warmup: int = 30  # steps
    decay: float = 0.4  # last share of the steps, over which the rate falls to zero
    dense_weight: float = 0.1
    guide_weight: float = 0.3
    word_pages: float = 0.0  # share of pages of words without a question
    kinds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)  # shares in the order of SUBJECTS
    save_every: int = 100
    threads: int = 1
    bf16: bool = False  # forward in bfloat16 where torch deems it safe; weights stay float32
    init: Path | None = None
    resume: bool = False

    def rate(self, step: int) -> float:
        """Share of the peak rate at `step`: linear up, flat, linear to zero."""
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, (step + 1) / self.warmup, left)


class Trainee(nn.Module):
    """The model with its dense heads, as one thing to step and to save."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        text, vision = model.config.text_config, model.config.vision_config
        self.heads = DenseHeads(vision.hidden_size, text.hidden_size)
        patches = model.model.vision_tower.embeddings.patch_embedding
        patches.weight.register_hook(place_mask)
        self.guide = Guide(model.model.language_model)

    def see(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Tower features [B, PATCHES, T] and visual tokens [B, PATCHES, D]."""
        tower = self.model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]
        return tower, self.model.model.multi_modal_projector(tower)

    def losses(self, batch: Batch, *, language: bool, dense: bool) -> dict[str, Tensor]:
        """Dense losses, and `answer`: nats of each answer token, with `answer_row`: its row in the
        batch.
        """
        table = self.model.get_input_embeddings().weight
        out: dict[str, Tensor] = {}
        embeds = F.embedding(batch.ids, table)
        if dense:
            tower, visual = self.see(batch.pixels)
            out |= self.heads(tower, visual, table, batch.dense)
            if language:
                embeds = torch.cat([embeds[:, :1], visual, embeds[:, 1 + visual.shape[1] :]], dim=1)
        if language:
            hidden = self.model.model.language_model(
                inputs_embeds=embeds,
                attention_mask=batch.visible,
                position_ids=batch.positions,
                use_cache=False,
            ).last_hidden_state
            if dense:
                out |= self.guide.losses(batch.sources)
            chosen = batch.targets != NOTHING
            logits = hidden[chosen] @ table.T
            out["answer"] = F.cross_entropy(logits, batch.targets[chosen], reduction="none")
            out["answer_row"] = chosen.nonzero()[:, 0]
        return out


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str | int]]:
    with safe_open(path.with_suffix(".safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    return tensors, json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def load_trainee(path: Path, tokenizer: PreTrainedTokenizerFast) -> Trainee:
    """The model and heads of a checkpoint DIR/STAGE (without suffix).

    An exported folder will do too; its dense heads, which are not shipped, start anew.
    """
    if (path / "config.json").exists():
        return Trainee(LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32))
    tensors, meta = _load(path)
    trainee = new_trainee(tokenizer, int(meta["text_layers"]))
    weights = {
        name: value for name, value in tensors.items() if name.startswith(("model.", "heads."))
    }
    missing = trainee.load_state_dict(weights, strict=False)
    unfilled = [name for name in missing.missing_keys if name != "model.lm_head.weight"]
    if unfilled or missing.unexpected_keys:
        raise ValueError(
            f"asked to load {path}; found weights missing {unfilled} and unexpected "
            f"{missing.unexpected_keys}; needed: those of this architecture; start a new --out"
        )
    return trainee


def new_trainee(tokenizer: PreTrainedTokenizerFast, layers: int) -> Trainee:
    """Random weights with `layers` text layers and seeded embeddings."""
    image, end, pad = (tokenizer.convert_tokens_to_ids(token) for token in (IMAGE, END, PAD))
    model = build_model(DemoConfig(text_layers=layers), image_id=image, end_id=end, pad_id=pad)
    seed_positions(model)
    seed_neighbours(model)
    seed_embeddings(model, tokenizer.backend_tokenizer, seed=0)
    return Trainee(model)


def _start(config: TrainConfig, tokenizer: PreTrainedTokenizerFast) -> Trainee:
    before = config.init or (
        config.out / _BEFORE[config.stage] if config.stage in _BEFORE else None
    )
    if before is None:
        return new_trainee(tokenizer, SHALLOW)
    trainee = load_trainee(before, tokenizer)
    if config.stage == "language" and before.name == "tower":
        seed_copying(trainee.model, trainee.heads.slots[2].detach(), layers=_COPYING)
    full = DemoConfig().text_layers
    if config.stage == "deep" and trainee.model.config.text_config.num_hidden_layers < full:
        heads = trainee.heads
        trainee = Trainee(grow(trainee.model, full))
        trainee.heads = heads
    return trainee


def train(config: TrainConfig, console: Console) -> None:
    """Run one stage to its end."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    random.seed(config.seed)
    config.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    target = config.out / config.stage
    trainee = load_trainee(target, tokenizer) if config.resume else _start(config, tokenizer)
    language, dense = config.stage != "tower", config.stage != "blind"
    named = {
        name: value for name, value in trainee.named_parameters() if "post_layernorm" not in name
    }
    optimizer = DemoOptimizer(named, muon_lr=config.muon_lr, adam_lr=config.adam_lr)
    first = 0
    if config.resume:
        tensors, meta = _load(target)
        first = int(meta["step"])
        optimizer.state = {
            name[4:]: value for name, value in tensors.items() if name.startswith("opt.")
        }
    weights: dict[Kind, float] = dict(zip(SUBJECTS, config.kinds, strict=True))
    stream = batches(
        tokenizer.backend_tokenizer,
        seed=100 * config.seed + STAGES.index(config.stage),
        start=first,
        size=config.batch,
        weights=weights,
        with_image=dense,
        word_pages=config.word_pages,
        by_length=language,
    )
    meter = _Meter(config, console)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(config.stage, total=config.steps, completed=first)
        for step in range(first, config.steps):
            batch = next(stream)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.bf16):
                parts = trainee.losses(batch, language=language, dense=dense)
            loss = total_loss(parts) if dense else torch.zeros(())
            if language:
                guided = parts["own_loss"] + parts["next_loss"] if dense else torch.zeros(())
                loss = config.dense_weight * (loss - guided) + config.guide_weight * guided
                loss = loss + parts["answer"].mean()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = optimizer.step(config.rate(step))
            meter.add(step, parts, batch, norm)
            progress.advance(task)
            if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                _save(target, trainee, optimizer.state, step + 1, config)


def _save(
    target: Path, trainee: Trainee, state: dict[str, Tensor], step: int, config: TrainConfig
) -> None:
    tensors = {
        name: value
        for name, value in trainee.state_dict().items()
        if name != "model.lm_head.weight"
    }
    tensors |= {f"opt.{name}": value for name, value in state.items()}
    temporary = target.with_suffix(".writing")
    save_file(
        {name: value.detach().contiguous().clone() for name, value in tensors.items()}, temporary
    )
    temporary.replace(target.with_suffix(".safetensors"))
    meta: dict[str, str | int] = {name: str(value) for name, value in asdict(config).items()}
    meta |= {"step": step, "text_layers": trainee.model.config.text_config.num_hidden_layers}
    target.with_suffix(".json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


class _Meter:
    """Prints running means every 20 steps: nats per answer token of each kind, share of patches
    read.
    """

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._config, self._console = config, console
        self._sums: dict[str, list[float]] = defaultdict(list)
        self._began = time.monotonic()
        self._first: int | None = None

    def add(self, step: int, parts: dict[str, Tensor], batch: Batch, norm: float) -> None:
        self._first = step if self._first is None else self._first
        for name, value in parts.items():
            if value.ndim == 0:
                self._sums[name.replace("_right", "%")].append(float(value.detach()))
        if "answer" in parts:
            for row, subject in enumerate(batch.subjects):
                mine = parts["answer"].detach()[parts["answer_row"] == row]
                self._sums[subject].append(float(mine.mean()))
            self._sums["all"].append(float(parts["answer"].detach().mean()))
        if (step + 1) % 20 == 0:
            rate = (step + 1 - self._first) * self._config.batch / (time.monotonic() - self._began)
            shown = {
                name: sum(v) / len(v)
                for name, v in sorted(self._sums.items())
                if not name.endswith("_loss")
            }
            text = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
            self._console.print(
                f"step {step + 1} {rate:.2f} samples/s norm {norm:.2f} {text}", soft_wrap=True
            )
            self._sums.clear()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--init",
        type=Path,
        default=None,
        help="start from DIR/STAGE (no suffix) or an exported folder",
    )
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--muon-lr", type=float, default=2e-3, help="0 steps the hidden matrices with AdamW too"
    )
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.4)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--dense-weight", type=float, default=0.1)
    parser.add_argument("--guide-weight", type=float, default=0.3)
    parser.add_argument("--word-pages", type=float, default=0.0)
    parser.add_argument("--kinds", type=float, nargs=len(SUBJECTS), default=(1.0,) * len(SUBJECTS))
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="autocast: faster with AMX or AVX-512")
    args = vars(parser.parse_args())
    args["kinds"] = tuple(args["kinds"])
    train(TrainConfig(**args), Console())


if __name__ == "__main__":
    main()

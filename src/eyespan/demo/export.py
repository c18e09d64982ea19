"""Write a trained checkpoint as a plain transformers folder, and the demo's pictures beside it.

`python -m eyespan.demo.export --checkpoint DIR/deep` replaces the shipped weights; `--images`
redraws the pictures.
"""

import argparse
import json
from pathlib import Path
from typing import Final

import torch
from transformers import GenerationConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from eyespan.demo import IMAGES_DIR, MODEL_DIR
from eyespan.demo.canvas import SIDE
from eyespan.demo.generator import held_out
from eyespan.demo.model import PATCH
from eyespan.demo.samples import Sample
from eyespan.demo.tokenizer import IMAGE, build_tokenizer
from eyespan.demo.train import load_trainee

SHOWCASE_SEED: Final = 7


def build_processor() -> LlavaProcessor:
    """Tokenizer, chat template and an image processor that needs no torchvision."""
    tokenizer = build_tokenizer()
    images = SiglipImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
        image_token=IMAGE,
    )


def export_model(model: LlavaForConditionalGeneration, target: Path) -> None:
    """Save weights in bf16 and everything that is needed to load them alone."""
    processor = build_processor()
    tokenizer = processor.tokenizer
    model = model.eval().to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
        max_new_tokens=256,
    )
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)  # readable by all once installed
    processor.save_pretrained(target)


def export_images(target: Path, seed: int = SHOWCASE_SEED) -> None:
    """Draw twelve pictures, two of each kind, that are in neither the training nor the held-out
    set.
    """
    target.mkdir(parents=True, exist_ok=True)
    records = [_export_image(sample, target) for sample in held_out(12, seed)]
    text = json.dumps(records, indent=2, ensure_ascii=False)
    (target / "showcase.json").write_text(text + "\n", encoding="utf-8")


def _export_image(sample: Sample, target: Path) -> dict[str, str]:
    name = f"{sample.id}.png"
    sample.image.save(target / name, optimize=True)
    turn = max(sample.turns, key=lambda turn: len(turn.answer))
    return {
        "file": name,
        "kind": sample.kind,
        "question": turn.question,
        "answer": turn.answer,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="DIR/STAGE without suffix")
    parser.add_argument("--target", type=Path, default=MODEL_DIR)
    parser.add_argument("--images", action="store_true")
    args = parser.parse_args()
    if args.checkpoint is not None:
        model = load_trainee(args.checkpoint, build_tokenizer()).model
        export_model(model, args.target)
        print(f"wrote {args.target}")
    if args.images:
        export_images(IMAGES_DIR)
        print(f"wrote {IMAGES_DIR}")


if __name__ == "__main__":
    main()

"""Prompts as ids, so that every library is given the very same tokens.

    python -m benchmarks.peers.prompts MODEL_DIR OUT.jsonl [PROMPTS_A_CATEGORY]

Each first turn of `benchmarks/text/prompts.jsonl` through the model's chat template.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

PROMPTS = Path(__file__).parents[1] / "text" / "prompts.jsonl"


def main(model: str, out: str, count: str = "16") -> None:
    """Write a line {"id", "category", "ids"} for the first prompts of every category, the
    categories taking turns: a run that is cut short has seen all of them.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = []
    for text in PROMPTS.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if int(line["id"].rpartition("-")[2]) >= int(count):
            continue
        chat = [{"role": "user", "content": line["turns"][0]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        lines.append({"id": line["id"], "category": line["category"], "ids": list(ids)})
    lines.sort(key=lambda line: str(line["id"]).rpartition("-")[2])
    Path(out).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

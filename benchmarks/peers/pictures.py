"""The demo model in an environment of another library: stock LLaVA that is shown a picture.

Libraries that take ids alone can still run on it, for a picture is needed in one forward only, the
prompt's: a hook hands its pixels over there. They were prepared by the demo's own processor, where
the prompts were made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, LlavaForConditionalGeneration

from benchmarks.peers.timed import Answer, Method, Request

_NAMES = {
    "^language_model.model": "model.language_model",
    "^vision_tower": "model.vision_tower.vision_model",
    "^multi_modal_projector": "model.multi_modal_projector",
}
"""Parts of a LLaVA file, and where transformers 4 has them; version 5 has the tower a level up."""


class Pictures:
    """A model, and the picture that its next prompt is about.

    Args:
        model: folder of a LLaVA model.
        pixels: safetensors file, pixel values [1, 3, h, w] by request id.
    """

    def __init__(self, model: str, pixels: str) -> None:
        config = AutoConfig.from_pretrained(model)
        # Transformers 5 keeps it in a table that version 4 does not read.
        config.text_config.rope_theta = config.text_config.rope_parameters["rope_theta"]
        self.model = LlavaForConditionalGeneration.from_pretrained(
            model, config=config, dtype=torch.float32, key_mapping=_NAMES
        ).eval()
        self._pixels = load_file(Path(pixels))
        self._shown: torch.Tensor | None = None
        self._places = config.image_seq_length
        self._token = config.image_token_index
        self.model.register_forward_pre_hook(self._show, with_kwargs=True)

    def showing(self, method: Method) -> Method:
        """A method that is shown each request's own picture."""

        def write(request: Request, limit: int) -> Answer:
            self._shown = self._pixels[request["id"]]
            return method(request, limit)

        return write

    def _show(self, module: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Pixels where all of a picture's places are; a draft may hold some of them by mistake."""
        ids = inputs.get("input_ids", args[0] if args else None)
        if ids is not None and int((ids == self._token).sum()) == self._places:
            inputs = {**inputs, "pixel_values": self._shown}
        return args, inputs

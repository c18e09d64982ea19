"""Write tests/golden/frames.json: what transformers' own video processors make of small videos.

They need torchvision (`pip install 'eyespan[video]' torchvision`), our stand-ins do not
(`eyespan.target.frames`), and `tests/parity/test_frames.py` holds these against that.

    python scripts/write_frames.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import transformers
from transformers.video_utils import VideoMetadata

OUT = Path(__file__).parent.parent / "tests" / "golden" / "frames.json"
STOCK = {
    "qwen2_vl": "Qwen2VLVideoProcessor",
    "qwen3_vl": "Qwen3VLVideoProcessor",
    "llava_onevision": "LlavaOnevisionVideoProcessor",
    "llava_next_video": "LlavaNextVideoVideoProcessor",
    "internvl": "InternVLVideoProcessor",
    "smolvlm": "SmolVLMVideoProcessor",
}
SETTINGS = {
    "qwen2_vl": {"size": {"shortest_edge": 28 * 28, "longest_edge": 84 * 84}},
    "qwen3_vl": {"size": {"shortest_edge": 4096, "longest_edge": 64 * 64 * 8}},
    "llava_onevision": {"size": {"height": 28, "width": 28}},
    "llava_next_video": {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    "internvl": {"size": {"height": 56, "width": 56}},
    "smolvlm": {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}},
}
SIZES = ((5, 40, 70), (6, 90, 50), (8, 28, 28))
"""Frames, height, width."""

ASKED = ({"num_frames": 4}, {"fps": 2.0}, {"num_frames": 6})
WHOLE = VideoMetadata(total_num_frames=30, fps=6.0, duration=5.0)


def clip(size: tuple[int, int, int]) -> np.ndarray:
    """[n, h, w, 3] smooth colours, so that every resampling has something to do."""
    t, y, x = (axis / max(1, n - 1) for axis, n in zip(np.indices(size), size, strict=True))
    waves = [np.sin(9 * x + 3 * t), np.cos(7 * y * x), np.sin(5 * y - 2 * t)]
    return (127 + 120 * np.stack(waves, -1)).astype(np.uint8)


def summary(values: np.ndarray) -> dict[str, object]:
    """Enough of a tensor to tell it from any other of its shape."""
    flat = values.astype(np.float64).ravel()
    at = np.linspace(0, flat.size - 1, 24).astype(int)
    return {
        "shape": list(values.shape),
        "mean": round(float(flat.mean()), 5),
        "deviation": round(float(flat.std()), 5),
        "some": [round(float(value), 4) for value in flat[at]],
    }


def options_of(family: str, asked: dict[str, float]) -> dict[str, float]:
    """SmolVLM's sampling wants both limits, as its checkpoints have them."""
    return {"num_frames": 8, "fps": 1.0, **asked} if family == "smolvlm" else asked


def main() -> None:
    """Run every processor over every video, and every way of sampling."""
    found: dict[str, dict[str, object]] = {}
    for family, name in STOCK.items():
        processor = getattr(transformers, name)(**SETTINGS[family])
        made = []
        for size in SIZES:
            output = processor([clip(size)], do_sample_frames=False, return_tensors="pt")
            made.append({key: summary(output[key].numpy()) for key in sorted(output)})
        sampled = []
        for asked in ASKED:
            indices = processor.sample_frames(WHOLE, **options_of(family, asked))
            sampled.append(np.asarray(indices).tolist())
        found[family] = {"settings": SETTINGS[family], "tensors": made, "sampled": sampled}
    whole = {"sizes": SIZES, "asked": ASKED, "families": found}
    OUT.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()

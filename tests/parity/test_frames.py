"""Frames of videos without torchvision: what transformers' video processors make of them with it
(`scripts/write_frames.py` wrote that down).
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyespan.target.frames import FRAMES

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "frames.json").read_text())
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_frames.py"))
ONE_COLOUR = 0.04
"""A step of 1 in 255 after normalising: kernels of other processors may round another way."""


@pytest.mark.parametrize("family", GOLDEN["families"])
def test_tensors_are_those_of_stock(family: str) -> None:
    about = GOLDEN["families"][family]
    frames = FRAMES[family](**about["settings"])
    for size, expected in zip(GOLDEN["sizes"], about["tensors"], strict=True):
        made = frames([SCRIPT["clip"](tuple(size))])
        assert sorted(set(made) - {"video_metadata"}) == sorted(expected)
        for name, wanted in expected.items():
            found = SCRIPT["summary"](made[name].numpy())
            assert found["shape"] == wanted["shape"]
            assert found["mean"] == pytest.approx(wanted["mean"], abs=2e-3)
            assert found["deviation"] == pytest.approx(wanted["deviation"], abs=2e-3)
            assert np.abs(np.subtract(found["some"], wanted["some"])).max() < ONE_COLOUR


@pytest.mark.parametrize("family", GOLDEN["families"])
def test_sampled_frames_are_those_of_stock(family: str) -> None:
    about = GOLDEN["families"][family]
    frames = FRAMES[family](**about["settings"])
    for asked, expected in zip(GOLDEN["asked"], about["sampled"], strict=True):
        options: dict[str, Any] = SCRIPT["options_of"](family, asked)
        assert np.asarray(frames.sample_frames(SCRIPT["WHOLE"], **options)).tolist() == expected

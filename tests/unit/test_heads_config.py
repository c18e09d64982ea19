"""Configs of draft heads and their sizes on the paper's three targets."""

from __future__ import annotations

import json

import pytest

from eyespan.drafters._fovea_config import FoveaConfig
from eyespan.drafters._head import count_parameters
from eyespan.drafters.fovea import FoveaHead
from eyespan.errors import ConfigError
from eyespan.target.weights import BACKBONES


def test_a_config_goes_through_json() -> None:
    config = FoveaConfig.for_target(BACKBONES["qwen2.5-vl-7b"], nodes=12)
    assert config.qkv_bias
    assert (config.heads, config.kv_heads) == (28, 4)
    assert FoveaConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [("k_min", 300), ("retrieval", "some"), ("correct_depth", 9), ("layers", 0), ("kept", 1),
     ("kv_heads", 3), ("gamma", 0.0), ("beta_ce", -1.0), ("nodes", 128)],
)  # fmt: skip
def test_values_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        FoveaConfig.for_target(BACKBONES["llava-1.6-vicuna-7b"], **{field: value})


def test_parameters_of_the_paper_s_backbones() -> None:
    """Counted by hand: a LLaVA-7B block has 4 d^2 + 3 d m weights and two norms."""
    shape = BACKBONES["llava-1.6-vicuna-7b"]
    d, m = shape.hidden_size, shape.intermediate_size
    counts = count_parameters(FoveaHead, FoveaConfig.for_target(shape))
    assert counts["blocks"] == 2 * (4 * d * d + 3 * d * m + 2 * d)
    assert counts["join"] == 2 * d * d
    assert counts["memory"] == 3 * d * d + 4 * d + 7 * d
    assert counts["correct"] == 2 * d * 512 + 512 + 512 * d + d
    assert counts["open"] == 2 * d * 512 + 512 + 512 + 1
    assert counts["total"] == sum(value for name, value in counts.items() if name != "total")

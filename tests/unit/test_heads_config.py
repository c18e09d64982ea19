"""Configs of draft heads and their sizes on the paper's three targets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from eyespan.drafters import make_drafter
from eyespan.drafters._fovea_config import FoveaConfig
from eyespan.drafters._head import count_parameters
from eyespan.drafters.eagle3 import Eagle3Config
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


@pytest.mark.parametrize(
    ("field", "value"),
    [("nodes", "a"), ("nodes", 1.5), ("nodes", True), ("mass", "x"), ("mass", float("nan")),
     ("gate", 1), ("layers", [2])],
)  # fmt: skip
def test_values_of_another_kind_are_refused(field: str, value: object) -> None:
    """TOML says anything; a head that was trained takes no nonsense either."""
    with pytest.raises(ConfigError, match=rf"FoveaConfig\.{field}.*it must be"):
        FoveaConfig.for_target(BACKBONES["llava-1.6-vicuna-7b"], **{field: value})
    if field in FoveaConfig.DECODING:
        for weights in ({}, {"checkpoint": "demo"}):
            with pytest.raises(ConfigError, match=rf"fovea\.{field}.*it must be"):
                make_drafter("fovea", vocab_size=2048, **weights, **{field: value})


def test_numbers_of_numpy_are_numbers() -> None:
    shape = BACKBONES["llava-1.6-vicuna-7b"]
    config = FoveaConfig.for_target(shape, nodes=np.int64(9), mass=np.float32(0.5), gamma=2)
    assert (config.nodes, config.mass, config.gamma) == (9, 0.5, 2.0)
    assert [type(each) for each in (config.nodes, config.mass, config.gamma)] == [int, float, float]


def test_layers_to_read_are_numbers() -> None:
    shape = BACKBONES["llava-1.6-vicuna-7b"]
    for bad in ((0, 1, 2), (1, 2), ("a", "b", "c"), 3):
        with pytest.raises(ConfigError, match="read_layers"):
            Eagle3Config.for_target(shape, read_layers=bad)


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

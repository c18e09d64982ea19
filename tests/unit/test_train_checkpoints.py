"""Public checkpoints, made here in the layouts that others publish, become drafters that compute
what the public description says, and EAGLE-3 heads go back out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, silu

from eyespan.drafters import make_drafter
from eyespan.drafters._head import DraftHead
from eyespan.errors import ConfigError, InputError
from eyespan.target import load_target
from eyespan.target.weights import TargetWeights
from eyespan.train.checkpoints import convert, export, read_public
from eyespan.train.describe import sizes
from tests.cli import Shell

D, INNER, HEADS, SIZE, VOCAB, DRAFT = 256, 640, 4, 64, 2048, 48
CONFIG: dict[str, Any] = {
    "hidden_size": D, "num_attention_heads": HEADS, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "vocab_size": VOCAB,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights() -> TargetWeights:
    return load_target("demo").weights()


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: (1.0 if "norm" in name else 0.0) + torch.randn(shape, generator=generator) * 0.1
        for name, shape in shapes.items()
    }


def layer(prefix: str, *, wide: int = D, bias: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.self_attn.{name}_proj.weight": (D, wide) for name in "qkv"
    }
    shapes[f"{prefix}.self_attn.o_proj.weight"] = (D, D)
    shapes |= {f"{prefix}.mlp.{name}_proj.weight": (INNER, D) for name in ("gate", "up")}
    shapes[f"{prefix}.mlp.down_proj.weight"] = (D, INNER)
    shapes[f"{prefix}.post_attention_layernorm.weight"] = (D,)
    if bias:
        shapes |= {f"{prefix}.self_attn.{name}_proj.bias": (D,) for name in "qkv"}
    return shapes


def eagle3(first: str = "midlayer") -> dict[str, Tensor]:
    shapes = {
        "fc.weight": (D, 3 * D),
        "norm.weight": (D,),
        "lm_head.weight": (DRAFT, D),
        f"{first}.input_layernorm.weight": (D,),
        f"{first}.hidden_norm.weight": (D,),
        **layer(first, wide=2 * D),
    }
    names = torch.arange(DRAFT) * 3 + 7
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[names] = True
    return {**drawn(shapes), "d2t": names - torch.arange(DRAFT), "t2d": t2d}


def eagle_layer() -> dict[str, Tensor]:
    return drawn({"fc.weight": (D, 2 * D), "fc.bias": (D,), **layer("layers.0")})


def written(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def head_of(folder: Path, method: str, weights: TargetWeights) -> DraftHead:
    drafter: Any = make_drafter(method, vocab_size=VOCAB, checkpoint=str(folder))
    drafter.attach(weights)
    return drafter.head


def plain_attention(q: Tensor, k: Tensor, v: Tensor, theta: float) -> Tensor:
    """Causal attention of [n, D] with Llama's rotary positions 0, 1, ..., in plain loops."""
    n = len(q)
    angles = torch.arange(n)[:, None] * theta ** (-torch.arange(0, SIZE, 2) / SIZE)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    parts = []
    for at in range(0, D, SIZE):
        turned = []
        for x in (q[:, at : at + SIZE], k[:, at : at + SIZE]):
            half = torch.cat([-x[:, SIZE // 2 :], x[:, : SIZE // 2]], dim=1)
            turned.append(x * cos + half * sin)
        scores = turned[0] @ turned[1].T * SIZE**-0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        parts.append(scores.softmax(-1) @ v[:, at : at + SIZE])
    return torch.cat(parts, dim=1)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def mlp(t: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    gate, up, down = (t[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def attention(t: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    q, k, v = (
        linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))
        for name in (f"{prefix}.self_attn.{one}_proj" for one in "qkv")
    )
    return linear(plain_attention(q, k, v, 5e5), t[f"{prefix}.self_attn.o_proj.weight"])


class Causal:
    """Our heads' attention over one sequence, in parallel."""

    def __call__(self, slot: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@torch.no_grad()
def ours(head: DraftHead, embeds: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Last output [n, D] and logits of our head for pairs; states [n, R, D]."""
    condition = {"view": torch.zeros(1, 1, D)} if head.method == "vispec" else {}
    x = head.inputs(embeds[None], head.lift(states[None]), condition)
    last = head.stack(x, torch.arange(len(embeds))[None], Causal()).last
    return last[0], head.scores(last, 0, condition, None)[0]


@pytest.mark.parametrize("first", ["midlayer", "layers.0", "model.midlayer"])
def test_an_eagle3_head_computes_what_its_layout_says(
    first: str, weights: TargetWeights, tmp_path: Path
) -> None:
    public = {
        name.replace("midlayer", first): value for name, value in eagle3().items()
    }  # `model.` stands before the layer alone, as some trainers save it
    said = convert(written(tmp_path / "in", public), tmp_path / "out", weights)
    assert "eagle3 for demo" in said
    head = head_of(tmp_path / "out", "eagle3", weights)
    t, p = eagle3(), "midlayer"
    embeds, taps = torch.randn(5, D), torch.randn(5, 3, D)
    h = linear(taps.flatten(1), t["fc.weight"])
    both = torch.cat(
        [rms(embeds, t[f"{p}.input_layernorm.weight"]), rms(h, t[f"{p}.hidden_norm.weight"])], 1
    )
    h = h + attention(t, p, both)
    h = h + mlp(t, p, rms(h, t[f"{p}.post_attention_layernorm.weight"]))
    wanted = linear(rms(h, t["norm.weight"]), t["lm_head.weight"])
    states = torch.cat([torch.zeros(5, 1, D), taps], dim=1)
    last, logits = ours(head, embeds, states)
    torch.testing.assert_close(last, h, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    names = head.token_ids()
    assert names is not None
    assert names.tolist() == [3 * i + 7 for i in range(DRAFT)]
    assert head.reads == (0, 2, 6, 9)


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_eagle3_heads_go_out_and_come_back(
    layout: str, weights: TargetWeights, tmp_path: Path
) -> None:
    convert(written(tmp_path / "in", eagle3()), tmp_path / "ours", weights)
    export(tmp_path / "ours", tmp_path / "public", layout)
    tensors = load_file(tmp_path / "public" / "model.safetensors")
    expected = eagle3("midlayer" if layout == "eagle3" else "layers.0")
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name
    config = json.loads((tmp_path / "public" / "config.json").read_text())
    if layout == "eagle3":
        assert config["architectures"] == ["LlamaForCausalLMEagle3"]
        assert (config["draft_vocab_size"], config["num_hidden_layers"]) == (DRAFT, 1)
    else:
        assert config["speculators_model_type"] == "eagle3"
        assert config["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
        assert config["transformer_layer_config"]["rope_theta"] == 5e5
        assert config["speculators_config"]["verifier"]["name_or_path"] == "demo"
    convert(tmp_path / "public", tmp_path / "again", weights)
    a, b = (json.loads((tmp_path / x / "manifest.json").read_text()) for x in ("ours", "again"))
    assert a["sha256"] == b["sha256"]
    assert a["about"]["config"] == b["about"]["config"]


def test_a_vispec_head_with_all_its_biases(weights: TargetWeights, tmp_path: Path) -> None:
    """From a pickle of tensors, as its authors save it; `img_fc`'s bias moves behind `fc`."""
    extra = {
        "img_fc.weight": (D, 2 * D), "img_fc.bias": (D,), "imadpt.q": (2, HEADS, SIZE),
        "imadpt.k_proj.weight": (D, D), "imadpt.v_proj.weight": (D, D),
        "imadpt.o_proj.weight": (D, D), "imadpt.k_proj.bias": (D,), "imadpt.v_proj.bias": (D,),
        **layer("layers.0", bias=True),
    }  # fmt: skip
    t = {**eagle_layer(), **drawn(extra), "embed_tokens.weight": weights.embedding.half().float()}
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save(t, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert "vispec" in convert(folder, tmp_path / "out", weights)
    head = head_of(tmp_path / "out", "vispec", weights)
    embeds, states = torch.randn(4, D), torch.randn(4, 2, D)
    seen = linear(
        torch.cat([states[:, 1], torch.zeros(4, D)], 1), t["img_fc.weight"], t["img_fc.bias"]
    )
    h = linear(torch.cat([embeds, seen], 1), t["fc.weight"], t["fc.bias"])
    h = h + attention(t, "layers.0", h)
    h = h + mlp(t, "layers.0", rms(h, t["layers.0.post_attention_layernorm.weight"]))
    torch.testing.assert_close(ours(head, embeds, states)[0], h, atol=1e-4, rtol=1e-4)
    picture = torch.randn(9, D)
    queries, pieces = t["imadpt.q"], []
    for at in range(HEADS):
        part = slice(at * SIZE, (at + 1) * SIZE)
        k, v = (
            linear(picture, t[f"imadpt.{one}_proj.weight"], t[f"imadpt.{one}_proj.bias"])[:, part]
            for one in "kv"
        )
        pieces.append((queries[:, at] @ k.T * SIZE**-0.5).softmax(-1) @ v)
    wanted = linear(torch.cat(pieces, 1), t["imadpt.o_proj.weight"])
    with torch.no_grad():
        made = head.compress(picture)  # type: ignore[operator]
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)


def test_msd_and_dream_heads(weights: TargetWeights, tmp_path: Path) -> None:
    t = eagle_layer()
    assert "msd" in convert(written(tmp_path / "msd", t), tmp_path / "msd-out", weights)
    head = head_of(tmp_path / "msd-out", "msd", weights)
    embeds, states = torch.randn(4, D), torch.randn(4, 2, D)
    h = linear(torch.cat([embeds, states[:, 1]], 1), t["fc.weight"], t["fc.bias"])
    h = h + attention(t, "layers.0", h)
    h = h + mlp(t, "layers.0", rms(h, t["layers.0.post_attention_layernorm.weight"]))
    torch.testing.assert_close(ours(head, embeds, states)[0], h, atol=1e-4, rtol=1e-4)

    c = "layers.1.cross_attn"
    shapes = {
        "norm.weight": (D,), f"{c}.q_norm.weight": (SIZE,), f"{c}.k_norm.weight": (SIZE,),
        f"{c}_attn_gate": (1,), f"{c}_mlp_gate": (1,), "layers.2.input_layernorm.weight": (D,),
        "layers.1.input_layernorm.weight": (D,), **layer("layers.0"), **layer("layers.2"),
    }  # fmt: skip
    shapes |= {k.replace("self_attn", "cross_attn"): v for k, v in layer("layers.1").items()}
    t = drawn(shapes)
    assert "dream" in convert(written(tmp_path / "dream", t), tmp_path / "dream-out", weights)
    head = head_of(tmp_path / "dream-out", "dream", weights)
    h = embeds + attention(t, "layers.0", embeds)
    h = h + mlp(t, "layers.0", rms(h, t["layers.0.post_attention_layernorm.weight"]))
    x, parts = rms(h, t["layers.1.input_layernorm.weight"]), []
    q = linear(x, t[f"{c}.q_proj.weight"])
    k, v = (linear(states[:, 1], t[f"{c}.{name}_proj.weight"]) for name in "kv")
    for at in range(0, D, SIZE):
        one = rms(q[:, at : at + SIZE], t[f"{c}.q_norm.weight"])
        two = rms(k[:, at : at + SIZE], t[f"{c}.k_norm.weight"])
        scores = (one @ two.T * SIZE**-0.5).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        parts.append(scores.softmax(-1) @ v[:, at : at + SIZE])
    seen = linear(torch.cat(parts, 1), t[f"{c}.o_proj.weight"])
    h = h + t[f"{c}_attn_gate"].tanh() * seen
    fed = mlp(t, "layers.1", rms(h, t["layers.1.post_attention_layernorm.weight"]))
    h = h + t[f"{c}_mlp_gate"].tanh() * fed
    h = h + attention(t, "layers.2", rms(h, t["layers.2.input_layernorm.weight"]))
    h = h + mlp(t, "layers.2", rms(h, t["layers.2.post_attention_layernorm.weight"]))
    torch.testing.assert_close(ours(head, embeds, states)[0], h, atol=1e-4, rtol=1e-4)


def test_what_a_checkpoint_leaves_unclear_is_refused(
    weights: TargetWeights, tmp_path: Path
) -> None:
    public = eagle3()
    cases: list[tuple[str, dict[str, Tensor], dict[str, Any]]] = [
        ("entering a layer", public, {"eagle_aux_hidden_state_layer_ids": [3, 5, 8]}),
        ("norm_before_residual", public, {"norm_before_residual": True}),
        ("type 'yarn'", public, {"rope_scaling": {"rope_type": "yarn"}}),
        ("'adapter.weight'", {**public, "adapter.weight": torch.zeros(2)}, {}),
        ("embedding table of its own", {**public, "embed_tokens.weight": torch.ones(VOCAB, D)}, {}),
        ("'norm.weight' of shape None", {k: public[k] for k in public if k != "norm.weight"}, {}),
        ("names of an EAGLE-3", {"a.weight": torch.zeros(2)}, {}),
    ]  # fmt: skip
    for number, (match, tensors, config) in enumerate(cases):
        folder = written(tmp_path / str(number), tensors, **config)
        with pytest.raises(InputError, match=match):
            convert(folder, tmp_path / "out", weights)
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "0", tmp_path / "said", weights, read_layers=(3, 5, 8))
    assert head_of(tmp_path / "said", "eagle3", weights).reads == (0, 3, 5, 8)
    leaving = written(tmp_path / "leaving", public, eagle_config={
        "eagle_aux_hidden_state_layer_ids": [1, 5, 8]})  # fmt: skip
    convert(leaving, tmp_path / "usual", weights)
    assert head_of(tmp_path / "usual", "eagle3", weights).reads == (0, 2, 6, 9)
    with pytest.raises(ConfigError, match="entering or leaving"):
        export(tmp_path / "said", tmp_path / "x", "eagle3")
    export(tmp_path / "said", tmp_path / "x", "speculators")
    with pytest.raises(ConfigError, match="known are eagle3, speculators"):
        export(tmp_path / "said", tmp_path / "x", "medusa")


class Bomb:
    """What a hostile pickle would do."""

    def __reduce__(self) -> Any:
        return (open, (str(Path(__file__).parent / "exploded"), "w"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"fc.weight": Bomb()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="no plain table of tensors"):
        read_public(tmp_path)
    assert not (Path(__file__).parent / "exploded").exists()
    (tmp_path / "pytorch_model.bin").write_bytes(b"half a file")
    with pytest.raises(InputError, match="Download the head again"):
        read_public(tmp_path)
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="a list in"):
        read_public(tmp_path)


def test_sizes_stand_next_to_the_papers(shell: Shell) -> None:
    found = {size.backbone: size for size in sizes("fovea")}
    assert {name: size.published for name, size in found.items()} == {
        "llava-1.6-vicuna-7b": 0.621e9,
        "llava-1.6-vicuna-13b": 0.962e9,
        "qwen2.5-vl-7b": 0.583e9,
    }
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096  # by hand, from the backbone's config
    assert found["llava-1.6-vicuna-7b"].parts["blocks"] == 2 * block
    assert all(
        sum(v for k, v in size.parts.items() if k != "total") == size.parts["total"]
        for size in found.values()
    )
    done = shell("train", "describe")
    assert done.code == 0
    assert "0.499" in done.out
    assert "0.621" in done.out
    assert all(off in done.out for off in ("-20%", "+14%", "-7%"))
    assert "text does not determine its counts" in done.out
    assert "0.216 / 0.010 / 0.117 B" in done.out
    layer_size = 4096 * 8192 * 3 + 4096 * 4096 + 3 * 4096 * 11008
    ends = 3 * 4096 * 4096 + 32000 * 4096
    assert sizes("eagle3")[0].parts["total"] == layer_size + ends + 4 * 4096
    assert "no such name" in shell.refused("train", "describe", "--method", "recap")

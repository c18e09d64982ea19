"""Capture: what is written is what live decoding sees, whole, and what the manifest says it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyespan.bench.datasets import load_selection, open_source
from eyespan.bench.datasets.public import is_held_out
from eyespan.demo import held_out
from eyespan.errors import ConfigError, InputError, UnsupportedTarget
from eyespan.target import HuggingFaceTarget, load_target
from eyespan.testing import packed, tiny_target
from eyespan.train import capture as capturing
from eyespan.train.capture import CaptureConfig, capture
from eyespan.train.config import load_config, parse_config
from eyespan.train.conversations import DemoSource, messages_of
from eyespan.train.entropy import EntropyMeter, attention_entropy, candidate_layers
from eyespan.train.report import Report
from eyespan.train.shards import read_about, read_entries, read_lesson
from eyespan.types import DraftTree, Needs, empty_ints

SILENT = Report(silent=True)


@pytest.fixture(scope="module")
def demo() -> HuggingFaceTarget:
    return load_target("demo")


def config(out: Path, **changes: Any) -> CaptureConfig:
    tree = {
        "store": {"out": str(out), "dtype": "float32", "shard_samples": 2, "top": 8},
        "data": {"count": 5},
        "answers": {"regenerate": False},
    }
    for key, value in changes.items():
        table, _, name = key.partition("__")
        tree[table][name] = value
    return parse_config(CaptureConfig, tree)


@pytest.fixture(scope="module")
def captured(demo: HuggingFaceTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two conversations, answered by the target itself."""
    out = tmp_path_factory.mktemp("captured")
    made = capture(
        config(out, data__count=2, answers__regenerate=True, answers__max_new_tokens=12),
        demo,
        SILENT,
    )
    assert made.sequences == 2
    return out


def test_A47_captured_states_are_those_of_live_decoding(
    demo: HuggingFaceTarget, captured: Path
) -> None:
    about = read_about(captured)
    layers = tuple(about["layers"])
    assert layers == (2, 6, 9)
    assert about["mid_candidates"] == [1, 2]
    needs = Needs(hidden_layers=(-1, *layers), visual_tokens=True)
    for entry in read_entries(captured, about["shards"]):
        kept = read_lesson(captured, entry)
        ids, supervise = kept["input_ids"].numpy(), kept["supervise"].numpy()
        source = DemoSource(seed=4711, count=2)[entry.place]
        first = int(np.flatnonzero(supervise)[0])
        prompt = demo.prepare(messages_of(source, (), 0), list(source.images))
        assert np.array_equal(prompt.ids, ids[: first + 1])
        state, prefill = demo.prefill(prompt, needs)
        assert int(prefill.next_row_ids[0]) == ids[first + 1] == kept["top_ids"][0, 0]
        np.testing.assert_allclose(kept["visual"], prefill.extras["visual_tokens"], atol=1e-5)
        live = [prefill.extras["hidden"]]
        steps = 0
        while supervise[first + 1 + steps]:  # the first answer, one token at a time
            token = np.array([ids[first + 1 + steps]], np.int32)
            tree = packed(DraftTree(empty_ints(), empty_ints()), root=int(token[0]))
            out = demo.forward([state], [tree], needs)[0]
            demo.keep(state, empty_ints())
            live.append(out.extras["hidden"])
            np.testing.assert_array_equal(out.row_ids[0][:8], kept["top_ids"][1 + steps][:8])
            np.testing.assert_allclose(
                out.row_logits[0][:8], kept["top_logits"][1 + steps][:8], atol=2e-3
            )
            steps += 1
        seen = np.concatenate(live)
        for place, name in enumerate(["final", *(f"layer.{layer}" for layer in layers)]):
            np.testing.assert_allclose(kept[name][: len(seen)], seen[:, place], atol=2e-3)
        assert steps > 3


def test_every_answer_is_the_targets_own_and_only_answers_are_supervised(
    demo: HuggingFaceTarget, captured: Path
) -> None:
    about = read_about(captured)
    for entry in read_entries(captured, about["shards"]):
        kept = read_lesson(captured, entry)
        ids, at = kept["input_ids"].long(), kept["supervise"].nonzero()[:, 0]
        assert entry.supervised == len(at) > 0
        assert torch.equal(ids[at + 1], kept["top_ids"][:, 0].long())
        assert not kept["media"][at + 1].any()
        spread = kept["top_logits"] - kept["log_sum_exp"][:, None]
        assert bool((spread.exp().sum(-1) <= 1 + 1e-5).all())
        assert int((ids == about["image_token_id"]).sum()) == entry.visual == 144


def test_the_intermediate_state_is_that_of_the_least_scattered_layer(
    demo: HuggingFaceTarget, captured: Path
) -> None:
    """Against attention maps of stock eager attention, kept whole."""
    entry = read_entries(captured, 1)[0]
    kept = read_lesson(captured, entry)
    source = DemoSource(seed=4711, count=2)[0]
    eager = load_target("demo", attention="eager")
    prompt = eager.prepare(messages_of(source, (), 0), list(source.images))
    with torch.no_grad():
        out = eager.model(
            input_ids=kept["input_ids"].long()[None],
            output_hidden_states=True,
            output_attentions=True,
            **prompt.media,
        )
    maps = torch.stack([out.attentions[layer][0] for layer in (1, 2)])
    entropy = -(maps * maps.clamp_min(1e-30).log()).sum(-1).mean(1)
    chosen = entropy.argmin(0)
    assert set(chosen.tolist()) == {0, 1}, "both layers should win somewhere"
    at = kept["supervise"].nonzero()[:, 0]
    for place, position in enumerate(at.tolist()):
        if abs(float(entropy[0, position] - entropy[1, position])) < 1e-3:
            continue
        wanted = out.hidden_states[1 + int(chosen[position])][0, position]
        torch.testing.assert_close(kept["mid"][place], wanted, atol=2e-3, rtol=0)


@pytest.mark.parametrize("length", [3, 130])
@pytest.mark.parametrize("kind", ["causal", "bool", "additive"])
def test_entropy_in_blocks_equals_whole_maps(length: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(1, 4, length, 8, generator=generator)
    key = torch.randn(1, 2, length, 8, generator=generator)
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if kind != "causal":
        seen &= torch.ones(length, length, dtype=torch.bool).triu(-2)
    mask = {
        "causal": None,
        "bool": seen[None, None],
        "additive": torch.zeros(length, length).masked_fill(~seen, -1e30)[None, None],
    }[kind]
    scores = (query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3).masked_fill(
        ~seen, -torch.inf
    )
    maps = scores.softmax(-1)
    slow = -torch.where(maps > 0, maps * maps.log(), 0.0).sum(-1).mean(1)
    torch.testing.assert_close(attention_entropy(query, key, mask, 0.3), slow)


def test_candidate_layers_are_the_papers() -> None:
    assert candidate_layers(32) == tuple(range(1, 11))
    assert candidate_layers(28) == tuple(range(1, 10))
    assert candidate_layers(7) == ()


def test_an_interrupted_capture_resumes_to_identical_shards(
    demo: HuggingFaceTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests(folder: Path) -> dict[str, str]:
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.iterdir())
        }

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    capture(config(whole), demo, SILENT)
    assert len(digests(whole)) == 4
    lesson, calls = capturing._lesson, []

    def failing(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return lesson(*args)

    monkeypatch.setattr(capturing, "_lesson", failing)
    with pytest.raises(KeyboardInterrupt):
        capture(config(broken), demo, SILENT)
    assert len(digests(broken)) == 2
    monkeypatch.setattr(capturing, "_lesson", lesson)
    shard = next(broken.glob("shard-*"))
    before = shard.stat().st_mtime_ns
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert capture(config(broken), demo, SILENT).sequences == 2
    monkeypatch.setenv("RANK", "0")
    done = capture(config(broken), demo, SILENT)
    assert (done.kept, done.sequences) == (1, 1)
    assert digests(broken) == digests(whole)
    assert shard.stat().st_mtime_ns == before


def test_A47_states_of_another_meaning_are_refused(captured: Path, tmp_path: Path) -> None:
    manifest = json.loads((captured / "manifest.json").read_text())
    copy = tmp_path / "manifest.json"
    manifest["about"]["state_meaning"] = "a layer index i is the state leaving decoder layer i"
    copy.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="changed after the capture"):
        read_about(tmp_path)
    from eyespan.train.shards import plan_digest

    manifest["plan"] = plan_digest(manifest["about"])
    copy.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="leaving decoder layer"):
        read_about(tmp_path)


def test_A47_a_model_whose_states_mean_something_else_is_refused(
    demo: HuggingFaceTarget, tmp_path: Path
) -> None:
    layer = demo.model.get_decoder().layers[2]

    def shifted(module: Any, args: Any) -> Any:
        return (args[0] + 1.0, *args[1:])

    hook = layer.register_forward_pre_hook(shifted)  # a tap behind the place where states are taken
    try:
        with pytest.raises(UnsupportedTarget, match="entering layer 2"):
            capture(config(tmp_path), demo, SILENT)
    finally:
        hook.remove()


def test_another_capture_in_the_folder_and_missing_shards_are_refused(
    demo: HuggingFaceTarget, captured: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"differs in .*data"):
        capture(config(captured, data__count=3), demo, SILENT)
    capture(config(tmp_path, data__count=3, data__max_length=200), demo, SILENT)
    (tmp_path / "shard-00001.safetensors").unlink()
    with pytest.raises(InputError, match="shard 1 of 2"):
        read_entries(tmp_path, 2)


def test_a_full_disk_is_refused_before_the_first_answer(
    demo: HuggingFaceTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = capturing.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(capturing.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InputError, match="MB are needed"):
        capture(config(tmp_path / "new"), demo, SILENT)
    assert not list((tmp_path / "new").glob("shard-*"))


def test_what_cannot_be_captured_is_refused(tmp_path: Path) -> None:
    tiny = tiny_target("llava")
    with pytest.raises(UnsupportedTarget, match="at least 8"):
        capture(config(tmp_path), tiny, SILENT)
    with pytest.raises(UnsupportedTarget, match="entering layer 5"):
        capture(config(tmp_path, store__mid=False, store__layers=[5]), tiny, SILENT)
    with pytest.raises(UnsupportedTarget, match="sdpa"):
        EntropyMeter(load_target("demo", attention="eager").model, (1,))
    for bad in ({"store__top": 0}, {"store__dtype": "float16"}, {"data__count": 0}):
        with pytest.raises(ConfigError):
            config(tmp_path, **bad)


def test_folders_of_records_are_read(demo: HuggingFaceTarget, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for index, sample in enumerate(held_out(2, seed=1)):
        sample.image.save(data / f"{index}.png")
    records = [
        {"id": "one", "images": ["0.png"], "question": "What is it?", "answer": "It is a chart."},
        {"turns": [{"question": "Hi", "answer": "Yes."}, {"question": "So?", "answer": "No."}]},
    ]
    (data / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    said = [{"from": "human", "value": "<image>\nRead it."}, {"from": "gpt", "value": "No."}]
    (data / "b.json").write_text(json.dumps([{"image": "1.png", "conversations": said}]))
    made = config(tmp_path / "out", data__source=f"folder:{data}")
    made = replace(made, data=replace(made.data, count=None))
    assert capture(made, demo, SILENT).sequences == 3
    entries = read_entries(made.store.out, 2)
    assert [(entry.id, entry.visual) for entry in entries] == [
        ("one", 144), ("a.jsonl:2", 0), ("b.json:1", 144),
    ]  # fmt: skip
    kept = read_lesson(made.store.out, entries[1])
    ids, at = kept["input_ids"], kept["supervise"].nonzero()[:, 0]
    assert demo.decode(ids[at + 1].numpy()) == "Yes.No."
    (data / "a.jsonl").write_text('{"images": ["9.png"], "question": "?"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:1.*no picture"):
        capture(made, demo, SILENT)


def test_what_is_measured_on_is_not_learned_from(demo: HuggingFaceTarget, tmp_path: Path) -> None:
    """By the pixels of a run's inputs, whatever file holds them, and by LLaVA-665K's own rule."""
    data, measured = tmp_path / "data", tmp_path / "results" / "table1"
    data.mkdir()
    (tmp_path / "asked").mkdir()
    first, second = (sample.image for sample in held_out(2, seed=1))
    first.save(data / "0.png")
    first.save(tmp_path / "asked" / "same.bmp")
    second.save(data / "1.png")
    ids = ["a", "b", next(str(n) for n in range(999) if is_held_out(str(n)))]
    records = [
        {"id": name, "images": [f"{min(at, 1)}.png"], "question": "What?", "answer": "Yes."}
        for at, name in enumerate(ids)
    ]
    (data / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "asked" / "questions.jsonl").write_text('{"images": ["same.bmp"], "question": "?"}')
    source = open_source(f"folder:{tmp_path / 'asked'}")
    load_selection(measured / "inputs" / "x.json", source, inputs=1, warm_up=0, seed=1)

    def captured_of(out: str, *names: object) -> tuple[list[str], dict[str, str]]:
        made = config(
            tmp_path / out, data__source=f"folder:{data}", data__leave_out=[*map(str, names)]
        )
        done = capture(made, demo, SILENT)
        return [entry.id for entry in read_entries(tmp_path / out, 2)], done.skipped

    kept, lost = captured_of("pictures", tmp_path / "results")
    assert kept == ids[1:]
    assert "measured on" in lost["a"]
    kept, lost = captured_of("both", measured, "llava_665k")
    assert (kept, set(lost)) == (["b"], {"a", ids[2]})
    with pytest.raises(InputError, match="left_out"):
        captured_of("both", measured)
    assert captured_of("neither")[0] == ids
    for bad in (tmp_path / "nowhere", data, data / "a.jsonl"):
        with pytest.raises(InputError, match="no list of"):
            captured_of("bad", bad)
    assert not (tmp_path / "bad").exists()


def test_training_pictures_are_never_held_out_ones() -> None:
    def pictures(images: Any) -> set[bytes]:
        return {hashlib.sha256(image.tobytes()).digest() for image in images}

    source = DemoSource(seed=20261130, count=30)  # even with the held-out set's own seed
    training = pictures(source[index].images[0] for index in range(30))
    assert len(training) == 30
    assert not training & pictures(sample.image for sample in held_out(60))


def test_configs_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "capture.toml"
    file.write_text('[store]\nout = "x"\nlayers = [1, 2]\n[data]\ncount = 3\n')
    made = load_config(
        CaptureConfig, file, ["data.count=7", "target.model=my/model", "store.mid=false"]
    )
    assert (made.data.count, made.target.model, made.store.mid) == (7, "my/model", False)
    assert made.store.layers == (1, 2)
    assert made.store.out == Path("x")
    for bad, match in (
        ("data.cuont=3", "Did you mean 'data.count'"),
        ("data.count=many", "'many'"),
        ("store.mid=1", "type bool"),
        ("store.layers=first", "layers"),
        ("data", "a.b=c"),
        ("data.count.x=1", "on the way"),
    ):
        with pytest.raises(ConfigError, match=match):
            load_config(CaptureConfig, file, [bad])
    with pytest.raises(ConfigError, match=r"store\.out"):
        parse_config(CaptureConfig, {"store": {}})
    file.write_text("not toml")
    with pytest.raises(InputError, match="TOML"):
        load_config(CaptureConfig, file)

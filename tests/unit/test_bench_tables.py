"""RECAP's parts on the demo's set: rows name options, tokens are classed by what tells them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from eyespan.bench import recap_table
from eyespan.bench.held_out import asks
from eyespan.bench.manifest import manifest
from eyespan.demo import KINDS
from eyespan.drafters import make_drafter
from eyespan.generation import Engine
from eyespan.testing import tiny_target


@pytest.mark.parametrize("name", recap_table.ROWS)
def test_every_row_is_a_setting_of_recap(name: str) -> None:
    options = recap_table.ROWS[name]
    config = make_drafter("recap", vocab_size=64, **options).config_dict()
    assert {key: config[key] for key in options} == options


def test_rows_differ() -> None:
    settings = [repr(sorted(options.items())) for options in recap_table.ROWS.values()]
    assert len(set(settings)) == len(settings)


def test_tokens_are_classed_by_what_tells_them() -> None:
    ask = next(iter(asks(1)))
    assert ask.subject == "receipt"
    pieces = ['{"shop": "', "Old", " Market", '", "', "total", '": ', "4", ".", ""]
    drafted = [False, False, True, True, True, True, False, True, True]
    tally = recap_table.Tally(0, 0, {False: 0, True: 0}, {False: 0, True: 0})
    tally.add(ask, pieces, drafted)
    assert tally.all == {False: 5, True: 3}
    assert tally.drafted == {False: 4, True: 1}
    assert tally.share(False) == 0.8


@pytest.mark.parametrize("options", [{}, {"orders": "U", "suffix_tokens": 0}])
def test_every_token_with_text_is_counted_once(options: dict[str, Any]) -> None:
    """Whatever the drafter guesses, the counts of both classes are those of the same answer."""
    target = tiny_target("llava")
    ask = next(iter(asks(1)))
    tally = recap_table.measure(target, options, [ask])
    plain = Engine(target, "none", budget=0).generate(
        ask.messages, [ask.image], max_new_tokens=recap_table.MAX_NEW_TOKENS
    )
    shown = recap_table.texts(target.decode, plain.token_ids)
    assert "".join(shown) == plain.text
    assert sum(tally.all.values()) == sum(text != "" for text in shown)
    assert tally.tokens == len(plain.token_ids)
    assert sum(tally.drafted.values()) > 0


def test_a_dialog_asks_on_with_the_true_answers_as_history() -> None:
    dialog = [ask for ask in asks(6) if ask.kind == "dialog"]
    assert [ask.kind for ask in asks(6)][: len(KINDS) - 1] == list(KINDS[:-1])
    assert len(dialog) >= 3
    for number, ask in enumerate(dialog):
        roles = [message["role"] for message in ask.messages]
        assert roles == ["user", "assistant"] * number + ["user"]
        parts = [part for message in ask.messages[::2] for part in message["content"]]
        assert [part["type"] for part in parts] == ["image", *["text"] * (number + 1)]
    assert dialog[1].messages[1]["content"] == dialog[0].turn.answer


def test_a_number_has_a_birth_certificate() -> None:
    made = manifest()
    assert set(made) == {"commit", "versions", "machine", "threads", "command", "time"}
    assert {"eyespan", "torch", "transformers"} <= set(made["versions"])


def test_a_command_names_the_program_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for called in ("/somewhere/bin/eyespan", "/somewhere/src/eyespan/__main__.py"):
        monkeypatch.setattr(sys, "argv", [called, "bench", "run", "a file.toml"])
        assert manifest()["command"] == "eyespan bench run 'a file.toml'"

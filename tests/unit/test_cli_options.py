"""Option texts become values of the right type, or a refusal."""

from __future__ import annotations

import pytest

from eyespan.errors import ConfigError
from eyespan.verbs.options import budget_of, drafter_options


@pytest.mark.parametrize(
    ("text", "value"), [("auto", "auto"), ("fixed", "fixed"), ("0", 0), ("127", 127)]
)
def test_budgets(text: str, value: object) -> None:
    assert budget_of(text) == value


@pytest.mark.parametrize("text", ["", "-1", "128", "1.5", "Auto", "²"])
def test_not_budgets(text: str) -> None:
    with pytest.raises(ConfigError):
        budget_of(text)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("nodes=20", 20),
        ("fusion=gate", "gate"),
        ("suffix_inside_budget=true", True),
        ("suffix_inside_budget=No", False),
        ("eta=0.5,0.4", (0.5, 0.4)),
        ("eta=[0.5]", (0.5,)),
        ("priors=sharp", "sharp"),
        ("priors=[0.8, 0.1, 0.1]", [0.8, 0.1, 0.1]),
    ],
)
def test_options_have_the_type_of_the_config(pair: str, value: object) -> None:
    assert drafter_options("recap", [pair]) == {pair.split("=")[0]: value}


def test_options_of_drafters_that_depend_on_another_option() -> None:
    """A variant's own values in any order; the options of a drafter that was named before."""
    pairs = ["shortest=5", "variant=vllm", "apart=no"]
    assert drafter_options("prompt_lookup", pairs) == {
        "shortest": 5,
        "variant": "vllm",
        "apart": False,
    }
    pairs = ["wrapped=tree_recycling", "width=1", "threshold=0.5"]
    assert drafter_options("viskip", pairs) == {
        "wrapped": "tree_recycling",
        "width": 1,
        "threshold": 0.5,
    }
    with pytest.raises(ConfigError, match="width"):
        drafter_options("viskip", ["width=1"])


@pytest.mark.parametrize(
    "pair", ["nodes=1.5", "fusion=best", "suffix_inside_budget=perhaps", "eta=a,b", "width=99"]
)
def test_options_that_do_not_fit(pair: str) -> None:
    with pytest.raises(ConfigError, match=pair.split("=")[0]):
        drafter_options("recap", [pair])

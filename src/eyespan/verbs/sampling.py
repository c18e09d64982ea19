"""Options of the command line that say how tokens are chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from eyespan.errors import ConfigError, InputError
from eyespan.sampling import Sampling

TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature", metavar="T", help="Draw tokens at random; 0, the default, is greedy."
    ),
]
TopPOption = Annotated[
    float | None, typer.Option("--top-p", metavar="P", help="Draw from the best P of probability.")
]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", metavar="K", help="Draw from the K best tokens.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Repeat the same draws.")
]
SchemaOption = Annotated[
    Path | None,
    typer.Option("--json-schema", metavar="FILE", help="The answer is JSON of this schema."),
]
RegexOption = Annotated[
    str | None, typer.Option("--regex", metavar="PATTERN", help="The answer matches a pattern.")
]
ChoiceOption = Annotated[
    list[str] | None,
    typer.Option("--choice", metavar="TEXT", help="The answer is one of these; repeat it."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Half precision: decide near ties as plain decoding does, at the cost of more "
        "forwards.",
    ),
]


def sampling_of(
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    schema: Path | None = None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    strict: bool = False,
) -> dict[str, Any]:
    """Keyword options of `Engine.generate`, JSON-ready; those left out are not in it.

    Raises:
        ConfigError: a value out of range, or more than one form of answer.
        InputError: the schema file cannot be read.
    """
    forms: dict[str, Any] = {
        "--json-schema": schema and {"type": "json_schema", "schema": _schema(schema)},
        "--regex": regex and {"type": "regex", "regex": regex},
        "--choice": choice and {"type": "choice", "choices": list(choice)},
    }
    given = [name for name, form in forms.items() if form]
    if len(given) > 1:
        raise ConfigError(
            " with ".join(given),
            found="more than one form of the answer",
            needed="one of --json-schema, --regex and --choice",
            todo="Use one of them.",
        )
    options = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "response_format": forms[given[0]] if given else None,
        "strict": strict or None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    Sampling.of(options)
    return options


def _schema(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"schema file {file}",
            found=error.strerror or str(error) if isinstance(error, OSError) else str(error),
            needed="a JSON file that can be read",
            todo="Check the path and its JSON.",
        ) from error

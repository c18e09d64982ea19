"""Checks that drafters' options share: names first, then values; each refusal is one sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from eyespan.counts import real, whole
from eyespan.errors import ConfigError, unknown_name

Config = TypeVar("Config")


def config_of(drafter: str, kind: type[Config], options: Mapping[str, Any]) -> Config:
    """The config of a drafter from its options.

    Args:
        drafter: its name, for error messages.
        kind: a dataclass; it checks its own values.
        options: fields of it by name.

    Raises:
        ConfigError: an option that is no field, or a value that the config refuses.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise unknown_name(f"{drafter} option", option, known)
    return kind(**options)


def check_whole(drafter: str, config: Any, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Every named field of a dataclass must be a whole number from low to high; it is Python's own
    from then on.

    Raises:
        ConfigError: naming the field, its value and its range.
    """
    for field, (low, high) in ranges.items():
        value = getattr(config, field)
        number = whole(value)
        if number is None or not low <= number <= high:
            refuse(drafter, field, value, f"a whole number from {low} to {high}")
        object.__setattr__(config, field, number)


def check_number(drafter: str, config: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Every named field of a dataclass must be a number from low to high; likewise.

    Raises:
        ConfigError: naming the field, its value and its range.
    """
    for field, (low, high) in ranges.items():
        value = getattr(config, field)
        number = real(value)
        if number is None or not low <= number <= high:
            refuse(drafter, field, value, f"a number from {low:g} to {high:g}")
        object.__setattr__(config, field, number)


def check_choice(drafter: str, config: Any, choices: Mapping[str, Collection[str]]) -> None:
    """Every named field must be one of its choices.

    Raises:
        ConfigError: naming the field, its value and the choices.
    """
    for field, allowed in choices.items():
        value = getattr(config, field)
        if not isinstance(value, str) or value not in allowed:
            refuse(drafter, field, value, f"one of {', '.join(allowed)}")


def refuse(drafter: str, field: str, value: object, needed: str) -> NoReturn:
    """Refuse one value of a drafter's option.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        f"{drafter} option '{field}'",
        found=f"it is {value!r:.80}",
        needed=f"it must be {needed}",
        todo=f"Change {field}, or leave it out for the method's published setting.",
    )

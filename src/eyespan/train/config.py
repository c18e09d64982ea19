"""Typed TOML: a file becomes a frozen dataclass, field by field, and `a.b=c` overrides it. Unknown
keys and values of another type are refused before anything runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from eyespan.errors import ConfigError, InputError, unknown_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def load_config(kind: type[T], file: Path, overrides: Sequence[str] = ()) -> T:
    """Read a TOML file into a dataclass.

    Args:
        kind: a dataclass; its fields are keys, nested dataclasses are tables, and a field of type
            `dict[str, Any]` takes any table.
        file: the TOML file.
        overrides: `a.b=c` pairs; `c` is TOML, or text when it is none.

    Raises:
        InputError: the file cannot be read or is not TOML.
        ConfigError: an unknown key, a missing one, or a value of another type.
    """
    try:
        tree = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"config '{file}'",
            found=str(error),
            needed="a TOML file is needed",
            todo="Start from one of runs/*.toml.",
        ) from error
    for pair in overrides:
        _override(tree, pair)
    return parse_config(kind, tree)


def parse_config(kind: type[T], tree: Mapping[str, Any], where: str = "") -> T:
    """A mapping as a dataclass; see `load_config`."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    for key in tree:
        if key not in known:
            raise unknown_name("config key", f"{where}{key}", [f"{where}{name}" for name in known])
    values: dict[str, Any] = {}
    for name, each in known.items():
        if name in tree:
            values[name] = _typed(hints[name], tree[name], f"{where}{name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _wrong(f"{where}{name}", "nothing", f"a value of type {_name(hints[name])}")
    made: T = kind(**values)
    return made


def _override(tree: dict[str, Any], pair: str) -> None:
    path, equals, text = pair.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"override '{pair}'",
            found="no key and value",
            needed="a.b=c is needed",
            todo="For example optimizer.lr=1e-4.",
        )
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise _wrong(path, f"'{key}' is a value", "a table on the way to it")
    tree[keys[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    """TOML where it is TOML, else the text itself, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _typed(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise _wrong(where, repr(value), "a table")
        return parse_config(hint, value, f"{where}.")
    if origin in (Union, UnionType):
        return _typed_union(hint, value, where)
    if origin is Literal:
        if value not in get_args(hint):
            raise unknown_name(f"value of {where}", str(value), map(str, get_args(hint)))
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, repr(value), "a list")
        return tuple(_typed(get_args(hint)[0], item, where) for item in value)
    if origin is dict or hint is dict:
        if not isinstance(value, dict):
            raise _wrong(where, repr(value), "a table")
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise _wrong(where, repr(value), f"a value of type {_name(hint)}")
    return value


def _typed_union(hint: Any, value: Any, where: str) -> Any:
    """The first member that fits; TOML has no null, so None is a key left out."""
    members = [member for member in get_args(hint) if member is not type(None)]
    for member in members:
        try:
            return _typed(member, value, where)
        except ConfigError:
            if len(members) == 1:
                raise
    raise _wrong(where, repr(value), f"a value of type {_name(hint)}")


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


def _wrong(where: str, found: str, needed: str) -> ConfigError:
    return ConfigError(
        f"config key '{where}'",
        found=found,
        needed=f"{needed} is needed",
        todo="See docs/train.md for every key.",
    )

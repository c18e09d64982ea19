"""What a run measures: a TOML file, checked whole before anything is loaded.

    tables = ["recap_table1"]       # what is made of the results (see `eyespan.bench.builders`)
    datasets = ["demo:receipt", "demo:table"]
    max_inputs = 8                  # of each
    [presets.paper]                 # the same run elsewhere: `eyespan bench run FILE preset=paper`
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    datasets = ["chartqa", "ocrbench"]
    [[methods]]
    label = "RECAP"
    drafter = "recap"

`[checkpoints]` says where the weights of trained drafters are, by the drafter's name, for methods
that name none: `fovea = "demo"`. A preset may have a table of its own.

`base = "other.toml"` takes what is not said from another file. Any key but the lists of tables can
be set on the command line: `max_inputs=20`, `methods="RECAP,Token Recycling"`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from eyespan.bench.datasets import check_name
from eyespan.bench.records import COMPILED, NOISE, PLAIN, STOCK
from eyespan.budget import Budget, check_budget
from eyespan.drafters import DRAFTERS, TRAINED, make_drafter
from eyespan.errors import ConfigError, InputError, unknown_name

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Boundary: TypeAlias = Literal["reset", "task"]
Schedule: TypeAlias = Literal["blocked", "alternating"]
Pairing: TypeAlias = Literal["each", "round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to decode.

    Attributes:
        label: its name in tables.
        drafter: a name of `eyespan.drafters.DRAFTERS`.
        budget: "fixed" (the published tree), "auto", or a number of nodes.
        options: fields of the drafter's config.
        optional: leave it out, saying why, where it cannot be made (trained drafters without a
            checkpoint here).
    """

    label: str
    drafter: str
    budget: Budget = "fixed"
    options: Mapping[str, Any] = field(default_factory=dict)
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One method against another on the same inputs, round by round.

    Attributes:
        label: its name in tables.
        method, over: labels of methods.
        section: heading that it stands under.
    """

    label: str
    method: str
    over: str
    section: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A whole run.

    Attributes:
        title: in words, for captions.
        tables: builders that make tables and figures of the results.
        model, dtype, device: as `eyespan.load` takes them.
        datasets: names of sets (see `eyespan.bench.datasets`).
        max_inputs: most inputs of each set.
        per_category: most of each of its categories; 0 is any number.
        max_new_tokens: longest answer.
        seeds: orders of inputs; each is a stream of its own. The first also draws the inputs.
        schedules: "blocked" (set after set) or "alternating" (one input of each in turn); each is
            run with every seed.
        boundary: what happens between sets: "reset" empties all memories, "task" tells drafters
            that a new task begins (appendix D).
        repeats: answers of each method to each input. Every repeat has a memory of its own, so
            none has seen an input before.
        pairing: "each" gives every method a plain run right beside it (A B A B), "round" lets all
            share one.
        noise: whether a second plain side runs, as a measure of the machine.
        stock: whether stock `generate()` runs.
        compiled: whether it runs once more with a static cache and a compiled forward; where that
            cannot be, the column is left out and the manifest says why.
        compiled_passes: whether our loop, plain and with every method, runs in compiled passes.
        warm_up: inputs that everyone answers before anything is timed; memories are then emptied.
        resamples: of bootstrap intervals.
        occupancies: keys of a stress run (table 11).
        methods: what is measured.
        compare: what is compared with what, for tables of gains.
    """

    title: str = ""
    tables: tuple[str, ...] = ()
    model: str = "demo"
    dtype: str | None = None
    device: str | None = None
    datasets: tuple[str, ...] = ("demo",)
    max_inputs: int = 24
    per_category: int = 0
    max_new_tokens: int = 200
    seeds: tuple[int, ...] = (17,)
    schedules: tuple[Schedule, ...] = ("blocked",)
    boundary: Boundary = "reset"
    repeats: int = 1
    pairing: Pairing = "each"
    noise: bool = True
    stock: bool = True
    compiled: bool = False
    compiled_passes: bool = False
    warm_up: int = 2
    resamples: int = 2000
    occupancies: tuple[int, ...] = (1_000, 10_000)
    methods: tuple[Method, ...] = ()
    compare: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the key, its value and its range.
        """
        for key, (low, high) in _RANGES.items():
            value = getattr(self, key)
            if type(value) is not int or not low <= value <= high:
                _refuse(key, value, f"a whole number from {low} to {high}")
        for key, choices in _CHOICES.items():
            if getattr(self, key) not in choices:
                _refuse(key, getattr(self, key), f"one of {', '.join(choices)}")
        for key in ("noise", "stock", "compiled", "compiled_passes"):
            if type(getattr(self, key)) is not bool:
                _refuse(key, getattr(self, key), "true or false")
        for key in ("title", "model"):
            if not isinstance(getattr(self, key), str):
                _refuse(key, getattr(self, key), "text")
        for key in ("dtype", "device"):
            if not isinstance(getattr(self, key), str | None):
                _refuse(key, getattr(self, key), "text")
        for key, kind in _LISTS.items():
            value = getattr(self, key)
            if not all(type(one) is kind for one in value) or len(set(value)) < len(value):
                _refuse(key, list(value), f"a list of different {_WORDS[kind]}")
        for schedule in self.schedules:
            if schedule not in get_args(Schedule):
                _refuse("schedules", schedule, f"one of {', '.join(get_args(Schedule))}")
        for key in ("datasets", "seeds", "schedules", "occupancies"):
            if not getattr(self, key):
                _refuse(key, [], "a list with something in it")
        if not 1 <= min(self.occupancies) <= max(self.occupancies) <= _MOST_KEYS:
            _refuse("occupancies", list(self.occupancies), f"numbers from 1 to {_MOST_KEYS}")
        if "alternating" in self.schedules and self.boundary == "reset":
            _refuse("boundary", "reset", "'task' where schedules alternate, or nothing is kept")
        for name in self.datasets:
            check_name(name)
        self._check_methods()

    def _check_methods(self) -> None:
        labels = [method.label for method in self.methods]
        for label in labels:
            if labels.count(label) > 1 or label in (PLAIN, STOCK, COMPILED, NOISE) or not label:
                _refuse("methods.label", label, "a name of its own for every method")
            if "," in label:
                _refuse("methods.label", label, "without commas, which separate labels")
        for method in self.methods:
            check_budget(method.budget)
        for one in self.compare:
            for label in (one.method, one.over):
                if label not in labels:
                    raise unknown_name("method of a comparison", label, labels)

    def measured(self) -> dict[str, Any]:
        """What the results depend on, JSON-ready: a folder's results are continued or shown anew
        only under equal settings.
        """
        shown = ("title", "tables", "compare", "resamples")
        values = {key: value for key, value in asdict(self).items() if key not in shown}
        for later in ("compiled_passes", "per_category"):
            if not values[later]:
                del values[later]  # folders from before there were any go on
        return values


_MOST_KEYS = 1 << 20
"""More than any vocabulary has."""

_RANGES = {
    "max_inputs": (1, 1_000_000),
    "per_category": (0, 1_000_000),
    "max_new_tokens": (1, 1_000_000),
    "repeats": (1, 100),
    "warm_up": (0, 1000),
    "resamples": (1, 1_000_000),
}
_CHOICES = {"boundary": get_args(Boundary), "pairing": get_args(Pairing)}
_WORDS = {str: "names", int: "whole numbers"}
_LISTS = {"tables": str, "datasets": str, "seeds": int, "schedules": str, "occupancies": int}


def usable_methods(settings: Settings) -> tuple[tuple[Method, ...], dict[str, str]]:
    """Methods that can be made here, and why the optional others cannot.

    Raises:
        ConfigError: a method that is not optional has an unknown drafter or option.
    """
    usable, skipped = [], {}
    for method in settings.methods:
        try:
            if method.drafter not in DRAFTERS:
                raise unknown_name("drafter", method.drafter, DRAFTERS)
            make_drafter(method.drafter, vocab_size=_ANY_VOCABULARY, **method.options)
        except (ConfigError, InputError) as error:
            if not method.optional:
                raise
            skipped[method.label] = f"{error.found}; {error.needed}"
        else:
            usable.append(method)
    return tuple(usable), skipped


_ANY_VOCABULARY = 64
"""Configs do not depend on it; the real drafter gets the target's own."""


def load_settings(file: Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a run's file.

    Args:
        file: TOML.
        overrides: `key=value` pairs; `preset=NAME` applies a preset of the file first.

    Raises:
        ConfigError: an unknown key or preset, or a value that does not fit.
        InputError: the file cannot be read.
    """
    values = _read(file)
    presets = _table(values.pop("presets", {}), "presets")
    wanted = dict(_pair(text) for text in overrides)
    preset = wanted.pop("preset", None)
    if preset is not None:
        if preset not in presets:
            raise unknown_name(f"preset of {file.name}", str(preset), presets)
        values |= _table(presets[preset], f"presets.{preset}")
    labels = wanted.pop("methods", None)
    for key in wanted:
        if key in ("tables", "compare"):
            _refuse(key, wanted[key], "set in the file alone")
    settings = _settings({**values, **wanted}, file)
    return settings if labels is None else _only(settings, labels)


def _only(settings: Settings, labels: object) -> Settings:
    """The run with some of its methods."""
    names = [labels] if isinstance(labels, str) else list(labels)  # type: ignore[call-overload]
    known = {method.label: method for method in settings.methods}
    for name in names:
        if name not in known:
            raise unknown_name("method", str(name), known)
    compare = tuple(c for c in settings.compare if c.method in names and c.over in names)
    return replace(settings, methods=tuple(known[name] for name in names), compare=compare)


def _read(file: Path, depth: int = 0) -> dict[str, Any]:
    """A file's keys on top of its base's."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"run file {file}",
            found=getattr(error, "strerror", None) or str(error),
            needed="a TOML file is needed",
            todo="Check its path and text; runs/ holds examples.",
        ) from error
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or depth > _DEEPEST_BASE:
        _refuse("base", base, "the name of a run file that does not lead back to this one")
    below = _read(file.parent / base, depth + 1)
    both = {**below, **values}
    presets = {**below.get("presets", {})}
    for name, changes in _table(values.get("presets", {}), "presets").items():
        presets[name] = {**presets.get(name, {}), **changes}
    return {**both, "presets": presets} if presets else both


_DEEPEST_BASE = 4


def _settings(values: Mapping[str, Any], file: Path) -> Settings:
    known = {one.name for one in fields(Settings)}
    typed: dict[str, Any] = dict(values)
    checkpoints = _checkpoints(typed.pop("checkpoints", {}))
    for key in typed:
        if key not in known:
            raise unknown_name(f"key of {file.name}", key, [*known, "checkpoints"])
    for key in (*_LISTS, "methods", "compare"):
        if key in typed:
            value = typed[key]
            typed[key] = tuple(value) if isinstance(value, list) else (value,)
    typed["methods"] = tuple(
        _with_checkpoint(_build(Method, one, "methods", file), checkpoints)
        for one in typed.get("methods", ())
    )
    typed["compare"] = tuple(
        _build(Comparison, one, "compare", file) for one in typed.get("compare", ())
    )
    return Settings(**typed)


def _checkpoints(value: object) -> dict[str, str]:
    """Folders of trained drafters by name."""
    folders = _table(value, "checkpoints")
    known = {*TRAINED, "hybrid"}
    for name, folder in folders.items():
        if name not in known:
            raise unknown_name("drafter of [checkpoints]", name, known)
        if not isinstance(folder, str):
            _refuse(f"checkpoints.{name}", folder, "a folder's name")
    return folders


def _with_checkpoint(method: Method, folders: Mapping[str, str]) -> Method:
    folder = folders.get(method.drafter)
    if folder is None:
        return method
    return replace(method, options={"checkpoint": folder, **method.options})


def _build(kind: Any, values: object, where: str, file: Path) -> Any:
    """A nested table as its dataclass."""
    table = _table(values, where)
    known = {one.name: one for one in fields(kind)}
    for key in table:
        if key not in known:
            raise unknown_name(f"key of [[{where}]] in {file.name}", key, known)
    try:
        made = kind(**table)
    except TypeError as error:
        _refuse(where, values, f"complete ({error})")
    for key, value in table.items():
        wanted = _KINDS.get(key, str)
        if not isinstance(value, wanted):
            _refuse(f"{where}.{key}", value, _SAID.get(key, "text"))
    return made


_KINDS: Mapping[str, Any] = {"budget": (str, int), "options": dict, "optional": bool}
_SAID = {"budget": "a name or a whole number", "options": "a table", "optional": "true or false"}


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, value, "a table of keys")
    return dict(value)


def _pair(text: str) -> tuple[str, Any]:
    """`key=value`, the value as TOML where it is TOML, else as text; commas make a list."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"'{text}'",
            found="no key=value",
            needed="run files end in .toml, settings are key=value",
            todo="Write for example max_inputs=20 or model=./my-model.",
        )
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        return key, [part.strip() for part in value.split(",")] if "," in value else value


def _refuse(key: str, value: object, needed: str) -> NoReturn:
    raise ConfigError(
        f"'{key}' of a run",
        found=f"it is {value!r}",
        needed=f"it must be {needed}",
        todo="Change it, or leave it out for the default.",
    )

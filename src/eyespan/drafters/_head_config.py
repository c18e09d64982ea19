"""The shape of a trained head and of its trees: what it copies of the target's decoder layer, and
what may still be changed when it drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_type_hints

from eyespan.counts import real, whole
from eyespan.errors import ConfigError, unknown_name
from eyespan.types import MAX_PACK

if TYPE_CHECKING:
    from eyespan.target.weights import TargetShape

C = TypeVar("C", bound="HeadConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Shape of a head and of its trees; JSON-ready.

    Attributes:
        hidden_size, heads, kv_heads, head_dim, intermediate_size, rms_eps, rope_theta, vocab_size,
            qkv_bias: as the target has them, see `TargetShape`.
        layers: blocks of the head.
        nodes: of a tree, root excluded.
        width: candidates taken at a node, and nodes expanded at a level.
        depth: longest path.
    """

    DECODING: ClassVar[frozenset[str]] = frozenset({"nodes", "width", "depth"})
    """Fields that may be changed when a trained head decodes; the others shape its weights."""

    hidden_size: int
    layers: int = 1
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    vocab_size: int
    qkv_bias: bool = False
    nodes: int = 40
    width: int = 6
    depth: int = 6

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field.
        """
        own = check_kinds(type(self), asdict(self), type(self).__name__)
        for name, value in own.items():
            object.__setattr__(self, name, value)
        for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "vocab_size"):
            need(self, name, getattr(self, name) >= 1, "at least 1")
        need(self, "kv_heads", self.heads % self.kv_heads == 0, f"a divisor of heads={self.heads}")
        need(self, "head_dim", self.head_dim % 2 == 0, "even: rotary positions turn pairs")
        need(self, "nodes", 1 <= self.nodes < MAX_PACK, f"from 1 to {MAX_PACK - 1}")
        need(self, "width", 1 <= self.width <= 64, "from 1 to 64")
        need(self, "depth", 1 <= self.depth <= 32, "from 1 to 32")

    def to_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return asdict(self)

    @classmethod
    def from_json(cls: type[C], values: Mapping[str, Any]) -> C:
        """A config from what `to_json` gave, or from a user's file.

        Raises:
            ConfigError: an unknown field, a missing one, a value of another kind or out of range.
        """
        known = {field.name: field for field in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name(f"field of {cls.__name__}", name, known)
        made: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        try:
            return cls(**made)
        except TypeError as error:
            raise ConfigError(
                f"making a {cls.__name__}",
                found=str(error),
                needed=f"fields are {', '.join(known)}",
                todo="Build it with for_target(), or repair the manifest.",
            ) from error

    @classmethod
    def for_target(cls: type[C], shape: TargetShape, **options: Any) -> C:
        """A config whose blocks look like a target's layers.

        Args:
            shape: of the target.
            **options: other fields, or other values for the copied ones.

        Raises:
            ConfigError: see `from_json`.
        """
        copied = {name: getattr(shape, name) for name in _COPIED}
        return cls.from_json({**copied, **cls.from_shape(shape), **options})

    @classmethod
    def from_shape(cls, shape: TargetShape) -> dict[str, Any]:
        """Fields of this method that follow from the target, such as the layers it reads."""
        return {}


_COPIED = (
    "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "rms_eps", "rope_theta",
    "vocab_size", "qkv_bias",
)  # fmt: skip


def need(config: Any, name: str, holds: bool, needed: str) -> None:
    """Refuse a field's value unless it holds.

    Raises:
        ConfigError: naming the field, its value and what it must be.
    """
    if not holds:
        raise ConfigError(
            f"{type(config).__name__}.{name}",
            found=f"it is {getattr(config, name)!r}",
            needed=f"it must be {needed}",
            todo=f"Change {name}, or leave it out for the published setting.",
        )


def check_kinds(kind: type[HeadConfig], values: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Refuse values of another kind than their fields: configs come from TOML and JSON too.

    Args:
        kind: config whose fields they are.
        values: some or all of its fields; unknown ones are not looked at.
        whose: config or drafter, for the message.

    Returns:
        The values, whole numbers and numbers as Python's own.

    Raises:
        ConfigError: naming the field.
    """
    hints, own = get_type_hints(kind), dict(values)
    for name, value in values.items():
        if hints.get(name) in _KINDS:
            read, needed = _KINDS[hints[name]]
            own[name] = read(value)
            if own[name] is None:
                raise ConfigError(
                    f"{whose}.{name}",
                    found=f"it is {value!r:.80}",
                    needed=f"it must be {needed}",
                    todo=f"Change {name}, or leave it out for the published setting.",
                )
    return own


_KINDS: Mapping[Any, tuple[Callable[[Any], Any], str]] = {
    int: (whole, "a whole number"),
    float: (real, "a number"),
    bool: (lambda value: value if type(value) is bool else None, "true or false"),
}
"""How a value of a kind is read; None is no such value."""


def check_options(name: str, kind: type[HeadConfig], options: Mapping[str, Any]) -> None:
    """Refuse options of a trained head's drafter that are no fields or would change its weights.

    Args:
        name: of the drafter.
        kind: its config.
        options: as given, without the checkpoint.

    Raises:
        ConfigError: naming the option.
    """
    known = sorted(kind.DECODING)
    for option in options:
        if option in kind.__dataclass_fields__ and option not in known:
            raise ConfigError(
                f"{name} option '{option}'",
                found="a field that shapes the weights",
                needed=f"when decoding, these may change: {', '.join(known)}",
                todo="Train a drafter with it instead.",
            )
        if option not in known:
            raise unknown_name(f"{name} option", option, ["checkpoint", *known])
    check_kinds(kind, options, name)


def defaults(kind: type[HeadConfig]) -> dict[str, Any]:
    """Default values of the fields that may change when decoding."""
    return {name: kind.__dataclass_fields__[name].default for name in sorted(kind.DECODING)}

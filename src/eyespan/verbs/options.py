"""Options that several verbs share, checked before anything slow happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyespan.budget import Budget, check_budget
from eyespan.drafters import make_drafter, with_shipped_weights
from eyespan.errors import ConfigError, unknown_name
from eyespan.rejection import Verification, check_verification
from eyespan.verbs.console import waiting

if TYPE_CHECKING:
    from eyespan.generation import Engine
    from eyespan.target import HuggingFaceTarget

DTYPES = ("float32", "bfloat16", "float16")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", metavar="MODEL", help="'demo', a folder, or a Hugging Face id."),
]
DrafterOption = Annotated[
    str,
    typer.Option("--drafter", "-d", metavar="NAME", help="How to guess; 'none' decodes plainly."),
]
BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="auto|fixed|N",
        help="'auto' (as large as pays here), 'fixed' (the method's published size), or the most "
        "nodes that 'auto' may use.",
    ),
]
VerificationOption = Annotated[
    str,
    typer.Option(
        "--verification",
        metavar="walk|rejection",
        help="'rejection': sampled answers of drafters that know their probabilities; the same "
        "distribution, other numbers.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="DTYPE", help=f"{', '.join(DTYPES)}; default: float32 on a CPU."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="'cpu', 'cuda', 'cuda:1', ...; default: CUDA if any."
    ),
]
CompiledOption = Annotated[
    bool,
    typer.Option(
        "--compiled",
        help="Compile the model's passes first: faster steps of small models; takes tens of "
        "seconds a width the first time.",
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="A field of the drafter's config; repeatable."
    ),
]
TokensOption = Annotated[
    int,
    typer.Option("--max-new-tokens", "-n", metavar="N", min=1, help="Longest answer, in tokens."),
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="demo, chartqa, chartqa@FOLDER, folder:PATH, ... (see bench); repeatable. "
        "Default: demo.",
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write every step as JSON lines (see inspect)."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which engine a verb wants.

    Attributes:
        model, drafter, budget, dtype, device, verification, compiled: as `eyespan.load` takes them.
        options: the drafter's own, typed.
    """

    model: str = "demo"
    drafter: str = "recap"
    budget: Budget = "auto"
    dtype: str | None = None
    device: str | None = None
    verification: Verification = "walk"
    compiled: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def load_target(self) -> HuggingFaceTarget:
        """Load the model alone.

        Raises:
            EyespanError: see `eyespan.load`.
        """
        with waiting(f"loading {self.model}"):
            from eyespan.target import load_target

            return load_target(
                self.model, dtype=self.dtype, device=self.device, compiled=self.compiled
            )

    def load(self) -> Engine:
        """Load the engine, telling a waiting user so.

        Raises:
            EyespanError: see `eyespan.load`.
        """
        target = self.load_target()
        with waiting("trying a tree on it"):
            from eyespan.generation import Engine

            size = target.info.vocab_size
            options = with_shipped_weights(self.drafter, target, self.options)
            drafter = make_drafter(self.drafter, vocab_size=size, **options)
            return Engine(target, drafter, budget=self.budget, verification=self.verification)


def setup(
    *,
    model: str,
    drafter: str,
    budget: str,
    dtype: str | None,
    device: str | None,
    option: Sequence[str] | None,
    verification: str = "walk",
    compiled: bool = False,
) -> Setup:
    """Check the shared options; costs no model.

    Raises:
        ConfigError: an unknown drafter, option, dtype or budget, or a value out of range.
    """
    if dtype is not None and dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    options = drafter_options(drafter, option or ())
    made = make_drafter(drafter, vocab_size=_ANY_VOCABULARY, **options)
    rejection = check_verification(verification, made)
    return Setup(
        verification="rejection" if rejection else "walk",
        model=model,
        drafter=drafter,
        budget=budget_of(budget),
        dtype=dtype,
        device=device,
        compiled=compiled,
        options=options,
    )


def budget_of(text: str) -> Budget:
    """The value of `--budget`.

    Raises:
        ConfigError: not a budget.
    """
    try:
        return check_budget(int(text))
    except ConfigError:
        raise
    except ValueError:
        return check_budget(text)


def drafter_options(drafter: str, pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs typed as the drafter's config has them, and accepted by it.

    Raises:
        ConfigError: an unknown drafter or key, or a value that does not fit.
    """
    defaults = make_drafter(drafter, vocab_size=_ANY_VOCABULARY).config_dict()
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(
                f"--option {pair}",
                found="no '=' in it",
                needed="KEY=VALUE is needed",
                todo=f"Known keys of '{drafter}': {', '.join(sorted(defaults)) or 'none'}.",
            )
        if key not in defaults:  # a drafter that takes another by name has that one's options too
            defaults = make_drafter(drafter, vocab_size=_ANY_VOCABULARY, **options).config_dict()
        if key not in defaults:
            raise unknown_name(f"option of drafter '{drafter}'", key, defaults)
        options[key] = _typed(key, value, defaults[key])
    make_drafter(drafter, vocab_size=_ANY_VOCABULARY, **options)
    return options


_ANY_VOCABULARY = 1 << 21
"""The largest there can be, while the target's own is not known: no option is refused for it."""


def _typed(key: str, value: str, default: object) -> Any:
    """A value's text as the type of the field's default."""
    try:
        if isinstance(default, bool):
            return _BOOLEANS[value.lower()]
        if isinstance(default, int | float):
            return type(default)(value)
        if isinstance(default, list | tuple):
            return tuple(json.loads(value if value.startswith("[") else f"[{value}]"))
        if isinstance(default, str) and not value.startswith("["):
            return value
        return json.loads(value)
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"--option {key}={value}",
            found="a value of another kind",
            needed=f"something like {default!r}, which is the default, is needed",
            todo="Change the value.",
        ) from error

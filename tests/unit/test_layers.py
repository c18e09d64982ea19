"""The folder is the place in the flow, the number is the layer; imports only go down."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import eyespan
from tests import processes

PACKAGE = Path(__file__).parents[2] / "src" / "eyespan"

LAYERS = {
    "types": 0, "errors": 0, "counts": 0, "closing": 0, "_core": 0,
    "train.batch": 1, "train.losses": 1,
    "config": 1, "artifacts": 1, "target": 1, "verify": 1, "budget": 1, "account": 1, "moment": 1,
    "text": 1, "sampling": 1,
    "grammar": 1, "scopes": 1, "memory": 1, "corpus": 1, "locks": 1,
    "drafters": 2, "cost": 2,
    "sequence": 3, "policy": 3, "rejection": 3, "drawn": 3, "saved_memory": 3,
    "engine": 3, "draw": 3, "strict": 3, "choosing": 3, "checks": 3,
    "trace": 4, "answer": 4, "stream": 4, "terms": 4, "async_stream": 4, "batching": 4,
    "generation": 4, "chat_session": 4, "chat_stream": 4,
    "dropin": 4, "dropin_call": 4, "server": 4,
    "train": 5, "bench": 5, "diagnostics": 5, "demo": 5, "verbs": 5, "cli": 5, "testing": 5,
    "__main__": 6, "__init__": 6,
}  # fmt: skip
MAY_IMPORT_TRANSFORMERS = {"target", "generation", "train", "demo", "testing"}
MAY_TAKE_DRAFTERS_BY_NAME = {
    "hybrid", "viskip",
    "sam",  # short matches are left to a tree drafter of the user's choice
}  # fmt: skip
LONGEST_FILE = 450


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(file: Path) -> str:
    """First name below the package: the unit that has a layer."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def layer_of(name: str) -> int | None:
    """Layer of a dotted name; two leaves of `train` are what draft heads are made with."""
    parts = name.split(".")
    deeper = ".".join(parts[1:3])
    return LAYERS.get(deeper, LAYERS.get(parts[1]))


def imports(file: Path) -> set[str]:
    """Absolute names of everything imported at run time or for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def type_only(file: Path) -> set[str]:
    """Names imported under `if TYPE_CHECKING:`, which bind no layer."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    found |= {f"{inner.module}.{alias.name}" for alias in inner.names}
    return found


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_lower_layers_only(file: Path) -> None:
    own = layer_of(".".join(("eyespan", *file.relative_to(PACKAGE).with_suffix("").parts)))
    assert own is not None
    for name in imports(file) - type_only(file):
        parts = name.split(".")
        if parts[0] != "eyespan" or len(parts) < 2:
            continue
        other = layer_of(name)
        if other is not None and parts[1] != part_of(file):
            assert other <= own, f"{file.name} imports {name} from above"


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_has_one_job(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LONGEST_FILE
    assert part_of(file) in LAYERS, "give the new part a layer"


def test_only_the_target_side_knows_transformers() -> None:
    for file in files():
        if part_of(file) not in MAY_IMPORT_TRANSFORMERS:
            for name in imports(file) - type_only(file):
                assert name.split(".")[0] != "transformers", f"{file} imports {name}"


def test_a_drafter_imports_no_other_drafter_and_the_loop_imports_none() -> None:
    for file in (PACKAGE / "drafters").glob("*.py"):
        if file.stem in {"__init__", "base"} | MAY_TAKE_DRAFTERS_BY_NAME:
            continue
        for name in imports(file):
            if name.startswith("eyespan.drafters."):
                other = name.split(".")[2]
                shared = other == "base" or other.startswith("_")
                assert shared, f"{file.name} imports {name}"
    for loop in ("engine.py", "policy.py", "sequence.py"):
        for name in imports(PACKAGE / loop):
            assert not name.startswith("eyespan.drafters") or ".base." in name


def test_importing_the_package_is_cheap() -> None:
    heavy = ("torch", "transformers", "numpy")
    code = f"import sys, eyespan; print([m for m in {heavy} if m in sys.modules])"
    assert processes.finished([sys.executable, "-c", code]).strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in eyespan.__all__:
        assert getattr(eyespan, name).__module__.startswith("eyespan.")

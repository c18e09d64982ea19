"""A trained head on disk: safetensors and a manifest that says whose head it is, read without a
pickle and refused unless every part fits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from eyespan.artifacts import read_about, read_artifact, write_artifact
from eyespan.drafters._head import DraftHead
from eyespan.drafters._head_config import HeadConfig
from eyespan.errors import InputError, UnsupportedTarget, unknown_name
from eyespan.target.weights import STATE_MEANING, TargetWeights

if TYPE_CHECKING:
    from eyespan.target.base import Target

KIND = "trained drafter"
DEMO = "demo"
SMALLEST_DTYPE = ("float32", "float16")

H = TypeVar("H", bound=DraftHead)


def write_head(
    path: str | os.PathLike[str],
    head: DraftHead,
    target: Mapping[str, Any],
    *,
    dtype: str = "float32",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a head as safetensors and a manifest.

    Args:
        path: folder; made when missing.
        head: its weights and config; what it borrows is not written.
        target: `TargetWeights.record()` of the target it was trained for.
        dtype: "float32" or "float16" on disk.
        training: how it was trained, JSON-ready, for people.

    Raises:
        ConfigError: another dtype.
        OutputError: the folder cannot be written.
    """
    if dtype not in SMALLEST_DTYPE:
        raise unknown_name("dtype of a saved drafter", dtype, SMALLEST_DTYPE)
    as_saved = getattr(torch, dtype)
    write_artifact(
        path,
        kind=KIND,
        about={
            "method": head.method,
            "config": head.shape.to_json(),
            "target": dict(target),
            "reads": list(head.reads),
            "states": STATE_MEANING,
            "training": dict(training or {}),
        },
        tensors={
            name: value.detach().to("cpu", as_saved if value.is_floating_point() else value.dtype)
            .numpy()
            for name, value in head.state_dict().items()
        },
    )  # fmt: skip


def head_folder(where: str) -> str:
    """The head that a folder means: its own, or the best of a training run's."""
    best = os.path.join(where, "best")
    run = not os.path.exists(os.path.join(where, "manifest.json")) and os.path.isdir(best)
    return best if run else where


class SavedHead:
    """A checkpoint, as a drafter of one method reads it; tensors stay on disk until `build`.

    Args:
        name: of the drafter.
        where: folder that `write_head` wrote or a training run's, whose best head is meant; or
            "demo": the weights that come along.

    Raises:
        InputError: no checkpoint there, or one of another method or meaning.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        shipped = files("eyespan") / "demo" / "drafters" / name
        self._folder = str(shipped) if where == DEMO else head_folder(where)
        self.about = read_about(self._folder, kind=KIND)
        if self.about.get("method") != name or self.about.get("states") != STATE_MEANING:
            raise InputError(
                self._asked,
                found=f"a checkpoint of method {self.about.get('method')!r} that reads states with "
                f"the meaning {self.about.get('states')!r}",
                needed=f"method '{name}' and the meaning {STATE_MEANING!r} are needed",
                todo="Point to another checkpoint, or train one with this version.",
            )

    @property
    def _asked(self) -> str:
        return f"drafter '{self.name}' from '{self.where}'"

    def check_target(self, weights: TargetWeights) -> None:
        """Refuse another target than the head was trained for.

        Raises:
            UnsupportedTarget: naming the first thing that differs.
        """
        recorded_target = self.about["target"]
        wrong = weights.mismatch(recorded_target)
        if wrong is not None:
            field, here, recorded = wrong
            trained_for = recorded_target.get("name")
            raise UnsupportedTarget(
                f"{self._asked} on '{weights.shape.name}'",
                found=f"{field} is {here!r}",
                needed=f"it was trained for '{trained_for}', where that is {recorded!r}",
                todo="Load that target, train a drafter for this one (docs/train.md), or use one "
                "without weights: recap, suffix, prompt_lookup.",
            )

    def build(self, head_type: type[H], config: HeadConfig) -> H:
        """The head, filled from the checkpoint without leaving anything at random.

        Raises:
            InputError: parts that do not belong together.
        """
        saved = read_artifact(self._folder, kind=KIND)
        with torch.device("meta"):
            head = head_type(config)
        if list(saved.about.get("reads", ())) != list(head.reads):
            raise self._unfit(f"states {saved.about.get('reads')}", f"states {list(head.reads)}")
        expected = head.state_dict()
        for name in sorted(expected.keys() | saved.tensors.keys()):
            found, wanted = saved.tensors.get(name), expected.get(name)
            have = None if found is None else tuple(found.shape)
            need = None if wanted is None else tuple(wanted.shape)
            if have != need:
                raise self._unfit(f"'{name}' of shape {have}", f"shape {need}")
        tensors = {}
        for name, value in saved.tensors.items():
            loaded = torch.from_numpy(np.array(value))
            tensors[name] = loaded.float() if loaded.is_floating_point() else loaded
        head.load_state_dict(tensors, assign=True)
        return head.eval().requires_grad_(False)

    def _unfit(self, found: str, needed: str) -> InputError:
        return InputError(
            self._asked,
            found=found,
            needed=f"{needed} is needed by its config",
            todo="Save it again; the manifest and the tensors do not belong together.",
        )


def comes_along(name: str, target: Target) -> bool:
    """Whether this package has a head of a method that was trained for a target.

    Args:
        name: of a trained drafter.
        target: live; known again by its shape and a sample of its weights, not by its name.
    """
    if not os.path.isdir(_shipped(name)):
        return False
    try:
        SavedHead(name, DEMO).check_target(target.weights())
    except UnsupportedTarget:
        return False
    return True


def _shipped(name: str) -> str:
    """Where a method's head lies that comes along."""
    return str(files("eyespan") / "demo" / "drafters" / name)

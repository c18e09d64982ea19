"""Where a head is trained: one process, or several that share the work. Three methods each:
`prepare` places the head and makes the optimizer, `step` takes one update, `save` and `restore`
move weights and optimizer state as whole tensors, so that a checkpoint of any number of processes
resumes on any other. Processes come together in `_join` and part in `leave`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from eyespan.errors import ConfigError

Precision: TypeAlias = Literal["float32", "bfloat16"]
Forward: TypeAlias = Callable[[nn.Module], Tensor]
"""One micro-batch: runs the module and returns its part of the update's loss."""

_OPTIMIZER = "optimizer."
_WEIGHTS = "weights."
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW as the paper sets it (FOVEA appendix B).

    Attributes:
        lr: peak learning rate.
        beta1, beta2, weight_decay: AdamW's.
        clip: largest gradient norm.
    """

    lr: float = 5e-5
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip: float = 0.5


class Learner(nn.Module):
    """A head whose forward is its training losses, as wrappers for several processes need it."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, batch: Any, state: Any) -> dict[str, Tensor]:
        """Losses of one batch."""
        losses: dict[str, Tensor] = self.head.training_losses(batch, state)  # type: ignore[operator]
        # every parameter takes part, so that processes agree on which gradients there are even
        # where only some of them see a picture
        touched = sum(parameter.sum() for parameter in self.head.parameters())
        return {**losses, "loss": losses["loss"] + 0.0 * touched}


class Single:
    """One process; also what the others build on.

    Attributes:
        rank, world: this process's number and how many there are.
        device: of this process.
        module: the `Learner` as it is called, wrapped for several processes.
        head: the head inside.
    """

    name: ClassVar[str] = "single"

    def __init__(self, precision: Precision, device: torch.device) -> None:
        """Join the others, if any, as torchrun's environment describes them.

        Args:
            precision: of the forward; weights and optimizer stay float32.
            device: of this process.
        """
        self.precision, self.device = precision, device
        self.rank, self.world = 0, 1
        self.module: nn.Module
        self.head: nn.Module
        self.optimizer: Optimizer
        self._settings: OptimizerSettings

    def prepare(self, head: nn.Module, settings: OptimizerSettings) -> None:
        """Place the head, wrap it and make its optimizer."""
        self._settings = settings
        self.head = head.to(self.device, torch.float32).train()
        self.module = self._wrapped(Learner(self.head))
        self.optimizer = AdamW(
            [parameter for parameter in self.head.parameters() if parameter.requires_grad],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )

    def step(self, forwards: Sequence[Forward], lr: float) -> float:
        """Take one update.

        Args:
            forwards: this process's micro-batches; their losses, added up over all processes, are
                the update's loss.
            lr: learning rate of the update.

        Returns:
            The gradient's norm before clipping.
        """
        for index, forward in enumerate(forwards):
            with self._syncing(index + 1 == len(forwards)):
                with self.autocast():
                    loss = forward(self.module)
                (loss * self.world).backward()  # type: ignore[no-untyped-call]  # averaged over processes
        norm = nn.utils.clip_grad_norm_(self.head.parameters(), self._settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(_whole(norm))

    def save(self) -> dict[str, Tensor]:
        """Weights and optimizer state as whole CPU tensors, alike for every strategy; all processes
        call it.
        """
        saved = {
            f"{_WEIGHTS}{name}": _whole(value) for name, value in self.head.state_dict().items()
        }
        for name, parameter in self.head.named_parameters():
            for part, value in self.optimizer.state[parameter].items():
                saved[f"{_OPTIMIZER}{part}.{name}"] = _whole(torch.as_tensor(value))
        return {name: value.detach().cpu().clone() for name, value in saved.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `save` returned, of any strategy and number of processes."""
        own = self.head.state_dict()
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(_as(tensors[f"{_WEIGHTS}{name}"], value))
        for name, parameter in self.head.named_parameters():
            prefixes = {key: f"{_OPTIMIZER}{key}.{name}" for key in ("step", *_MOMENTS)}
            if prefixes["step"] not in tensors:
                continue
            self.optimizer.state[parameter] = {
                key: tensors[full].clone() if key == "step" else _as(tensors[full], parameter)
                for key, full in prefixes.items()
            }

    def leave(self) -> None:
        """Part from the other processes, once all of them have done their work.

        The first hears from each and only then lets it go. A process that left on its own, with
        messages unread, could reset a connection that another still reads its last sum from.
        """
        if not dist.is_initialized():
            return
        word = torch.zeros(1)
        others = range(1, self.world) if self.rank == 0 else [0]
        for move in (dist.recv, dist.send) if self.rank == 0 else (dist.send, dist.recv):
            for other in others:
                move(word, other)
        dist.destroy_process_group()

    def autocast(self) -> torch.autocast:
        """The forward's precision."""
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _wrapped(self, learner: Learner) -> nn.Module:
        return learner

    @contextmanager
    def _syncing(self, last: bool) -> Iterator[None]:
        """Gradients are shared between processes with the last micro-batch alone."""
        yield


class Ddp(Single):
    """Every process holds the whole head; gradients are averaged."""

    name: ClassVar[str] = "ddp"

    def __init__(self, precision: Precision, device: torch.device) -> None:
        """See `Single`."""
        super().__init__(precision, device)
        self.rank, self.world = _join(device)

    def _wrapped(self, learner: Learner) -> nn.Module:
        return DistributedDataParallel(learner)

    @contextmanager
    def _syncing(self, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self.module.no_sync():  # type: ignore[operator]
                yield


class Fsdp2(Ddp):
    """Weights, gradients and optimizer state are shared out; `fully_shard` of torch."""

    name: ClassVar[str] = "fsdp2"

    def _wrapped(self, learner: Learner) -> nn.Module:
        mesh = dist.device_mesh.init_device_mesh(self.device.type, (self.world,))
        fully_shard(learner, mesh=mesh)
        return learner

    @contextmanager
    def _syncing(self, last: bool) -> Iterator[None]:
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_gradient_sync(last)
        yield


class DeepSpeed(Single):
    """ZeRO-2 of DeepSpeed, as the paper trained; needs the package."""

    name: ClassVar[str] = "deepspeed"

    def __init__(self, precision: Precision, device: torch.device) -> None:
        """See `Single`."""
        if find_spec("deepspeed") is None:
            raise ConfigError(
                "strategy 'deepspeed'",
                found="the package is not installed",
                needed="it is needed for ZeRO-2",
                todo="pip install deepspeed, or use strategy = 'fsdp2', which shards as much.",
            )
        import deepspeed

        super().__init__(precision, device)
        self.rank, self.world = _join(device)
        deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")  # takes ours

    def prepare(self, head: nn.Module, settings: OptimizerSettings) -> None:
        """See `Single`."""
        import deepspeed

        super().prepare(head, settings)
        self._steps = 0  # taken before this process began
        self._engine, *_ = deepspeed.initialize(
            model=self.module, optimizer=self.optimizer, config=self._json()
        )

    def step(self, forwards: Sequence[Forward], lr: float) -> float:
        """See `Single`."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        for index, forward in enumerate(forwards):
            self._engine.set_gradient_accumulation_boundary(index + 1 == len(forwards))
            with self.autocast():
                loss = forward(self._engine)
            self._engine.backward(loss * self.world)
            self._engine.step()
        return float(self._engine.get_global_grad_norm() or 0.0)

    def save(self) -> dict[str, Tensor]:
        """See `Single`."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        saved = {f"{_WEIGHTS}{name}": value for name, value in self.head.state_dict().items()}
        steps = torch.tensor(float(self._steps + self._engine.global_steps))
        for name, parameter in self.head.named_parameters():
            saved[f"{_WEIGHTS}{name}"] = safe_get_full_fp32_param(parameter)
            for part in _MOMENTS:
                value = safe_get_full_optimizer_state(parameter, part)
                if value is not None:
                    saved[f"{_OPTIMIZER}{part}.{name}"] = value
                    saved[f"{_OPTIMIZER}step.{name}"] = steps
        return {name: value.detach().cpu().clone() for name, value in saved.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Single`."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        for name, value in self.head.named_buffers():
            value.copy_(tensors[f"{_WEIGHTS}{name}"])
        zero = self._engine.optimizer
        for flat in zero.single_partition_of_fp32_groups:  # else made by the first step
            empty = {part: torch.zeros_like(flat) for part in _MOMENTS}
            zero.optimizer.state[flat] = {"step": torch.zeros(()), **empty}
        zero._lazy_init_hp_params_optimizer_state()
        for name, parameter in self.head.named_parameters():
            safe_set_full_fp32_param(parameter, tensors[f"{_WEIGHTS}{name}"])
            with torch.no_grad():
                parameter.copy_(tensors[f"{_WEIGHTS}{name}"])
            for part in _MOMENTS:
                key = f"{_OPTIMIZER}{part}.{name}"
                if key in tensors:
                    safe_set_full_optimizer_state(parameter, tensors[key].to(self.device), part)
        steps = [value for name, value in tensors.items() if name.startswith(f"{_OPTIMIZER}step.")]
        self._steps = int(steps[0]) if steps else 0
        for state in zero.optimizer.state.values():
            state["step"] = torch.tensor(float(self._steps))

    def _json(self) -> dict[str, Any]:
        """The paper's setting: ZeRO stage 2; accumulation is ours, so that losses add up."""
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self._settings.clip,
            "zero_optimization": {"stage": 2},
            "bf16": {"enabled": False},
        }


STRATEGIES: dict[str, type[Single]] = {kind.name: kind for kind in (Single, Ddp, Fsdp2, DeepSpeed)}


def make_strategy(name: str, *, precision: Precision, device: str | None) -> Single:
    """A strategy by name.

    Args:
        name: a key of `STRATEGIES`, or "auto": fsdp2 under torchrun with several processes, else
            single.
        precision: of the forward.
        device: of this process; None is its own GPU if there is one.

    Raises:
        ConfigError: a package that is missing, or processes that would each train alone.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    name = ("fsdp2" if world > 1 else "single") if name == "auto" else name
    if name == "single" and world > 1:
        raise ConfigError(
            "strategy 'single'",
            found=f"{world} processes, each of which would train alone",
            needed="'ddp', 'fsdp2' or 'deepspeed' is needed for several",
            todo="Change strategy, or start one process.",
        )
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device(device or (f"cuda:{local}" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    return STRATEGIES[name](precision, place)


def weights_in(saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The head's state dict within what a strategy saved."""
    return {
        name.removeprefix(_WEIGHTS): value
        for name, value in saved.items()
        if name.startswith(_WEIGHTS)
    }


def summed(values: Tensor, world: int) -> Tensor:
    """A tensor summed over all processes."""
    if world > 1:
        dist.all_reduce(values)
    return values


def _join(device: torch.device) -> tuple[int, int]:
    """Find the other processes; this one's number and how many there are."""
    if not dist.is_initialized():
        # numbers for people are summed on the CPU, gradients where they are
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


def _whole(value: Tensor) -> Tensor:
    """A tensor without shards."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor placed as another one is."""
    moved = value.to(like.device, like.dtype)
    if isinstance(like, DTensor):
        return distribute_tensor(moved, like.device_mesh, like.placements)
    return moved.clone()

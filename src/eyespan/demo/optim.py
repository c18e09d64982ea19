"""Muon for hidden matrices and AdamW for the rest, in float32.

torch.optim.Muon orthogonalises in bfloat16, which CPUs without bf16 units do a hundred times
slower; this one does it in float32 and in one batched product for all matrices of one shape. Muon:
Jordan et al. 2024, with the step scaled to AdamW's RMS (Liu et al. 2025), so both share one
learning rate.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic Newton-Schulz


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of each matrix of [N, A, B] close to one."""
    a, b, c = _COEFFICIENTS
    x: Tensor
    tall = stack.shape[1] > stack.shape[2]
    x = stack.transpose(1, 2) if tall else stack
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


def _gradient(value: nn.Parameter) -> Tensor:
    """The gradient of a parameter that is known to have one."""
    if value.grad is None:
        raise RuntimeError(
            "stepped a parameter without a gradient; only those with one are stepped"
        )
    return value.grad


class DemoOptimizer:
    """Steps named parameters; `muon_lr` and `adam_lr` are peaks, scaled by the factor given to
    `step`.
    """

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        *,
        muon_lr: float,
        adam_lr: float,
        weight_decay: float = 0.05,
    ) -> None:
        self.named = named
        self.muon_lr, self.adam_lr, self.weight_decay = muon_lr, adam_lr, weight_decay
        self.state: dict[str, Tensor] = {}
        self.steps = 0
        self._hidden: dict[tuple[int, ...], list[str]] = defaultdict(list)
        self._rest: list[str] = []
        for name, value in named.items():
            if muon_lr > 0 and value.ndim == 2 and ".layers." in name:
                self._hidden[tuple(value.shape)].append(name)
            else:
                self._rest.append(name)

    @torch.no_grad()
    def step(self, factor: float, clip: float = 1.0) -> float:
        """One update and zeroed gradients; gives the gradient norm before clipping to `clip`."""
        self.steps += 1
        values = [value for value in self.named.values() if value.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(values, clip))
        for shape, names in self._hidden.items():
            self._muon(shape, [name for name in names if self.named[name].grad is not None], factor)
        for name in self._rest:
            if self.named[name].grad is not None:
                self._adam(name, factor)
        for value in values:
            value.grad = None
        return norm

    def _muon(self, shape: tuple[int, ...], names: list[str], factor: float) -> None:
        if not names:
            return
        updates = []
        for name in names:
            grad = _gradient(self.named[name])
            momentum = self.state.setdefault(f"momentum/{name}", torch.zeros(shape))
            momentum.lerp_(grad, 0.05)
            updates.append(grad.lerp(momentum, 0.95))  # Nesterov
        lr = self.muon_lr * factor
        scale = 0.2 * max(shape) ** 0.5
        for name, update in zip(names, orthogonalise(torch.stack(updates)), strict=True):
            self.named[name].mul_(1 - lr * self.weight_decay).add_(update, alpha=-lr * scale)

    def _adam(self, name: str, factor: float, betas: tuple[float, float] = (0.9, 0.98)) -> None:
        value = self.named[name]
        grad = _gradient(value)
        first = self.state.setdefault(f"first/{name}", torch.zeros_like(value))
        second = self.state.setdefault(f"second/{name}", torch.zeros_like(value))
        count = self.state.setdefault(f"count/{name}", torch.zeros(()))
        count += 1
        first.lerp_(grad, 1 - betas[0])
        second.lerp_(grad.square(), 1 - betas[1])
        lr = self.adam_lr * factor
        if value.ndim > 1 and "embed" not in name:
            value.mul_(1 - lr * self.weight_decay)
        root = (second / (1 - betas[1] ** float(count))).sqrt_().add_(1e-8)
        value.addcdiv_(first, root, value=-lr / (1 - betas[0] ** float(count)))

"""Every loss against its twin: value, gradient, and rows that hold nothing but NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyespan.train import losses
from eyespan.train.losses import Teacher
from tests.reference import losses as twin

ROWS, VOCAB, WIDTH = 5, 7, 4
WEIGHTS = torch.tensor([1.0, 0.0, 0.37, 0.0, 2.0], dtype=torch.float64)
TOTAL = WEIGHTS.sum()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)


TARGET = drawn(ROWS, VOCAB, seed=1)
STATES = drawn(ROWS, WIDTH, seed=2)


def stored(count: int) -> Teacher:
    best = TARGET.topk(count, dim=-1)
    return Teacher(best.indices, best.values, TARGET.logsumexp(-1))


def ids(at: int, count: int) -> list[int]:
    found: list[int] = stored(count).ids[at].tolist()
    return found


Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, int], Tensor], int]


def pairs() -> dict[str, Pair]:
    """Name -> (the loss of an input, the twin at one row of it, the input's width)."""
    found: dict[str, Pair] = {
        "squared_error": (
            lambda x: losses.squared_error(x, STATES, WEIGHTS, TOTAL),
            lambda x, at: twin.squared_error(x[at], STATES[at]),
            WIDTH,
        ),
        "smooth_l1": (
            lambda x: losses.smooth_l1(x, STATES, WEIGHTS, TOTAL),
            lambda x, at: twin.smooth_l1(x[at], STATES[at]),
            WIDTH,
        ),
        "cross_entropy": (
            lambda x: losses.cross_entropy(x, stored(1).best, WEIGHTS, TOTAL),
            lambda x, at: twin.cross_entropy(x[at], ids(at, 1)[0]),
            VOCAB,
        ),
        "listwise": (
            lambda x: losses.listwise(x, stored(5), WEIGHTS, TOTAL, count=4),
            lambda x, at: twin.listwise(x[at], TARGET[at], ids(at, 4)),
            VOCAB,
        ),
    }
    for width in (1, 3, VOCAB - 1):
        found[f"candidate_margin-{width}"] = (
            lambda x, w=width: losses.candidate_margin(  # type: ignore[misc]
                x, stored(1).best, WEIGHTS, TOTAL, width=w, margin=0.5
            ),
            lambda x, at, w=width: twin.candidate_margin(x[at], ids(at, 1)[0], w, 0.5),  # type: ignore[misc]
            VOCAB,
        )
    for count in (1, 4, VOCAB):
        found[f"kl-{count}"] = (
            lambda x, c=count: losses.kl(x, stored(c), WEIGHTS, TOTAL),  # type: ignore[misc]
            lambda x, at, c=count: twin.kl(x[at], TARGET[at], ids(at, c)),  # type: ignore[misc]
            VOCAB,
        )
        found[f"probability_l1-{count}"] = (
            lambda x, c=count: losses.probability_l1(x, stored(c), WEIGHTS, TOTAL),  # type: ignore[misc]
            lambda x, at, c=count: twin.probability_l1(x[at], TARGET[at], ids(at, c)),  # type: ignore[misc]
            VOCAB,
        )
        found[f"soft_cross_entropy-{count}"] = (
            lambda x, c=count: losses.soft_cross_entropy(x, stored(c), WEIGHTS, TOTAL),  # type: ignore[misc]
            lambda x, at, c=count: twin.soft_cross_entropy(x[at], TARGET[at], ids(at, c)),  # type: ignore[misc]
            VOCAB,
        )
    return found


@pytest.mark.parametrize("name", pairs())
def test_value_and_gradient_equal_the_twins(name: str) -> None:
    fast, slow, width = pairs()[name]
    x = drawn(ROWS, width, seed=3).requires_grad_()
    expected = twin.weighted(lambda at: slow(x, at), WEIGHTS)
    assert torch.allclose(fast(x), expected, rtol=1e-10)
    own, other = (torch.autograd.grad(value, x)[0] for value in (fast(x), expected))
    assert torch.allclose(own, other, rtol=1e-8, atol=1e-12)
    assert torch.autograd.gradcheck(fast, (x,))


@pytest.mark.parametrize("name", pairs())
def test_A49_rows_without_weight_may_hold_anything(name: str) -> None:
    fast, _, width = pairs()[name]
    x = drawn(ROWS, width, seed=3)
    expected = fast(x)
    x[[1, 3]] = torch.nan
    x.requires_grad_()
    value = fast(x)
    assert torch.equal(value, expected)
    (gradient,) = torch.autograd.grad(value, x)
    assert torch.isfinite(gradient).all()
    assert not gradient[[1, 3]].any()


def test_no_rows_at_all_are_zero() -> None:
    x = drawn(ROWS, VOCAB).requires_grad_()
    none = torch.zeros(ROWS, dtype=torch.float64)
    value = losses.kl(x, stored(3), none, none.sum())
    assert value.item() == 0.0
    assert not torch.autograd.grad(value, x)[0].any()


def test_ids_that_the_draft_lacks_are_left_out() -> None:
    x = drawn(ROWS, VOCAB, seed=3)
    kept = torch.ones(ROWS, 4, dtype=torch.bool)
    kept[:, 1] = False
    found = losses.soft_cross_entropy(x, stored(4), WEIGHTS, TOTAL, kept)
    expected = twin.weighted(
        lambda at: twin.soft_cross_entropy(
            x[at], TARGET[at], [token for n, token in enumerate(ids(at, 4)) if n != 1]
        ),
        WEIGHTS,
    )
    assert torch.allclose(found, expected)


def test_the_bucket_of_the_rest_is_a_lower_bound_of_the_exact_divergence() -> None:
    x = drawn(ROWS, VOCAB, seed=3)
    values = [float(losses.kl(x, stored(count), WEIGHTS, TOTAL)) for count in (1, 3, 5, VOCAB)]
    assert values == sorted(values)

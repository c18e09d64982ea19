"""Top-K rows against a slow twin: exact order, exact ties, any width, any dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyespan.target.rows import top_rows
from eyespan.types import ROW_SIZE


def slow_rows(logits: torch.Tensor) -> tuple[list[list[int]], list[list[float]]]:
    """Sort every row by descending float32 logit, then by id; pad to K."""
    ids, values = [], []
    for row in logits.float().tolist():
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:ROW_SIZE]
        pad = ROW_SIZE - len(best)
        ids.append(best + [-1] * pad)
        values.append([row[i] for i in best] + [float("-inf")] * pad)
    return ids, values


def check(logits: torch.Tensor) -> None:
    ids, values = top_rows(logits)
    slow_ids, slow_values = slow_rows(logits)
    assert ids.dtype == np.int32
    assert values.dtype == np.float32
    assert ids.tolist() == slow_ids
    assert values.tolist() == slow_values
    assert ids[:, 0].tolist() == logits.argmax(-1).tolist()


few_levels = st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0, 3.0, -30.0])


@given(
    st.integers(1, 40).flatmap(
        lambda width: st.lists(
            st.lists(few_levels, min_size=width, max_size=width), min_size=1, max_size=5
        )
    )
)
def test_ties_go_to_the_lower_id(rows: list[list[float]]) -> None:
    check(torch.tensor(rows))


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 3000))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_width_and_dtype(dtype: torch.dtype, seed: int, width: int) -> None:
    """In half precision logits are coarse, so ties at the border are common."""
    generator = torch.Generator().manual_seed(seed)
    check((torch.randn(3, width, generator=generator) * 4).to(dtype))


def test_all_equal_and_masked_rows() -> None:
    check(torch.zeros(2, 100))
    check(torch.full((1, 20), float("-inf")))
    masked = torch.full((1, 20), float("-inf"))
    masked[0, 13] = -1.0
    check(masked)
    check(torch.cat([torch.zeros(1, 20), torch.arange(20.0)[None]]))


def test_neighbouring_floats_are_told_apart() -> None:
    one = np.float32(7.5)
    check(torch.tensor([[one, np.nextafter(one, np.float32(8)), one, -one] * 5]))

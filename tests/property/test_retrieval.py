"""Vectorised retrieval equals choosing node by node: ties, padding, nothing there, few entries."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyespan.drafters._visual_memory import Select, readout, select
from tests.reference.retrieval import select_one

rules = st.builds(
    Select,
    retrieval=st.sampled_from(["cumulative_mass", "top_k", "dense"]),
    mass=st.sampled_from([0.05, 0.5, 0.8, 1.0]),
    k_min=st.integers(1, 5),
    k_max=st.integers(5, 8),
    top_k=st.integers(1, 12),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_retrieval_equals_its_twin(data: st.DataObject) -> None:
    batch, nodes, size = (data.draw(st.integers(1, 3)) for _ in range(3))
    size = data.draw(st.integers(0, 10))
    rule = data.draw(rules)
    few = st.sampled_from([-3.0, 0.0, 0.5, 0.5, 2.0])  # equal scores are common
    draw = st.lists(few, min_size=batch * nodes * size, max_size=batch * nodes * size)
    shape = (batch, nodes, size)
    scores = torch.tensor(data.draw(draw), dtype=torch.float64).reshape(shape)
    flags = st.lists(st.booleans(), min_size=batch * size, max_size=batch * size)
    mask = torch.tensor(data.draw(flags), dtype=torch.bool).reshape(batch, size)
    lots = None
    if data.draw(st.booleans()):
        lots = torch.tensor(data.draw(draw), dtype=torch.float64).reshape(shape)
    found = select(scores, mask, rule, lots)
    for row in range(batch):
        for node in range(nodes):
            expected = select_one(
                scores[row, node].tolist(),
                mask[row].tolist(),
                rule,
                None if lots is None else lots[row, node].tolist(),
            )
            assert torch.allclose(found[row, node], torch.tensor(expected, dtype=torch.float64))


def test_nothing_there_reads_zero_and_has_finite_gradients() -> None:
    rule = Select("cumulative_mass", 0.8, 2, 4, 2)
    scores = torch.randn(2, 3, 5, requires_grad=True)
    values = torch.randn(2, 5, 4, requires_grad=True)
    mask = torch.tensor([[False] * 5, [True, False, True, False, False]])
    read = readout(select(scores, mask, rule), values)
    assert not read[0].any()
    assert read[1].any()
    read.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(scores.grad).all()  # type: ignore[arg-type]
    assert not scores.grad[0].any()  # type: ignore[index]
    assert not values.grad[1, [1, 3, 4]].any()  # type: ignore[index]
    assert not readout(select(scores[..., :0], mask[:, :0], rule), values[:, :0]).any()

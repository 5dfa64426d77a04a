"""The sum tree against a plain array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad.replay.embedded.sum_tree import SumTree

WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


@settings(max_examples=80, deadline=None)
@given(capacity=st.integers(1, 40), data=st.data())
def test_matches_a_plain_array(capacity, data):
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 5))):
        updates = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), WEIGHTS), min_size=1, max_size=100))
        positions, weights = (np.array(column) for column in zip(*updates, strict=True))
        tree.set(positions, weights)
        # Of a position that appears twice the last weight counts.
        for position, weight in updates:
            plain[position] = weight
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    if not plain.any():
        with pytest.raises(ValueError, match="all weights are 0"):
            tree.sample(np.array([0.5]))
        return
    fractions = np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20)))
    ends = np.cumsum(plain)
    for fraction, found in zip(fractions, tree.sample(fractions), strict=True):
        assert plain[found] > 0
        target, slack = fraction * ends[-1], 1e-9 * ends[-1]
        assert ends[found] - plain[found] - slack <= target <= ends[found] + slack


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 1000])
def test_equal_weights_are_drawn_in_order(capacity):
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), np.ones(capacity))
    np.testing.assert_array_equal(tree.sample((np.arange(capacity) + 0.5) / capacity), np.arange(capacity))


def test_needs_room():
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)

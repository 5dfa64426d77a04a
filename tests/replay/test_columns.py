"""Columns: slots, references, growth."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad.replay.embedded.columns import Column


def column(slots: int = 4) -> Column:
    return Column((2,), np.dtype(np.float32), slots)


def values(*numbers: int) -> np.ndarray:
    return np.array([[n, -n] for n in numbers], np.float32)


def test_grows_and_keeps_what_it_holds():
    cells = column(2)
    first = cells.put(values(1, 2))
    second = cells.put(values(*range(3, 20)))
    assert cells.used == 19
    np.testing.assert_array_equal(cells.values[first], values(1, 2))
    np.testing.assert_array_equal(cells.values[second], values(*range(3, 20)))


def test_slots_are_used_again_once_nobody_refers_to_them():
    cells = column()
    slots = cells.put(values(1, 2, 3))
    cells.retain(slots[:1])
    cells.release(slots)
    assert cells.used == 1
    again = cells.put(values(4, 5))
    assert set(again) == set(slots[1:]) and cells.used == 3
    assert len(cells.values) == 4
    np.testing.assert_array_equal(cells.values[slots[0]], values(1)[0])


def test_several_mentions_at_once_count_each():
    cells = column()
    slot = cells.put(values(1))
    cells.retain(np.repeat(slot, 3))
    cells.release(np.repeat(slot, 3))
    assert cells.used == 1
    cells.retain(slot)
    cells.release(np.repeat(slot, 2))
    assert cells.used == 0
    # It's free once, not twice.
    assert len(set(cells.put(values(1, 2)))) == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_never_hands_out_a_slot_that_is_in_use(data):
    cells, held = column(1), {}
    for number in range(data.draw(st.integers(1, 30))):
        if held and data.draw(st.booleans()):
            slot = data.draw(st.sampled_from(sorted(held)))
            if data.draw(st.booleans()):
                cells.retain(np.array([slot]))
                held[slot][1] += 1
            else:
                cells.release(np.array([slot]))
                held[slot][1] -= 1
                if not held[slot][1]:
                    del held[slot]
        else:
            (slot,) = cells.put(values(number))
            assert slot not in held
            held[int(slot)] = [number, 1]
        assert cells.used == len(held)
        for slot, (expected, _) in held.items():
            assert cells.values[slot][0] == expected

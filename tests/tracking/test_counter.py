"""Counters: values by hand, chains of parents, pushes that fail, and totals whatever the schedule."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpad.tracking import Counter


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Flaky:
    """A parent that counts, and fails when it's told to."""

    def __init__(self):
        self.counter = Counter()
        self.broken = False
        self.calls = 0

    def increment(self, **counts):
        self.calls += 1
        if self.broken:
            raise ConnectionError("gone")
        return self.counter.increment(**counts)


def test_a_root_adds_up():
    counter = Counter()
    assert counter.get_counts() == {}
    assert counter.increment(steps=3) == {"steps": 3}
    assert counter.increment(steps=2, episodes=1) == {"steps": 5, "episodes": 1}
    counter.flush()
    assert counter.get_counts() == {"steps": 5, "episodes": 1}


def test_what_is_returned_is_a_copy():
    counter = Counter()
    counter.increment(steps=1)["steps"] = 99
    counter.get_counts()["steps"] = 99
    assert counter.get_counts() == {"steps": 1}


def test_children_prefix_and_see_each_other():
    root = Counter()
    actor, learner = Counter(root, "actor"), Counter(root, "learner")
    assert actor.increment(steps=3) == {"actor_steps": 3}
    assert learner.increment(steps=2) == {"actor_steps": 3, "learner_steps": 2}
    assert actor.get_counts() == {"actor_steps": 3, "learner_steps": 2}


def test_prefixes_add_up_along_a_chain():
    root = Counter()
    child = Counter(Counter(root, "a"), "b")
    child.increment(steps=4)
    assert root.get_counts() == {"a_b_steps": 4}


def test_pushes_wait_for_their_period():
    clock, parent = Clock(), Flaky()
    child = Counter(parent, "actor", push_period_s=10.0, clock=clock)
    child.increment(steps=1)  # the first push is due at once
    assert (parent.calls, parent.counter.get_counts()) == (1, {"actor_steps": 1})
    clock.now = 9.9
    assert child.increment(steps=2) == {"actor_steps": 3}
    assert child.get_counts() == {"actor_steps": 3}
    assert (parent.calls, parent.counter.get_counts()) == (1, {"actor_steps": 1})
    clock.now = 10.0
    assert child.increment(steps=4) == {"actor_steps": 7}
    assert (parent.calls, parent.counter.get_counts()) == (2, {"actor_steps": 7})
    parent.counter.increment(learner_steps=5)
    assert child.get_counts() == {"actor_steps": 7}  # not asked anew yet
    clock.now = 20.0
    assert child.get_counts() == {"actor_steps": 7, "learner_steps": 5}


def test_flush_pushes_at_once():
    clock, parent = Clock(), Flaky()
    child = Counter(parent, push_period_s=10.0, clock=clock)
    child.increment(steps=1)
    child.increment(steps=1)
    child.flush()
    assert parent.counter.get_counts() == {"steps": 2}


def test_a_push_that_fails_loses_nothing():
    parent = Flaky()
    child = Counter(parent, "actor")
    child.increment(steps=1)
    parent.broken = True
    with pytest.raises(ConnectionError):
        child.increment(steps=2)
    with pytest.raises(ConnectionError):
        child.flush()
    parent.broken = False
    assert child.increment(steps=4) == {"actor_steps": 7}
    assert parent.counter.get_counts() == {"actor_steps": 7}


def test_counts_only_grow():
    counter = Counter()
    counter.increment(steps=1)
    with pytest.raises(ValueError, match="steps"):
        counter.increment(episodes=1, steps=-1)
    assert counter.get_counts() == {"steps": 1}
    with pytest.raises(ValueError, match="push_period_s"):
        Counter(push_period_s=-1.0)


def test_saved_counts_carry_on():
    clock, parent = Clock(), Flaky()
    child = Counter(parent, "actor", push_period_s=10.0, clock=clock)
    child.increment(steps=1)
    child.increment(steps=2)
    state = child.save()
    child.increment(steps=100)  # lost with the process that counted it
    again = Counter(parent, "actor", push_period_s=10.0, clock=clock)
    again.restore(state)
    assert again.get_counts() == {"actor_steps": 3}
    assert parent.counter.get_counts() == {"actor_steps": 3}


def test_a_root_restores_its_own_counts():
    counter = Counter()
    counter.increment(steps=3)
    again = Counter()
    again.restore(counter.save())
    assert again.increment(steps=1) == {"steps": 4}


def test_threads_lose_no_increment():
    root = Counter()
    children = [Counter(root, "actor") for _ in range(4)]

    def count(child):
        for _ in range(500):
            child.increment(steps=1)

    threads = [threading.Thread(target=count, args=(child,)) for child in children for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert root.get_counts() == {"actor_steps": 4_000}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # which child
            st.sampled_from(["steps", "episodes"]),
            st.integers(0, 50),
            st.floats(0, 3),  # seconds that pass
            st.booleans(),  # whether the parent answers
        ),
        max_size=40,
    )
)
def test_totals_are_right_whatever_happens(events):
    clock, parent = Clock(), Flaky()
    children = [Counter(parent, f"c{i}", push_period_s=float(i), clock=clock) for i in range(3)]
    expected = {}
    for index, name, amount, seconds, answers in events:
        clock.now += seconds
        parent.broken = not answers
        key = f"c{index}_{name}"
        expected[key] = expected.get(key, 0) + amount
        try:
            counts = children[index].increment(**{name: amount})
        except ConnectionError:
            continue
        # A child always knows its own, pushed or not.
        assert counts[key] == expected[key]
    parent.broken = False
    for child in children:
        child.flush()
    assert parent.counter.get_counts() == expected

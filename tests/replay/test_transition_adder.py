"""The n-step transition adder: tables by hand, and a brute-force oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
import pytest
import tree
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad import replay
from rlpad.replay.adders import NStepTransitionAdder
from rlpad.replay.embedded.client import EmbeddedClient
from rlpad.replay.embedded.service import ReplayService
from rlpad.replay.tables import by_name
from rlpad.specs import EnvironmentSpec

FLOAT = specs.Array((), np.float32)
SPEC = EnvironmentSpec(
    observations=specs.Array((2,), np.float32),
    actions=specs.DiscreteArray(100, dtype=np.int32),
    rewards=FLOAT,
    discounts=FLOAT,
)


def adder_of(client: replay.ReplayClient, n_step: int, discount: float = 0.5, **kwargs: Any) -> Any:
    kwargs.setdefault("priority_fns", {"items": None})
    return NStepTransitionAdder(client, n_step=n_step, discount=discount, **kwargs)


def observation(step: int) -> np.ndarray:
    return np.array([step, -step], np.float32)


def play(
    adder: NStepTransitionAdder,
    rewards: Sequence[Any],
    discounts: Sequence[Any],
    *,
    first: int = 0,
    observe: Callable[[int], Any] = observation,
    extras: Callable[[int], Any] = lambda step: (),
    ends: bool = True,
) -> None:
    """Plays one episode; step t takes action t, from the observation numbered `first + t`."""
    adder.add_first(dm_env.restart(observe(first)))
    for t, (reward, discount) in enumerate(zip(rewards, discounts, strict=True)):
        kind = dm_env.StepType.LAST if ends and t == len(rewards) - 1 else dm_env.StepType.MID
        timestep = dm_env.TimeStep(kind, reward, discount, observe(first + t + 1))
        adder.add(np.int32(t), timestep, extras(first + t))


def rows(items: list[tuple[Any, float]]) -> list[tuple[int, int, int, float, float]]:
    """From, to, action, reward and discount of transitions, in order."""
    return sorted(
        (int(x.observation[0]), int(x.next_observation[0]), int(x.action), float(x.reward), float(x.discount))
        for x, _ in items
    )


#: Rewards 1, 2, 4, 8 with a discount factor of 1/2, worked out by hand.
BY_HAND = {
    1: [(0, 1, 0, 1.0, 1.0), (1, 2, 1, 2.0, 1.0), (2, 3, 2, 4.0, 1.0), (3, 4, 3, 8.0, 0.0)],
    2: [
        (0, 1, 0, 1.0, 1.0),
        (0, 2, 0, 2.0, 0.5),
        (1, 3, 1, 4.0, 0.5),
        (2, 4, 2, 8.0, 0.0),
        (3, 4, 3, 8.0, 0.0),
    ],
    3: [
        (0, 1, 0, 1.0, 1.0),
        (0, 2, 0, 2.0, 0.5),
        (0, 3, 0, 3.0, 0.25),
        (1, 4, 1, 6.0, 0.0),
        (2, 4, 2, 8.0, 0.0),
        (3, 4, 3, 8.0, 0.0),
    ],
}


@pytest.fixture
def table(table_of: Callable[..., replay.Table]) -> replay.Table:
    return table_of(NStepTransitionAdder.signature(SPEC), max_times_sampled=1)


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_tables_by_hand(n_step, connect, table, flush, read_all):
    client = connect(table)
    adder = adder_of(client, n_step)
    play(adder, [1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.0, 0.0])
    flush(adder)
    items = read_all(client, "items")
    assert rows(items) == BY_HAND[n_step]
    for item, _ in items:
        assert item.observation.dtype == np.float32 and item.action.dtype == np.int32
        assert item.reward.dtype == item.discount.dtype == np.float32
        assert item.observation[1] == -item.observation[0] and item.extras == ()
    adder.close()


def test_truncation_keeps_its_discount(connect, table, flush, read_all):
    client = connect(table)
    adder = adder_of(client, 3)
    play(adder, [1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.0, 1.0])
    flush(adder)
    assert rows(read_all(client, "items"))[3:] == [
        (1, 4, 1, 6.0, 0.25),
        (2, 4, 2, 8.0, 0.5),
        (3, 4, 3, 8.0, 1.0),
    ]
    adder.close()


def test_episodes_shorter_than_n_and_nothing_across_episodes(connect, table, flush, read_all):
    client = connect(table)
    adder = adder_of(client, 5)
    play(adder, [1.0, 2.0], [1.0, 0.0])
    play(adder, [3.0], [0.0], first=10)
    flush(adder)
    assert rows(read_all(client, "items")) == [
        (0, 1, 0, 1.0, 1.0),
        (0, 2, 0, 2.0, 0.0),
        (1, 2, 1, 2.0, 0.0),
        (10, 11, 0, 3.0, 0.0),
    ]
    adder.close()


def test_environment_discounts_multiply(connect, table, flush, read_all):
    client = connect(table)
    adder = adder_of(client, 3)
    play(adder, [1.0, 1.0, 1.0], [0.5, 0.25, 1.0])
    flush(adder)
    full = [row for row in rows(read_all(client, "items")) if row[:2] == (0, 3)]
    # 1 + 1/2 * 1/2 + 1/4 * 1/8, and 1/4 * 1/8.
    assert full == [(0, 3, 0, 1.28125, 0.03125)]
    adder.close()


def test_reset_drops_the_tail(connect, table, flush, read_all):
    client = connect(table)
    adder = adder_of(client, 3)
    play(adder, [1.0, 2.0], [1.0, 1.0], ends=False)
    adder.reset()
    with pytest.raises(ValueError, match="add_first"):
        adder.add(np.int32(0), dm_env.transition(1.0, observation(3)))
    play(adder, [3.0], [0.0], first=10)
    flush(adder)
    assert rows(read_all(client, "items")) == [
        (0, 1, 0, 1.0, 1.0),
        (0, 2, 0, 2.0, 0.5),
        (10, 11, 0, 3.0, 0.0),
    ]
    adder.close()


def test_misuse_says_what_is_wrong(connect, table):
    client = connect(table)
    adder = adder_of(client, 1)
    with pytest.raises(ValueError, match="before add_first"):
        adder.add(np.int32(0), dm_env.transition(1.0, observation(1)))
    with pytest.raises(ValueError, match="FIRST"):
        adder.add_first(dm_env.transition(1.0, observation(1)))
    play(adder, [1.0], [0.0])
    with pytest.raises(ValueError, match="before add_first"):
        adder.add(np.int32(0), dm_env.transition(1.0, observation(2)))
    adder.close()
    with pytest.raises(ValueError, match="n_step"):
        adder_of(client, 0)
    with pytest.raises(ValueError, match="discount"):
        adder_of(client, 1, discount=1.5)
    with pytest.raises(ValueError, match="at least one table"):
        adder_of(client, 1, priority_fns={})
    with pytest.raises(KeyError, match="did you mean 'items'"):
        adder_of(client, 1, priority_fns={"item": None})


def test_nested_observations_actions_and_extras_of_the_first_step(connect, table_of, flush, read_all):
    spec = SPEC._replace(
        observations={"place": specs.Array((2,), np.float32), "pair": (specs.Array((), np.int64), FLOAT)},
    )
    extras_spec = {"log_prob": FLOAT}
    client = connect(table_of(NStepTransitionAdder.signature(spec, extras_spec), max_times_sampled=1))
    adder = adder_of(client, 2)
    play(
        adder,
        [1.0, 2.0, 4.0],
        [1.0, 1.0, 0.0],
        observe=lambda t: {"place": observation(t), "pair": (np.int64(t), np.float32(t / 2))},
        extras=lambda t: {"log_prob": np.float32(-t)},
    )
    flush(adder)
    items = [item for item, _ in read_all(client, "items")]
    assert sorted((int(x.observation["pair"][0]), int(x.next_observation["pair"][0])) for x in items) == [
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 3),
    ]
    for x in items:
        start = x.observation["pair"][0]
        assert x.extras["log_prob"] == -start and x.observation["pair"][1] == start / 2
        np.testing.assert_array_equal(x.observation["place"], observation(start))
    adder.close()


@pytest.mark.parametrize("shapes", [((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,))])
def test_array_rewards_and_discounts_are_broadcast(shapes, connect, table_of, flush, read_all):
    spec = SPEC._replace(rewards=specs.Array(shapes[0], np.float32), discounts=specs.Array(shapes[1], np.float32))
    signature = NStepTransitionAdder.signature(spec)
    joint = np.broadcast_shapes(*shapes)
    assert signature.reward.shape == signature.discount.shape == joint
    client = connect(table_of(signature, max_times_sampled=1))
    adder = adder_of(client, 2)
    rewards = [np.full(shapes[0], r, np.float32) for r in (1.0, 2.0)]
    discounts = [np.full(shapes[1], d, np.float32) for d in (0.5, 1.0)]
    play(adder, rewards, discounts)
    flush(adder)
    items = {(x.observation[0], x.next_observation[0]): x for x, _ in read_all(client, "items")}
    np.testing.assert_array_equal(items[0, 2].reward, np.full(joint, 1 + 0.5 * 0.5 * 2, np.float32))
    np.testing.assert_array_equal(items[0, 2].discount, np.full(joint, 0.5 * 0.5, np.float32))
    np.testing.assert_array_equal(items[0, 1].discount, np.full(joint, 0.5, np.float32))
    adder.close()


def test_nested_rewards_with_one_discount(connect, table_of, flush, read_all):
    spec = SPEC._replace(rewards={"a": FLOAT, "b": specs.Array((2,), np.float64)})
    client = connect(table_of(NStepTransitionAdder.signature(spec), max_times_sampled=1))
    adder = adder_of(client, 2)
    rewards = [{"a": np.float32(r), "b": np.array([r, -r])} for r in (1.0, 2.0)]
    play(adder, rewards, [1.0, 0.0])
    flush(adder)
    items = {(x.observation[0], x.next_observation[0]): x for x, _ in read_all(client, "items")}
    assert items[0, 2].reward["a"] == 2.0 and items[0, 2].reward["a"].dtype == np.float32
    np.testing.assert_array_equal(items[0, 2].reward["b"], [2.0, -2.0])
    assert items[0, 2].reward["b"].dtype == np.float64
    assert items[0, 1].discount["a"] == 1.0
    np.testing.assert_array_equal(items[0, 2].discount["b"], [0.0, 0.0])
    adder.close()


def test_several_tables_with_priorities(connect, table_of, flush, read_all):
    signature = NStepTransitionAdder.signature(SPEC)
    prioritised = {"max_times_sampled": 1, "sampler": replay.Prioritized(1.0)}
    client = connect(table_of(signature, **prioritised), table_of(signature, name="other", **prioritised))
    seen = []

    def priority(transition: Any) -> float:
        seen.append(transition)
        return float(transition.next_observation[0]) + 1.0

    adder = adder_of(client, 1, priority_fns={"items": priority, "other": None})
    play(adder, [1.0, 2.0], [1.0, 0.0])
    flush(adder)
    given_priority, highest = read_all(client, "items"), read_all(client, "other")
    assert rows(given_priority) == rows(highest)
    assert {int(x.observation[0]): p for x, p in given_priority} == {0: 2.0, 1: 3.0}
    assert [p for _, p in highest] == [1.0, 1.0]
    # Priority functions see what is stored.
    assert [(x.observation[0], x.action, x.reward) for x in seen] == [(0, 0, 1.0), (1, 1, 2.0)]
    adder.close()


def test_new_items_get_the_highest_priority_so_far(connect, table_of, flush, read_all):
    client = connect(
        table_of(NStepTransitionAdder.signature(SPEC), max_times_sampled=1, sampler=replay.Prioritized(1.0))
    )
    adder = adder_of(client, 1, priority_fns={"items": lambda x: 5.0})
    play(adder, [1.0], [0.0])
    flush(adder)
    adder.close()
    later = adder_of(client, 1)
    play(later, [1.0], [0.0], first=10)
    flush(later)
    assert sorted(p for _, p in read_all(client, "items")) == [5.0, 5.0]
    later.close()


def test_environments_may_use_their_arrays_again(connect, table_of, flush, read_all):
    spec = SPEC._replace(rewards=specs.Array((1,), np.float32))
    client = connect(
        table_of(NStepTransitionAdder.signature(spec), max_times_sampled=1, sampler=replay.Prioritized(1.0))
    )
    place, reward, seen = np.zeros(2, np.float32), np.zeros(1, np.float32), []

    def note(transition: Any) -> float:
        seen.append((float(transition.observation[0]), float(transition.next_observation[0])))
        return 1.0

    def at(step: int) -> np.ndarray:
        place[:] = observation(step)
        return place

    adder = adder_of(client, 2, priority_fns={"items": note})
    adder.add_first(dm_env.restart(at(0)))
    for t in range(3):
        reward[:] = 2.0**t
        kind = dm_env.StepType.LAST if t == 2 else dm_env.StepType.MID
        adder.add(np.int32(t), dm_env.TimeStep(kind, reward, 1.0, at(t + 1)))
    flush(adder)
    assert rows(
        [(x._replace(reward=x.reward[0], discount=x.discount[0]), p) for x, p in read_all(client, "items")]
    ) == [
        (0, 1, 0, 1.0, 1.0),
        (0, 2, 0, 2.0, 0.5),
        (1, 3, 1, 4.0, 0.5),
        (2, 3, 2, 4.0, 1.0),
    ]
    assert seen == [(0.0, 1.0), (0.0, 2.0), (1.0, 3.0), (2.0, 3.0)]
    adder.close()


def embedded(table: replay.Table) -> tuple[ReplayService, EmbeddedClient]:
    service = ReplayService(lambda: [table])
    return service, EmbeddedClient(service, by_name([table]))


def test_every_step_is_stored_once(table_of):
    table = table_of(NStepTransitionAdder.signature(SPEC), max_size=40)
    service, client = embedded(table)
    adder = adder_of(client, 3)
    play(adder, [1.0] * 20, [1.0] * 20)
    assert adder.flush()
    # The tail's two shorter windows bring a return each, and no step.
    assert service.memory() == {"observation": 21, "action": 20, "reward": 22, "discount": 22}
    for episode in range(20):
        play(adder, [1.0] * 20, [1.0] * 20, first=100 * episode)
    assert adder.flush()
    adder.close()
    # What no item refers to is gone with the writer.
    assert client.info()["items"].size == 40
    assert service.memory()["reward"] == 40 and service.memory()["observation"] <= 42


def oracle(rewards: list[float], discounts: list[float], n: int, g: float) -> list[tuple]:
    """Reads the formulas of the adder's docstring literally."""
    count = len(rewards)
    spans = {(0, k) for k in range(1, min(n, count) + 1)}
    spans |= {(t, t + n) for t in range(count - n + 1)}
    spans |= {(t, count) for t in range(max(0, count - n), count)}
    result = []
    for start, end in sorted(spans):
        total = 0.0
        for i in range(start, end):
            term = g ** (i - start) * rewards[i]
            for j in range(start, i):
                term *= discounts[j]
            total += term
        product = g ** (end - start - 1)
        for j in range(start, end):
            product *= discounts[j]
        result.append((start, end, start, total, product))
    return result


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 1)), min_size=1, max_size=12),
    n_step=st.integers(1, 6),
    discount=st.floats(0, 1),
)
def test_matches_brute_force(steps, n_step, discount):
    double = specs.Array((), np.float64)
    spec = SPEC._replace(rewards=double, discounts=double)
    limiter = replay.RateLimiter(1.0, 1, 1e6)
    table = replay.Table(
        "items", NStepTransitionAdder.signature(spec), 100, replay.Uniform(), limiter, max_times_sampled=1
    )
    _, client = embedded(table)
    adder = adder_of(client, n_step, discount)
    rewards, discounts = [r for r, _ in steps], [d for _, d in steps]
    play(adder, rewards, discounts)
    assert adder.flush()
    expected = oracle(rewards, discounts, n_step, discount)
    assert client.info()["items"].size == len(expected)
    sample = next(client.sampler("items", len(expected)))
    got = rows([(tree.map_structure(lambda x, i=i: x[i], sample.data), 0.0) for i in range(len(expected))])
    assert [row[:3] for row in got] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3:] for row in got], [row[3:] for row in expected], rtol=1e-9, atol=1e-12)

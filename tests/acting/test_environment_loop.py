"""The environment loop on environments, actors and coordinators written out by hand."""

import numpy as np
import pytest
from dm_env import specs
from hypothesis import given
from hypothesis import strategies as st

from rlpad.acting.environment_loop import EnvironmentLoop
from rlpad.acting.observers import InfoObserver
from rlpad.acting.steps import LeasedSteps
from rlpad.tracking import Counter
from tests.acting.fakes import FakeCoordinator, Rows, Script, SingleRecorder, Supply, VectorRecorder

TIMES = {
    "steps_per_second",
    "env_reset_duration_sec",
    "select_action_duration_sec",
    "env_step_duration_sec",
}


def untimed(rows):
    for row in rows:
        assert row.keys() >= TIMES
        assert all(row[name] >= 0 for name in TIMES) and row["steps_per_second"] > 0
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_rows_by_hand():
    rows = Rows()
    loop = EnvironmentLoop(Script((2, 3)), VectorRecorder(1), logger=rows)
    assert loop.run_for(7) == 7
    assert loop.episodes == 3
    assert untimed(rows.rows) == [
        {"actor_steps": 2, "episode_length": 2, "episode_return": 3.0},
        {"actor_steps": 5, "episode_length": 3, "episode_return": 6.0},
        {"actor_steps": 7, "episode_length": 2, "episode_return": 3.0},
    ]


def test_returns_of_arrays():
    spec = specs.Array((2,), np.float32)
    rows = Rows()
    environment = Script((3,), lambda t: np.array([t, -0.5], np.float32), spec)
    EnvironmentLoop(environment, VectorRecorder(1), logger=rows).run_for(6)
    for row in rows.rows:
        np.testing.assert_array_equal(row["episode_return"], [6.0, -1.5])
        assert row["episode_return"].dtype == np.float64


def test_returns_of_nests():
    spec = {"a": specs.Array((), np.float32), "b": (specs.Array((2,), np.float32),)}
    rows = Rows()
    environment = Script((2,), lambda t: {"a": np.float32(t), "b": (np.array([t, 1], np.float32),)}, spec)
    loop = EnvironmentLoop(environment, VectorRecorder(1), logger=rows)
    loop.run_for(4)
    assert len(rows.rows) == 2
    for row in rows.rows:
        assert row["episode_return"]["a"] == 3.0
        np.testing.assert_array_equal(row["episode_return"]["b"][0], [3.0, 2.0])


def test_a_reused_reward_array_is_not_held():
    buffer = np.zeros(2, np.float32)

    def reward(t):
        buffer[:] = t
        return buffer

    rows = Rows()
    EnvironmentLoop(Script((3,), reward, specs.Array((2,), np.float32)), VectorRecorder(1), logger=rows).run_for(3)
    np.testing.assert_array_equal(rows.rows[0]["episode_return"], [6.0, 6.0])


def test_each_stream_sees_its_own_episodes_in_order():
    environments = [Script((2,), name=0), Script((3,), name=1)]
    actor = VectorRecorder(2)
    loop = EnvironmentLoop(environments, actor)
    assert loop.run_for(4) == 4
    # Actions: 100 * stream + number of the policy call. An episode that ended starts anew in the next step.
    assert actor.seen[0] == [
        ("first", 0, 0),
        ("mid", 0, 1, 1),
        ("last", 0, 2, 2),
        ("first", 1, 0),
        ("mid", 1, 1, 3),
        ("last", 1, 2, 4),
    ]
    assert actor.seen[1] == [
        ("first", 0, 0),
        ("mid", 0, 1, 101),
        ("mid", 0, 2, 102),
        ("last", 0, 3, 103),
        ("first", 1, 0),
        ("mid", 1, 1, 104),
    ]
    assert actor.calls[:8] == [
        *("first 0", "first 1", "select", "observe 0", "observe 1", "update"),
        *("select", "observe 0"),
    ]
    assert environments[0].actions == [1, 2, 3, 4]
    assert environments[1].actions == [101, 102, 103, 104]
    assert (actor.policy_calls, actor.updates) == (4, 4)
    assert actor.progress == [2]  # the next word comes with the seventeenth batch
    assert loop.episodes == 3


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(0, 12),
)
def test_episodes_are_whole_whatever_their_lengths(lengths, num_steps):
    environments = [Script(tuple(each), name=i) for i, each in enumerate(lengths)]
    actor, rows = VectorRecorder(len(lengths)), Rows()
    EnvironmentLoop(environments, actor, logger=rows).run_for(num_steps)
    ended = 0
    for environment, seen in zip(environments, actor.seen, strict=True):
        assert environment.steps == num_steps == sum(kind != "first" for kind, *_ in seen)
        expected = []
        for episode in range(environment.resets):
            length = environment.lengths[episode % len(environment.lengths)]
            expected.append(("first", episode, 0))
            expected.extend(("last" if t == length else "mid", episode, t) for t in range(1, length + 1))
        assert [entry[:3] for entry in seen] == expected[: len(seen)]
        ended += sum(kind == "last" for kind, *_ in seen)
    assert len(rows.rows) == ended


def test_the_supply_ends_within_a_batch():
    environments = [Script((10,), name=i) for i in range(3)]
    actor = VectorRecorder(3)
    loop = EnvironmentLoop(environments, actor, steps=Supply(5))
    assert loop.run_for(10) == 2
    assert [environment.steps for environment in environments] == [2, 2, 1]
    assert [len(seen) for seen in actor.seen] == [3, 3, 2]
    assert loop.finished
    assert not loop.step()
    assert sum(environment.steps for environment in environments) == 5


def test_nothing_happens_until_the_actor_is_ready():
    environment, actor, supply = Script(), VectorRecorder(1), Supply(5)
    loop = EnvironmentLoop(environment, actor, steps=supply)
    actor.is_ready = False
    assert not loop.step()
    assert (environment.resets, environment.steps, actor.calls, supply.taken) == (0, 0, [], 0)
    assert "replay" in loop.waiting_on()
    assert not loop.finished
    actor.is_ready = True
    assert loop.run_for(2) == 2
    before = list(actor.calls)
    actor.is_ready = False
    assert loop.run_for(5) == 0
    assert (actor.calls, environment.steps, supply.taken) == (before, 2, 2)


def test_run_for_counts_batched_steps():
    loop = EnvironmentLoop([Script((2,)), Script((2,))], VectorRecorder(2))
    assert loop.run_for(0) == 0
    assert loop.run_for(3) == 3
    assert loop.episodes == 2


def test_run_episode():
    loop = EnvironmentLoop(Script((2, 4)), VectorRecorder(1))
    assert [loop.run_episode() for _ in range(3)] == [3.0, 10.0, 3.0]
    # In a batch it's the return of the one that ended.
    loop = EnvironmentLoop([Script((5,)), Script((2,), lambda t: 10.0 * t)], VectorRecorder(2))
    assert loop.run_episode() == 30.0
    assert loop.run_episode() == 30.0
    assert loop.run_episode() == 15.0


def test_run_episode_says_why_it_cant_go_on():
    actor = VectorRecorder(1)
    loop = EnvironmentLoop(Script((3,)), actor, steps=Supply(2))
    with pytest.raises(RuntimeError, match="can't step"):
        loop.run_episode()
    actor.is_ready = False
    loop = EnvironmentLoop(Script((3,)), actor)
    with pytest.raises(RuntimeError, match="replay"):
        loop.run_episode()


def test_the_counter_counts():
    counter, rows = Counter(), Rows()
    loop = EnvironmentLoop([Script((2,)), Script((3,))], VectorRecorder(2), counter=counter, logger=rows)
    loop.run_for(3)
    # Steps are counted with the episode that they belong to.
    assert counter.get_counts() == {"episodes": 2, "actor_steps": 5}
    assert [(row["episodes"], row["actor_steps"]) for row in rows.rows] == [(1, 2), (2, 5)]


def test_a_counter_with_a_prefix():
    root, rows = Counter(), Rows()
    EnvironmentLoop(Script((2,)), VectorRecorder(1), counter=Counter(root, "eval"), logger=rows).run_for(2)
    assert root.get_counts() == {"eval_episodes": 1, "eval_actor_steps": 2}
    assert (rows.rows[0]["actor_steps"], rows.rows[0]["eval_episodes"]) == (2, 1)


def test_leased_steps_are_counted_by_their_coordinator_alone():
    counter, rows = Counter(), Rows()
    loop = EnvironmentLoop(Script((2,)), VectorRecorder(1), steps=Supply(4), counter=counter, logger=rows)
    loop.run_for(4)
    assert counter.get_counts() == {"episodes": 2}
    assert [row["actor_steps"] for row in rows.rows] == [2, 4]


def test_staleness_is_in_the_rows():
    actor, rows = VectorRecorder(1), Rows()
    actor.stale = {"variables_age_sec": 0.5}
    EnvironmentLoop(Script((2,)), actor, logger=rows).run_for(2)
    assert rows.rows[0]["variables_age_sec"] == 0.5


def test_observers_see_each_environment_and_its_info():
    rows = Rows()
    loop = EnvironmentLoop(
        [Script((2,)), Script((3,))],
        VectorRecorder(2),
        logger=rows,
        observers=[lambda: InfoObserver(last=("double", "missing"), total=("t",))],
    )
    loop.run_for(3)
    loop.run_for(1)
    assert [(row["info_double"], row["info_t"]) for row in rows.rows] == [(4, 3.0), (6, 6.0), (4, 3.0)]
    assert all("info_missing" not in row for row in rows.rows)


def test_everything_is_closed_once():
    environments, actor, rows = [Script(), Script()], VectorRecorder(2), Rows()
    loop = EnvironmentLoop(environments, actor, logger=rows)
    loop.step()
    loop.close()
    loop.close()
    assert [environment.closed for environment in environments] == [1, 1]
    assert (actor.closed, rows.closed) == (1, 1)


def test_one_that_cant_be_closed_doesnt_keep_the_others_open():
    environments, actor, rows = [Script(), Script()], VectorRecorder(2), Rows()

    def fail():
        raise OSError("stuck")

    environments[0].close = fail
    loop = EnvironmentLoop(environments, actor, logger=rows)
    with pytest.raises(OSError, match="stuck"):
        loop.close()
    assert (environments[1].closed, actor.closed, rows.closed) == (1, 1, 1)


def test_an_actor_of_one_environment():
    actor = SingleRecorder()
    loop = EnvironmentLoop(Script((2,)), actor)
    assert loop.run_for(10) == 3
    assert actor.calls == [
        ("first", [0, 0, 0]),
        ("select", [0, 0, 0]),
        ("observe", 7, [0, 0, 1]),
        ("update", False),
        ("select", [0, 0, 1]),
        ("observe", 7, [0, 0, 2]),
        ("update", False),
        ("first", [0, 1, 0]),
        ("select", [0, 1, 0]),
        ("observe", 7, [0, 1, 1]),
        ("update", False),
    ]
    assert loop.flush()
    loop.close()
    assert actor.calls[-1] == "close"


@pytest.mark.parametrize(("environments", "streams"), [(1, 2), (3, 2), (0, 1)])
def test_as_many_environments_as_streams(environments, streams):
    with pytest.raises(ValueError, match=f"train: {environments} environments for an actor of {streams} streams"):
        EnvironmentLoop([Script() for _ in range(environments)], VectorRecorder(streams), label="train")


def test_one_environment_for_an_actor_of_one():
    with pytest.raises(ValueError, match="2 environments"):
        EnvironmentLoop([Script(), Script()], SingleRecorder())


def test_waiting_for_what_others_hold():
    coordinator = FakeCoordinator(goal=10, held_by_others=7)
    environments = [Script((50,)), Script((50,))]
    loop = EnvironmentLoop(environments, VectorRecorder(2), steps=LeasedSteps(coordinator, "actor/0", 64))
    assert loop.run_for(10) == 2
    assert [environment.steps for environment in environments] == [2, 1]
    assert not loop.finished and not loop.step()
    assert "other actors" in loop.waiting_on()
    coordinator.held, coordinator.total = 0, coordinator.total + 3  # the others took three and gave back four
    assert loop.run_for(10) == 2
    assert not loop.step() and loop.finished
    assert sum(environment.steps for environment in environments) == 7
    assert coordinator.total == 10

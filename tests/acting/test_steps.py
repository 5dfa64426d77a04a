"""Supplies of steps, against a coordinator written out by hand and against the real one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpad.acting.steps import LeasedSteps, UnlimitedSteps
from rlpad.experiment.coordinator import Coordinator
from tests.acting.fakes import FakeCoordinator


def test_unlimited_steps():
    steps = UnlimitedSteps()
    assert (steps.take(3), steps.take(4), steps.actor_steps, steps.finished) == (3, 4, 7, False)


def test_leased_steps_by_hand():
    coordinator = FakeCoordinator(goal=10)
    steps = LeasedSteps(coordinator, "actor/0", chunk=4)
    taken = [steps.take(1) for _ in range(12)]
    assert taken == [1] * 10 + [0, 0]
    assert coordinator.calls == [
        ("actor/0", 0, 4),
        ("actor/0", 4, 4),
        ("actor/0", 4, 4),
        ("actor/0", 2, 4),
    ]
    assert steps.finished and steps.actor_steps == 10


def test_batches_are_whole_until_the_end():
    coordinator = FakeCoordinator(goal=14)
    steps = LeasedSteps(coordinator, "actor/0", chunk=7)
    # After two batches one step of the lease is left: it goes back with the renewal.
    assert [steps.take(3) for _ in range(6)] == [3, 3, 3, 3, 2, 0]
    assert coordinator.total == 14
    assert steps.finished


def test_a_batch_larger_than_the_chunk():
    steps = LeasedSteps(FakeCoordinator(goal=20), "actor/0", chunk=2)
    assert [steps.take(8) for _ in range(4)] == [8, 8, 4, 0]
    with pytest.raises(ValueError, match="chunk"):
        LeasedSteps(FakeCoordinator(1), "actor/0", chunk=0)


def test_a_coordinator_that_is_gone_loses_no_count():
    coordinator = FakeCoordinator(goal=10)
    steps = LeasedSteps(coordinator, "actor/0", chunk=4)
    for _ in range(4):
        steps.take(1)
    lease = coordinator.lease

    def gone(*arguments):
        raise ConnectionError("gone")

    coordinator.lease = gone
    with pytest.raises(ConnectionError):
        steps.take(1)
    coordinator.lease = lease
    assert steps.take(1) == 1
    assert coordinator.total == 4 and steps.actor_steps == 5


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=3),
    st.data(),
)
def test_all_actors_together_take_exactly_the_goal(tmp_path_factory, goal, actors, data):
    names = [f"actor/{i}" for i in range(len(actors))]
    coordinator = Coordinator(
        goal,
        actors=names,
        evaluators=[],
        eval_episodes=1,
        final_eval_episodes=1,
        run_dir=str(tmp_path_factory.mktemp("run")),
    )
    supplies = [
        (LeasedSteps(coordinator, name, chunk), streams) for name, (streams, chunk) in zip(names, actors, strict=True)
    ]
    taken = 0
    for _ in range(20 * goal + 60):
        waiting = [each for each in supplies if not each[0].finished]
        if not waiting:
            break
        supply, streams = data.draw(st.sampled_from(waiting)) if taken < 10 else waiting[taken % len(waiting)]
        got = supply.take(streams)
        assert 0 <= got <= streams
        taken += got
        if not got:
            # Nothing to be had: the others go on.
            for other, count in waiting:
                taken += other.take(count)
    assert all(supply.finished for supply, _ in supplies)
    assert taken == goal == coordinator.get_counts()["actor_steps"]

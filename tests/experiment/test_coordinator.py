"""The coordinator: leases add up to the goal exactly, evaluations run in order, the run completes once."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad.experiment import coordinator as coordinator_lib
from rlpad.experiment.coordinator import Coordinator, EvaluationResult


@pytest.fixture
def stops(monkeypatch):
    calls = []
    monkeypatch.setattr(coordinator_lib.lp, "stop", lambda **kwargs: calls.append(kwargs))
    return calls


def make(tmp_path, goal=100, actors=2, evaluators=1):
    return Coordinator(
        goal,
        actors=[f"actor/{i}" for i in range(actors)],
        evaluators=[f"evaluator/{i}" for i in range(evaluators)],
        eval_episodes=5,
        final_eval_episodes=20,
        run_dir=str(tmp_path),
    )


def test_leases_by_hand(tmp_path):
    coordinator = make(tmp_path, goal=100)
    assert tuple(coordinator.lease("actor/0", 0, 64)) == (64, 0, False)
    assert tuple(coordinator.lease("actor/1", 0, 64)) == (36, 0, False)
    # All 100 are out: nothing more until somebody comes back.
    assert tuple(coordinator.lease("actor/1", 36, 64)) == (0, 36, False)
    assert tuple(coordinator.lease("actor/0", 60, 64)) == (4, 96, False)
    assert tuple(coordinator.lease("actor/0", 4, 64)) == (0, 100, True)
    assert tuple(coordinator.lease("actor/1", 0, 64)) == (0, 100, True)


def test_a_restarted_actor_gives_up_what_it_held(tmp_path):
    coordinator = make(tmp_path, goal=50, actors=1)
    assert coordinator.lease("actor/0", 0, 50).granted == 50
    assert coordinator.lease("actor/0", 0, 50).granted == 50  # died with its lease, asks as if new
    assert tuple(coordinator.lease("actor/0", 50, 50)) == (0, 50, True)


@given(
    goal=st.integers(1, 500),
    actors=st.integers(1, 5),
    want=st.integers(1, 70),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_all_actors_together_take_exactly_the_goal(tmp_path_factory, goal, actors, want, order, data):
    coordinator = make(tmp_path_factory.mktemp("run"), goal=goal, actors=actors)
    held = dict.fromkeys(range(actors), 0)
    taken, done = 0, set()
    turn = 0
    while len(done) < actors:
        actor = order[turn % len(order)] % actors if turn < 400 else turn % actors
        turn += 1
        if actor in done:
            continue
        used = held[actor] if turn > 400 else data.draw(st.integers(0, held[actor]))
        taken += used
        lease = coordinator.lease(f"actor/{actor}", used, want)
        held[actor] = lease.granted
        assert lease.actor_steps == taken == coordinator.get_counts()["actor_steps"]
        assert taken + sum(held.values()) <= goal
        if lease.done:
            done.add(actor)
    assert taken == goal


def result(task, mean):
    return EvaluationResult(task, mean, 0.0, task.episodes)


def test_evaluations_in_order_and_the_best_again_at_the_end(tmp_path, stops):
    coordinator = make(tmp_path)
    coordinator.add_snapshot("p1", 10, 5, final=False)
    coordinator.add_snapshot("p2", 20, 10, final=False)
    first = coordinator.next_evaluation("evaluator/0")
    assert (first.snapshot, first.kind, first.episodes) == ("p1", "periodic", 5)
    assert coordinator.next_evaluation("evaluator/0") == first  # until it's finished
    assert coordinator.finish_evaluation("evaluator/0", result(first, 3.0))
    second = coordinator.next_evaluation("evaluator/0")
    assert second.snapshot == "p2"
    assert coordinator.finish_evaluation("evaluator/0", result(second, 9.0))
    assert coordinator.next_evaluation("evaluator/0") is None
    coordinator.add_snapshot("p3", 30, 15, final=True)
    final = coordinator.next_evaluation("evaluator/0")
    assert (final.snapshot, final.kind, final.episodes) == ("p3", "final", 20)
    assert not coordinator.finish_evaluation("evaluator/0", result(final, 7.0))
    assert not stops
    best = coordinator.next_evaluation("evaluator/0")
    assert (best.snapshot, best.kind, best.episodes, best.actor_steps) == ("p2", "best", 20, 20)
    assert not coordinator.finish_evaluation("evaluator/0", result(best, 8.0))
    assert stops == [{"reason": coordinator_lib.COMPLETED, "status": "completed"}]
    progress = coordinator.progress()
    assert progress["best_reevaluation"].mean == 8.0
    assert progress["final_evaluation"].mean == 7.0
    assert progress["last_evaluation"].mean == 9.0


def test_of_equal_means_the_later_snapshot_is_the_best(tmp_path, stops):
    coordinator = make(tmp_path)
    for name, steps in (("p1", 10), ("p2", 20)):
        coordinator.add_snapshot(name, steps, steps, final=False)
        assert coordinator.finish_evaluation("evaluator/0", result(coordinator.next_evaluation("evaluator/0"), 500.0))
    assert coordinator.progress()["best_evaluation"].task.snapshot == "p2"


def test_two_evaluators_share_the_queue(tmp_path, stops):
    coordinator = make(tmp_path, evaluators=2)
    coordinator.add_snapshot("p1", 10, 5, final=False)
    coordinator.add_snapshot("p2", 20, 9, final=True)
    one, two = (coordinator.next_evaluation(f"evaluator/{i}") for i in range(2))
    assert (one.snapshot, two.snapshot) == ("p1", "p2")
    coordinator.finish_evaluation("evaluator/1", result(two, 1.0))
    # The best isn't known while evaluator/0 still works.
    assert coordinator.next_evaluation("evaluator/1") is None
    coordinator.finish_evaluation("evaluator/0", result(one, 2.0))
    best = coordinator.next_evaluation("evaluator/1")
    assert (best.snapshot, best.kind) == ("p1", "best")
    assert coordinator.next_evaluation("evaluator/0") is None
    coordinator.finish_evaluation("evaluator/1", result(best, 2.0))
    assert len(stops) == 1


def test_without_evaluators_the_final_snapshot_completes_the_run(tmp_path, stops):
    coordinator = make(tmp_path, evaluators=0)
    coordinator.add_snapshot("p1", 10, 5, final=False)
    assert not stops
    coordinator.add_snapshot("p2", 100, 50, final=True)
    assert len(stops) == 1


def test_actors_finish_and_counts_are_left_behind(tmp_path):
    coordinator = make(tmp_path)
    assert coordinator.acting()
    coordinator.finish_actor("actor/0")
    assert coordinator.acting()
    coordinator.finish_actor("actor/1")
    assert not coordinator.acting()
    assert coordinator.increment(learner_steps=3, episodes=2)["learner_steps"] == 3
    coordinator.close()
    row = json.loads((tmp_path / "metrics" / "counter.jsonl").read_text().splitlines()[-1])
    assert (row["learner_steps"], row["episodes"], row["actor_steps"]) == (3, 2, 0)

"""The generic learner on a core small enough to compute by hand."""

import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlpad.learning import Aux, LearnerCore, ReplayLearner


class Info(NamedTuple):
    keys: np.ndarray
    probabilities: np.ndarray
    table_size: np.ndarray


class Sample(NamedTuple):
    info: Info
    data: dict


class Samples:
    """Yields batches whose data are given, with running keys."""

    def __init__(self, batches):
        self.batches = list(batches)
        self.closed = False
        self.key = 0

    def ready(self):
        return bool(self.batches)

    def wait_ready(self, timeout):
        return self.ready()

    def __next__(self):
        data = np.asarray(self.batches.pop(0), np.float32)
        keys = np.arange(self.key, self.key + len(data), dtype=np.uint64)
        self.key += len(data)
        return Sample(Info(keys, np.full(len(data), 0.25), np.full(len(data), 4)), {"x": data})

    def close(self):
        self.closed = True


class Sink:
    def __init__(self):
        self.calls = []

    def update_priorities(self, table, keys, priorities):
        self.calls.append((table, keys.tolist(), np.asarray(priorities).tolist()))


def mean_core():
    """Moves a weight half-way to the batch mean: w <- w + (mean - w) / 2; priorities are the distances."""

    def gradients(state, batch):
        distance = batch.data["x"] - state["w"]
        return distance.mean(), Aux({"distance": distance.mean()}, jnp.abs(distance))

    def apply(state, grads, aux):
        return {"w": state["w"] + grads / 2}, {"step": jnp.abs(grads) / 2}

    return LearnerCore(
        init=lambda key: {"w": jnp.zeros(())},
        gradients=gradients,
        apply=apply,
        variables=lambda state: {"policy": state["w"]},
    )


def make(batches, *, batch_size=2, sgd_steps=1, sink=None, core=None):
    samples = Samples(batches)
    learner = ReplayLearner(
        core or mean_core(),
        samples,
        key=jax.random.PRNGKey(0),
        batch_size=batch_size,
        sgd_steps_per_step=sgd_steps,
        priority_sink=sink,
    )
    return learner, samples


def test_steps_by_hand_and_stops_without_a_batch():
    learner, _ = make([[1, 3], [4, 4]])
    assert learner.step()
    assert float(learner.get_variables(["policy"]).values[0]) == 1.0
    assert learner.step()
    assert float(learner.get_variables(["policy"]).values[0]) == 2.5
    assert not learner.step()
    assert learner.learner_steps == 2
    assert learner.metrics()["distance"] == 3.0
    assert learner.metrics()["step"] == 1.5


def test_fused_steps_equal_single_ones():
    learner, _ = make([[1, 3, 4, 4]], sgd_steps=2)
    assert learner.step()
    variables = learner.get_variables(["policy"])
    assert (variables.version, float(variables.values[0])) == (2, 2.5)
    assert learner.metrics()["distance"] == pytest.approx((2 + 3) / 2)


def test_priorities_arrive_once_each_with_their_keys():
    sink = Sink()
    learner, samples = make([[1, 3], [4, 6]], sink=sink)
    learner.step()
    learner.step()
    learner.close()
    assert sink.calls == [("replay", [0, 1], [1.0, 3.0]), ("replay", [2, 3], [3.0, 5.0])]
    assert samples.closed


def test_priorities_that_are_not_finite_are_an_error():
    learner, _ = make([[np.nan, 1], [1, 1]], sink=Sink())
    learner.step()
    with pytest.raises(FloatingPointError, match="not finite after 2 learner steps"):
        learner.step()


def test_unchanged_variables_are_not_sent_again():
    learner, _ = make([[2, 2]])
    first = learner.get_variables(["policy"])
    assert first.version == 0
    assert learner.get_variables(["policy"], have_version=0) is None
    learner.step()
    again = learner.get_variables(["policy"], have_version=0)
    assert again.version == 1
    assert learner.get_variables(["policy"]).values[0] is again.values[0]  # one host copy per version


def test_unknown_variable_names_the_nearest():
    learner, _ = make([])
    with pytest.raises(KeyError, match="did you mean 'policy'"):
        learner.get_variables(["polcy"])


def test_reading_variables_while_learning_never_sees_a_donated_buffer():
    learner, _ = make([[i % 7, i % 5] for i in range(300)])
    seen, errors = [], []

    def read():
        try:
            while learner.learner_steps < 300:
                variables = learner.get_variables(["policy"])
                seen.append((variables.version, float(variables.values[0])))
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    while learner.step():
        pass
    for reader in readers:
        reader.join(30)
    assert not errors
    expected, w = {0: 0.0}, np.float32(0)
    for i in range(300):
        w = np.float32(w + (np.float32((i % 7 + i % 5) / 2) - w) / 2)
        expected[i + 1] = float(w)
    assert seen
    for version, value in seen:
        assert value == pytest.approx(expected[version], rel=1e-5)


def test_save_and_restore_go_on_exactly():
    batches = [[1, 3], [4, 4], [9, 1]]
    learner, _ = make(batches)
    learner.step()
    state = learner.save()
    learner.step()
    learner.step()
    other, _ = make(batches[1:])
    other.restore(state)
    assert other.learner_steps == 1
    other.step()
    other.step()
    np.testing.assert_array_equal(other.save()["state"]["w"], learner.save()["state"]["w"])


def test_initial_state_may_share_buffers():
    core = mean_core()
    shared = LearnerCore(
        init=lambda key: (lambda w: {"w": w, "target": w})(jnp.zeros(())),
        gradients=core.gradients,
        apply=lambda state, grads, aux: ({"w": state["w"] + grads / 2, "target": state["w"]}, {}),
        variables=core.variables,
    )
    learner, _ = make([[2, 2], [2, 2]], core=shared)
    assert learner.step() and learner.step()
    assert float(learner.save()["state"]["target"]) == 1.0

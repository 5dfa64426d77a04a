"""The batched actor and the variable client against hand-made policies and sources."""

from concurrent.futures import Future

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from rlpad import core
from rlpad.acting.actor_core import ActorCore, feed_forward_actor_core, vectorize_policy
from rlpad.acting.actors import BatchedActor, stack_batch
from rlpad.acting.variable_client import VariableClient
from rlpad.types import Variables


class Source:
    def __init__(self):
        self.version = 0
        self.asked = []

    def get_variables(self, names, have_version=-1):
        self.asked.append((tuple(names), have_version))
        if have_version == self.version:
            return None
        return Variables(self.version, [{"w": np.full((2,), self.version, np.float32)} for _ in names])


class LateSource:
    """Answers through futures that the test completes by hand, as RPC would."""

    def __init__(self):
        self.pending = []

    @property
    def futures(self):
        return self

    def get_variables(self, names, have_version, timeout):
        self.pending.append(Future())
        return self.pending[-1]


class RecordingAdder(core.Adder):
    def __init__(self):
        self.calls = []

    def add_first(self, timestep):
        self.calls.append(("first", timestep))

    def add(self, action, next_timestep, extras=()):
        self.calls.append(("add", action, next_timestep, extras))

    def reset(self):
        self.calls.append(("reset",))


def test_pulls_every_period_and_only_what_is_new():
    source = Source()
    client = VariableClient(source, ["policy"], update_period=3)
    client.update()
    client.update()
    assert source.asked == []
    client.update()
    assert source.asked == [(("policy",), -1)]
    np.testing.assert_array_equal(client.params["w"], [0, 0])
    for _ in range(3):
        client.update()
    assert source.asked[-1] == (("policy",), 0)
    assert client.version == 0
    source.version = 40
    for _ in range(3):
        client.update()
    np.testing.assert_array_equal(client.params["w"], [40, 40])
    assert client.staleness()["policy_lag"] == 40


def test_params_pull_on_first_use_and_several_names_come_in_order():
    client = VariableClient(Source(), ["policy", "critic"], update_period=10)
    assert len(client.params) == 2


def test_a_late_answer_does_not_hold_up_the_actor():
    source = LateSource()
    client = VariableClient(source, ["policy"])
    client.update()
    client.update()
    assert len(source.pending) == 1  # one at a time
    source.pending[0].set_result(Variables(7, [np.ones(1)]))
    client.update()
    assert client.version == 7
    assert len(source.pending) == 2


def test_a_failing_pull_is_raised_by_the_next_update():
    source = LateSource()
    client = VariableClient(source, ["policy"])
    client.update()
    source.pending[0].set_exception(ConnectionError("learner/0 is gone"))
    with pytest.raises(ConnectionError, match="learner/0"):
        client.update()


def test_update_period_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        VariableClient(Source(), ["policy"], update_period=0)


def argmax_core():
    return feed_forward_actor_core(lambda params, key, observation: (observation + params["w"]).argmax(-1))


def make_actor(actor_core, streams=2, adders=None, action_spec=None):
    adders = [RecordingAdder() for _ in range(streams)] if adders is None else adders
    actor = BatchedActor(
        actor_core,
        jax.random.PRNGKey(0),
        VariableClient(Source(), ["policy"]),
        action_spec or specs.DiscreteArray(2, dtype=np.int64),
        adders=adders,
        num_streams=streams,
    )
    return actor, adders


def test_one_policy_call_acts_for_all_streams():
    actor, adders = make_actor(argmax_core())
    actions = actor.select_actions([np.array([1.0, 0.0]), np.array([0.0, 1.0])])
    assert [int(a) for a in actions] == [0, 1]
    assert all(np.asarray(a).dtype == np.int64 for a in actions)
    first = dm_env.restart(np.array([1.0, 0.0]))
    after = dm_env.transition(1.0, np.array([0.0, 1.0]))
    actor.observe_first(1, first)
    actor.observe(1, actions[1], after)
    assert adders[0].calls == []
    assert adders[1].calls == [("first", first), ("add", actions[1], after, ())]


def test_extras_of_each_stream_go_to_its_adder():
    def select_action(params, observation, state, actor_steps):
        return observation.argmax(-1), {"count": state["count"] + 1, "top": observation.max(-1)}

    actor_core = ActorCore(
        init=lambda key, batch: {"count": jnp.zeros((), jnp.int32), "top": jnp.zeros((batch,))},
        select_action=select_action,
        get_extras=lambda state: {"top": state["top"]},
    )
    actor, adders = make_actor(actor_core)
    actions = actor.select_actions([np.array([1.0, 0.5]), np.array([0.0, 3.0])])
    for stream in range(2):
        actor.observe(stream, actions[stream], dm_env.transition(0.0, np.zeros(2)))
    assert [float(adder.calls[0][3]["top"]) for adder in adders] == [1.0, 3.0]


def test_nested_actions_are_split_and_cast():
    nested = feed_forward_actor_core(lambda params, key, observation: {"a": observation[:, 0], "b": observation[:, :2]})
    spec = {"a": specs.Array((), np.float64), "b": specs.Array((2,), np.float32)}
    actor, _ = make_actor(nested, action_spec=spec)
    actions = actor.select_actions([np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)])
    assert actions[1]["a"] == 3.0 and actions[1]["a"].dtype == np.float64
    np.testing.assert_array_equal(actions[0]["b"], np.array([1.0, 2.0], np.float32))


def test_the_number_of_adders_must_match():
    with pytest.raises(ValueError, match="one adder per stream, got 1 for 2"):
        make_actor(argmax_core(), streams=2, adders=[RecordingAdder()])


def test_progress_reaches_the_schedule():
    actor_core = ActorCore(
        init=lambda key, batch: (),
        select_action=lambda params, observation, state, actor_steps: (0 * observation[:, 0] + actor_steps, state),
    )
    actor, _ = make_actor(actor_core)
    observations = [np.zeros(2), np.zeros(2)]
    assert list(actor.select_actions(observations)) == [0, 0]
    actor.set_progress(123)
    assert list(actor.select_actions(observations)) == [123, 123]


def test_vectorized_policy_gives_each_stream_its_own_key():
    policy = vectorize_policy(lambda params, key, observation: jax.random.uniform(key) + 0 * observation.sum())
    draws = policy(None, jax.random.PRNGKey(0), np.zeros((8, 3)))
    assert len(np.unique(draws)) == 8


def test_stack_batch_stacks_nests():
    stacked = stack_batch([{"x": np.arange(2), "y": (np.float32(1),)}, {"x": np.arange(2) + 5, "y": (np.float32(2),)}])
    np.testing.assert_array_equal(stacked["x"], [[0, 1], [5, 6]])
    np.testing.assert_array_equal(stacked["y"][0], [1, 2])

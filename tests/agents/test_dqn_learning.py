"""DQN's pure functions against values computed by hand, by brute force and by rlax."""

import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.dqn import learning, networks
from agents.dqn.config import DQNConfig
from rlpad.errors import UserError
from rlpad.learning import Batch
from rlpad.specs import EnvironmentSpec
from rlpad.types import Transition

rlax = pytest.importorskip("rlax")


def spec(observation=None, num_actions=3):
    return EnvironmentSpec(
        observations=observation or dm_specs.Array((4,), np.float32),
        actions=dm_specs.DiscreteArray(num_actions),
        rewards=dm_specs.Array((), np.float32),
        discounts=dm_specs.BoundedArray((), np.float32, 0.0, 1.0),
    )


def transitions(rng, batch_size=5, num_actions=3):
    return Transition(
        observation=rng.normal(size=(batch_size, 4)).astype(np.float32),
        action=rng.integers(num_actions, size=batch_size).astype(np.int32),
        reward=rng.normal(size=batch_size).astype(np.float32),
        discount=rng.integers(2, size=batch_size).astype(np.float32),
        next_observation=rng.normal(size=(batch_size, 4)).astype(np.float32),
    )


def batch_of(data, probabilities=None, table_size=1000.0):
    size = len(data.reward)
    probabilities = np.full(size, 1 / table_size) if probabilities is None else probabilities
    return Batch(data, np.asarray(probabilities, np.float32), np.full(size, table_size, np.float32))


def test_double_q_targets_by_hand():
    data = Transition(
        observation=None,
        action=None,
        reward=jnp.array([1.0, 2.0, -1.0]),
        discount=jnp.array([1.0, 0.0, 0.5]),
        next_observation=None,
    )
    next_values = jnp.array([[10.0, 20.0], [5.0, 7.0], [4.0, 8.0]])
    selector = jnp.array([[3.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    targets = learning.q_learning_targets(data, next_values, selector, 0.9)
    # The selector's best action is bootstrapped from: 1 + .9*10, 2 + 0, -1 + .9*.5*8.
    np.testing.assert_allclose(targets, [10.0, 2.0, 2.6], rtol=1e-6)
    # With the target network as its own selector it is the ordinary maximum.
    plain = learning.q_learning_targets(data, next_values, next_values, 0.9)
    np.testing.assert_allclose(plain, [19.0, 2.0, 2.6], rtol=1e-6)


def test_double_q_errors_match_rlax():
    rng = np.random.default_rng(0)
    data = transitions(rng, 64)
    values, next_values, selector = rng.normal(size=(3, 64, 3)).astype(np.float32)
    targets = learning.q_learning_targets(data, jnp.asarray(next_values), jnp.asarray(selector), 0.97)
    ours = targets - values[np.arange(64), data.action]
    theirs = jax.vmap(rlax.double_q_learning)(
        values, data.action, data.reward, 0.97 * data.discount, next_values, selector
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_importance_weights_by_hand():
    weights = learning.importance_weights(jnp.array([0.5, 0.25, 0.25 / 16]), jnp.full(3, 4.0), 0.5)
    # N P is 2, 1 and 1/16; to the -1/2: 0.7071, 1 and 4; divided by the largest.
    np.testing.assert_allclose(weights, [0.70710678 / 4, 0.25, 1.0], rtol=1e-6)
    np.testing.assert_allclose(learning.importance_weights(jnp.full(3, 0.1), jnp.full(3, 10.0), 0.4), 1.0)


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=16), st.floats(0.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_importance_weights_brute_force(priorities, beta):
    probabilities = np.asarray(priorities) / np.sum(priorities)
    size = len(priorities)
    expected = np.array([(1.0 / (size * p)) ** beta for p in probabilities])
    expected /= expected.max()
    actual = learning.importance_weights(jnp.asarray(probabilities, jnp.float32), jnp.full(size, float(size)), beta)
    np.testing.assert_allclose(actual, expected, rtol=2e-4)


def test_loss_is_the_weighted_mean_of_huber_errors():
    config = DQNConfig(priority_exponent=0.6, importance_sampling_exponent=0.5, discount=0.9)
    nets = networks.make_networks(spec(), config)
    params, target = (nets.init(jax.random.PRNGKey(i)) for i in (0, 1))
    data = transitions(np.random.default_rng(1))
    probabilities = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    value, aux = learning.loss(params, target, batch_of(data, probabilities, 5.0), networks=nets, config=config)
    q, q_next = nets.apply(params, data.observation), nets.apply(params, data.next_observation)
    q_target = nets.apply(target, data.next_observation)
    errors, losses = [], []
    for i in range(5):
        bootstrap = float(q_target[i, int(np.argmax(q_next[i]))])
        error = data.reward[i] + 0.9 * data.discount[i] * bootstrap - float(q[i, data.action[i]])
        errors.append(abs(error))
        losses.append(0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5)
    weights = (5.0 * probabilities) ** -0.5
    weights /= weights.max()
    np.testing.assert_allclose(value, np.mean(weights * losses), rtol=1e-4)
    np.testing.assert_allclose(aux.priorities, np.array(errors) + config.min_priority, rtol=1e-4)


def test_squared_loss_and_no_priorities_without_prioritised_replay():
    config = DQNConfig(loss="squared", double_q=False, discount=0.5)
    nets = networks.make_networks(spec(), config)
    params = nets.init(jax.random.PRNGKey(0))
    data = transitions(np.random.default_rng(2))
    value, aux = learning.loss(params, params, batch_of(data), networks=nets, config=config)
    q, q_next = nets.apply(params, data.observation), nets.apply(params, data.next_observation)
    errors = data.reward + 0.5 * data.discount * np.max(q_next, axis=-1) - np.asarray(q)[np.arange(5), data.action]
    np.testing.assert_allclose(value, 0.5 * np.mean(errors**2), rtol=1e-4)
    assert aux.priorities is None


def test_no_gradient_flows_through_the_target():
    config = DQNConfig()
    nets = networks.make_networks(spec(), config)
    params = nets.init(jax.random.PRNGKey(0))
    data = transitions(np.random.default_rng(3))

    def by_target(target_params):
        return learning.loss(params, target_params, batch_of(data), networks=nets, config=config)[0]

    assert all(not np.any(leaf) for leaf in jax.tree.leaves(jax.grad(by_target)(params)))


def test_target_network_is_copied_every_period():
    config = DQNConfig(target_update_period=3, hidden_sizes=(8,))
    core = learning.make_learner_core(networks.make_networks(spec(), config), config)
    state = core.init(jax.random.PRNGKey(0))
    first = state.target_params
    batch = batch_of(transitions(np.random.default_rng(4)))
    for step in range(1, 7):
        state, _ = core.update(state, batch)
        copied = step % 3 == 0
        same = all(
            np.array_equal(a, b)
            for a, b in zip(jax.tree.leaves(state.target_params), jax.tree.leaves(state.params), strict=True)
        )
        assert same == copied
        if step < 3:
            assert jax.tree.all(jax.tree.map(np.array_equal, state.target_params, first))
    assert int(state.steps) == 6


def test_gradient_clipping_bounds_the_step():
    data = transitions(np.random.default_rng(5))
    data = data._replace(reward=data.reward * 1e4)
    norms = {}
    for clip in (0.0, 0.5):
        config = DQNConfig(max_gradient_norm=clip, loss="squared", hidden_sizes=(8,))
        nets = networks.make_networks(spec(), config)
        state = learning.init(jax.random.PRNGKey(0), networks=nets, optimizer=learning.make_optimizer(config))
        grads, _ = learning.gradients(state, batch_of(data), networks=nets, config=config)
        chain = learning.make_optimizer(config)
        _, opt_state = chain.update(grads, chain.init(state.params), state.params)
        moments = [leaf for leaf in jax.tree.leaves(opt_state) if leaf.ndim > 0]
        # Adam's first moment after one step is a tenth of the gradient that reached it.
        norms[clip] = float(np.sqrt(sum(np.sum((leaf * 10) ** 2) for leaf in moments[: len(moments) // 2])))
        raw = float(np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(grads))))
    assert norms[0.5] == pytest.approx(0.5, rel=1e-3)
    assert norms[0.0] == pytest.approx(raw, rel=1e-3)


def test_several_updates_in_one_call_equal_single_ones():
    config = DQNConfig(hidden_sizes=(16,), target_update_period=2, priority_exponent=0.5)
    core = learning.make_learner_core(networks.make_networks(spec(), config), config)
    batches = [batch_of(transitions(np.random.default_rng(i))) for i in range(4)]
    state = core.init(jax.random.PRNGKey(0))
    priorities, losses = [], []
    update = jax.jit(core.update)
    for batch in batches:
        state, aux = update(state, batch)
        priorities.append(aux.priorities)
        losses.append(aux.metrics["loss"])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    fused, aux = jax.jit(core.update_many)(core.init(jax.random.PRNGKey(0)), stacked)
    for single, many in zip(jax.tree.leaves(state), jax.tree.leaves(fused), strict=True):
        np.testing.assert_allclose(single, many, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aux.priorities, np.stack(priorities), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(aux.metrics["loss"], np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize(("steps", "expected"), [(0, 1.0), (250, 0.775), (500, 0.55), (1000, 0.1), (5000, 0.1)])
def test_epsilon_schedule_by_hand(steps, expected):
    assert float(networks.linear_epsilon(jnp.int32(steps), 1.0, 0.1, 1000)) == pytest.approx(expected)


def test_epsilon_schedule_without_decay_is_at_its_end():
    assert float(networks.linear_epsilon(jnp.int32(0), 1.0, 0.1, 0)) == pytest.approx(0.1)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_frequencies(epsilon):
    values = jnp.tile(jnp.array([0.0, 5.0, 1.0, 2.0]), (40_000, 1))
    _, uniform = networks.draw_uniform(jax.random.PRNGKey(0), len(values))
    actions = np.asarray(networks.epsilon_greedy(uniform, values, epsilon))
    frequencies = np.bincount(actions, minlength=4) / len(actions)
    expected = np.full(4, epsilon / 4) + np.array([0, 1 - epsilon, 0, 0])
    np.testing.assert_allclose(frequencies, expected, atol=0.01)


def test_policy_follows_the_schedule_and_evaluates_greedily():
    config = DQNConfig(epsilon_start=1.0, epsilon_end=0.0, epsilon_decay_steps=100, hidden_sizes=(8,))
    nets = networks.make_networks(spec(), config)
    params = nets.init(jax.random.PRNGKey(3))
    observation = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    greedy = np.asarray(nets.apply(params, observation)).argmax(axis=-1)
    policy = networks.make_policy(nets, config)
    state = policy.init(jax.random.PRNGKey(0), 2000)
    for steps, agreement in ((0, 1 / 3), (50, 0.5 + 0.5 / 3), (100, 1.0)):
        actions, _ = policy.select_action(params, observation, state, jnp.int32(steps))
        assert np.mean(actions == greedy) == pytest.approx(agreement, abs=0.04)
    evaluation = networks.make_policy(nets, config, evaluation=True)
    state = evaluation.init(jax.random.PRNGKey(0), 2000)
    actions, _ = evaluation.select_action(params, observation, state, jnp.int32(0))
    np.testing.assert_array_equal(actions, greedy)


def test_duelling_values_are_value_plus_centred_advantage():
    config = DQNConfig(duelling=True, hidden_sizes=(8,))
    nets = networks.make_networks(spec(), config)
    params = nets.init(jax.random.PRNGKey(0))
    observation = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    values = nets.apply(params, observation)
    name = next(name for name in params if "value" in name and name.endswith("linear_0"))
    prefix = name.split("/value/")[0]

    def stream(head):
        hidden = observation
        for layer in ("linear_0", "linear_1"):
            weights = params[f"{prefix}/{head}/~/{layer}"]
            hidden = hidden @ weights["w"] + weights["b"]
            hidden = np.maximum(hidden, 0) if layer == "linear_0" else hidden
        return np.asarray(hidden)

    value, advantage = stream("value"), stream("advantage")
    np.testing.assert_allclose(values, value + advantage - advantage.mean(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_nature_network_has_the_published_shapes():
    image = dm_specs.BoundedArray((84, 84, 4), np.uint8, 0, 255)
    nets = networks.make_networks(spec(image, 6), DQNConfig(hidden_sizes=(512,)))
    params = nets.init(jax.random.PRNGKey(0))
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
    assert shapes == sorted([(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512), (512, 6)])
    assert nets.apply(params, np.zeros((2, 84, 84, 4), np.uint8)).shape == (2, 6)


def test_nested_observations_are_flattened_together():
    nested = {"a": dm_specs.Array((2, 2), np.float32), "b": (dm_specs.Array((3,), np.int32),)}
    nets = networks.make_networks(spec(nested), DQNConfig(hidden_sizes=(5,)))
    params = nets.init(jax.random.PRNGKey(0))
    first = next(value["w"] for name, value in hk.data_structures.to_mutable_dict(params).items() if "linear_0" in name)
    assert first.shape == (7, 5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("epsilon_end", 1.5),
        ("batch_size", 0),
        ("max_replay_size", 10),
        ("hidden_sizes", ()),
        ("discount", -0.1),
        ("n_step", 0),
        ("importance_sampling_exponent", 2.0),
    ],
)
def test_settings_out_of_range_are_one_line_errors(field, value):
    with pytest.raises(UserError, match=field.replace("_", "-")) as info:
        dataclasses.replace(DQNConfig(), **{field: value})
    assert "\n" not in str(info.value)

"""K steps in a compiled loop and K compiled calls come to the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlpad.learning import Aux, Batch, LearnerCore
from rlpad.learning.many_steps import ManySteps


def make_core(convolution):
    """Least squares, with the features from a convolution or not; the state is the weights and a step count."""

    def gradients(state, batch):
        def loss(weights):
            features = batch.data["x"]
            if convolution:
                kernel = jnp.ones((1, 1, 3), jnp.float32) / 3
                features = jax.lax.conv(features[:, None, :], kernel, (1,), "SAME")[:, 0]
            errors = features @ weights - batch.data["y"]
            return jnp.mean(batch.probabilities * errors**2), jnp.abs(errors)

        (value, errors), grads = jax.value_and_grad(loss, has_aux=True)(state[0])
        return grads, Aux({"loss": value}, errors)

    def apply(state, grads, aux):
        return (state[0] - 0.1 * grads, state[1] + 1), {"step": jnp.float32(state[1])}

    return LearnerCore(lambda key: (jnp.ones(5), jnp.int32(0)), gradients, apply, lambda state: {"policy": state[0]})


def make_batches(steps, size):
    draw = np.random.default_rng(0)
    data = {"x": draw.normal(size=(steps, size, 5)).astype(np.float32), "y": np.ones((steps, size), np.float32)}
    return Batch(data, np.full((steps, size), 0.5, np.float32), np.ones((steps, size), np.float32))


@pytest.mark.parametrize(
    ("convolution", "platform", "in_loop"), [(0, "cpu", True), (1, "cpu", False), (1, "gpu", True)]
)
def test_the_way_is_chosen_by_network_and_platform_and_makes_no_difference(convolution, platform, in_loop):
    core, batches = make_core(convolution), make_batches(3, 4)
    many = ManySteps(core, platform)
    state, aux = many(jax.tree.map(jnp.copy, core.init(None)), batches)
    assert many._in_loop is in_loop
    expected, losses, errors = core.init(None), [], []
    for k in range(3):
        expected, one = core.update(expected, jax.tree.map(lambda leaf, k=k: leaf[k], batches))
        losses.append(float(one.metrics["loss"]))
        errors.append(one.priorities)
    assert int(state[1]) == 3
    np.testing.assert_allclose(state[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(aux.metrics["loss"], np.mean(losses), rtol=1e-5)
    assert float(aux.metrics["step"]) == 1.0  # the mean of 0, 1 and 2
    np.testing.assert_allclose(aux.priorities, np.stack(errors), rtol=1e-5)


def test_without_priorities():
    core = make_core(True)
    bare = LearnerCore(core.init, lambda s, b: (core.gradients(s, b)[0], Aux({})), core.apply, core.variables)
    state, aux = ManySteps(bare, "cpu")(bare.init(None), make_batches(2, 4))
    assert aux.priorities is None and int(state[1]) == 2

"""The layers against dm-haiku's own, with values and gradients of the plain product as the oracle."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlpad.networks import MLP, linear


def draw(*shapes):
    generator = np.random.default_rng(0)
    return [jnp.asarray(generator.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("sizes", [(64, 64, 2), (256, 16), (33, 9), (3,)])
def test_an_mlp_is_haikus_in_parameters_values_and_gradients(sizes):
    inputs, cotangent = draw((32, 20), (32, sizes[-1]))
    outcomes = []
    for module in (MLP, hk.nets.MLP):
        network = hk.without_apply_rng(hk.transform(lambda x, module=module: module(sizes, name="mlp")(x)))
        params = network.init(jax.random.PRNGKey(1), inputs)

        @jax.jit
        def outcome(params, inputs, network=network):
            out, pull = jax.vjp(network.apply, params, inputs)
            return out, pull(cotangent)

        outcomes.append((params, *outcome(params, inputs)))
    jax.tree.map(lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5), *outcomes)


def test_leading_axes_are_kept():
    inputs, weights = draw((2, 3, 16), (16, 8))
    np.testing.assert_allclose(
        linear.matmul(inputs, weights), np.einsum("abd,dn->abn", inputs, weights), rtol=1e-5, atol=1e-5
    )


def test_it_can_be_mapped_and_its_gradient_differentiated():
    inputs, weights = draw((4, 5, 16), (16, 8))

    def penalty(product, inputs, weights):
        """A gradient penalty: the second derivative of the product counts."""
        slopes = jax.grad(lambda x: jnp.sum(jnp.tanh(product(x, weights)) ** 2))(inputs)
        return jnp.sum(slopes**2)

    def slopes(product):
        return jax.jit(jax.vmap(jax.grad(penalty, argnums=(1, 2)), in_axes=(None, 0, None)), static_argnums=0)(
            product, inputs, weights
        )

    for mine, plain in zip(slopes(linear.matmul), slopes(jnp.matmul), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-4)


def test_the_gradients_of_wide_layers_come_from_plain_products():
    inputs, hidden, last = draw((32, 64), (64, 128), (128, 2))

    def transposed_products(product):
        def loss(inputs, hidden, last):
            return jnp.sum(product(jnp.tanh(product(inputs, hidden)), last) ** 2)

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(inputs, hidden, last).compile()
        return compiled.as_text().count("rhs_contracting_dims={1}")

    assert transposed_products(jnp.matmul) == 2
    assert transposed_products(linear.matmul) == 1  # that with the two columns of the last layer

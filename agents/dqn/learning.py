"""The learner of DQN: pure functions from state and batch to state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

from agents.dqn.config import DQNConfig
from agents.dqn.networks import DQNNetworks
from rlpad.learning import Aux, Batch, LearnerCore
from rlpad.types import Transition


class TrainingState(NamedTuple):
    """Everything that DQN learns.

    Attributes:
      params: online network.
      target_params: target network.
      opt_state: optimiser state.
      steps: int32 scalar, SGD steps taken.
    """

    params: hk.Params
    target_params: hk.Params
    opt_state: optax.OptState
    steps: jax.Array


def q_learning_targets(
    transitions: Transition,
    next_values: jax.Array,
    next_selector_values: jax.Array,
    discount: float,
) -> jax.Array:
    """Bootstrapped n-step targets.

    With the online network's values as selector this is double Q-learning (van Hasselt et al. 2016, arXiv
    1509.06461, equation 4); with the target network's own it is the target of Mnih et al. 2015.

    Args:
      transitions: batch with reward and discount of shape [B].
      next_values: target network's values at the next observation, float32 [B, A].
      next_selector_values: values whose best action is bootstrapped from, float32 [B, A].
      discount: gamma.

    Returns:
      float32 [B]; no gradient flows through it.
    """
    best = next_selector_values.argmax(axis=-1)
    bootstrap = jnp.take_along_axis(next_values, best[:, None], axis=-1)[:, 0]
    return jax.lax.stop_gradient(transitions.reward + discount * transitions.discount * bootstrap)


def importance_weights(
    probabilities: jax.Array | np.ndarray, table_size: jax.Array | np.ndarray, exponent: float
) -> jax.Array:
    """Importance-sampling weights of prioritised replay, scaled so that the largest is 1.

    `w_i = (N P(i))^-beta / max_j w_j` (Schaul et al. 2016, arXiv 1511.05952, section 3.4).

    Args:
      probabilities: float32 [B], chance with which each item was drawn.
      table_size: float32 [B], N.
      exponent: beta.

    Returns:
      float32 [B].
    """
    weights = jnp.asarray(table_size * probabilities) ** -exponent
    return weights / weights.max()


def loss(
    params: hk.Params,
    target_params: hk.Params,
    batch: Batch,
    *,
    networks: DQNNetworks,
    config: DQNConfig,
) -> tuple[jax.Array, Aux]:
    """Weighted TD loss of a batch.

    Args:
      params: online network.
      target_params: target network.
      batch: `Transition`s with int actions [B].
      networks: the network.
      config: the agent's settings.

    Returns:
      Scalar loss, and metrics with priorities |TD error| [B].
    """
    transitions: Transition = batch.data
    values = networks.apply(params, transitions.observation)
    next_values = networks.apply(target_params, transitions.next_observation)
    selector = networks.apply(params, transitions.next_observation) if config.double_q else next_values
    targets = q_learning_targets(transitions, next_values, selector, config.discount)
    # A product with a one-hot, as the gradient of a gather is a scatter, which XLA's CPU backend loops over.
    chosen = (values * jax.nn.one_hot(transitions.action, values.shape[-1])).sum(axis=-1)
    td_errors = targets - chosen
    losses = optax.losses.huber_loss(td_errors) if config.loss == "huber" else 0.5 * jnp.square(td_errors)
    priorities = None
    if config.priority_exponent > 0:
        losses *= importance_weights(batch.probabilities, batch.table_size, config.importance_sampling_exponent)
        priorities = jnp.abs(td_errors) + config.min_priority
    mean_loss = losses.mean()
    metrics = {"loss": mean_loss, "q_value": chosen.mean(), "td_error": jnp.abs(td_errors).mean()}
    return mean_loss, Aux(metrics, priorities)


def init(key: jax.Array, *, networks: DQNNetworks, optimizer: optax.GradientTransformation) -> TrainingState:
    """Returns the initial state; the target network starts as a copy of the online one."""
    params = networks.init(key)
    return TrainingState(params, params, optimizer.init(params), jnp.zeros((), jnp.int32))


def gradients(state: TrainingState, batch: Batch, *, networks: DQNNetworks, config: DQNConfig) -> tuple[hk.Params, Aux]:
    """Returns the gradients of the loss with respect to the online network."""
    bound = partial(loss, networks=networks, config=config)
    return jax.grad(bound, has_aux=True)(state.params, state.target_params, batch)


def apply(
    state: TrainingState,
    grads: hk.Params,
    aux: Aux,
    *,
    optimizer: optax.GradientTransformation,
    config: DQNConfig,
) -> tuple[TrainingState, Mapping[str, jax.Array]]:
    """Takes one optimiser step, and copies the online into the target network when that's due."""
    del aux
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    steps = state.steps + 1
    target_params = optax.periodic_update(params, state.target_params, steps, config.target_update_period)
    metrics = {"gradient_norm": optax.global_norm(grads)}
    return TrainingState(params, target_params, opt_state, steps), metrics


def make_optimizer(config: DQNConfig) -> optax.GradientTransformation:
    """Adam behind an optional clip of the global gradient norm."""
    adam = optax.adam(config.learning_rate, eps=config.adam_epsilon)
    if config.max_gradient_norm == 0:
        return adam
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), adam)


def make_learner_core(networks: DQNNetworks, config: DQNConfig) -> LearnerCore:
    """Binds the functions above to a network and settings."""
    optimizer = make_optimizer(config)
    return LearnerCore(
        init=partial(init, networks=networks, optimizer=optimizer),
        gradients=partial(gradients, networks=networks, config=config),
        apply=partial(apply, optimizer=optimizer, config=config),
        variables=lambda state: {"policy": state.params},
    )

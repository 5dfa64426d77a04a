"""Network and acting policy of DQN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agents.dqn.config import DQNConfig
from rlpad.acting.actor_core import ActorCore
from rlpad.networks import QNetwork
from rlpad.specs import EnvironmentSpec
from rlpad.types import NestedArray


@dataclasses.dataclass(frozen=True)
class DQNNetworks:
    """The action-value network as pure functions.

    Attributes:
      init: `init(key) -> params`.
      apply: `apply(params, observation [B, ...]) -> float32 [B, A]`.
      num_actions: A.
    """

    init: Callable[[jax.Array], hk.Params]
    apply: Callable[[hk.Params, NestedArray], jax.Array]
    num_actions: int


def is_image(spec: EnvironmentSpec) -> bool:
    """Whether observations are single images [H, W, C] that the Nature CNN can take."""
    observation = spec.observations
    return hasattr(observation, "shape") and len(observation.shape) == 3 and min(observation.shape[:2]) >= 36


def make_networks(spec: EnvironmentSpec, config: DQNConfig) -> DQNNetworks:
    """Builds the network for an environment with one discrete action."""
    num_actions = int(spec.actions.num_values)
    torso = config.torso if config.torso != "auto" else ("nature" if is_image(spec) else "mlp")

    def forward(observation: NestedArray) -> jax.Array:
        network = QNetwork(num_actions, torso=torso, hidden_sizes=config.hidden_sizes, duelling=config.duelling)
        return network(observation)

    transformed: Any = hk.without_apply_rng(hk.transform(forward))  # typed as an alias that mypy can't see through
    dummy = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), spec.observations)
    return DQNNetworks(init=lambda key: transformed.init(key, dummy), apply=transformed.apply, num_actions=num_actions)


def linear_epsilon(actor_steps: jax.Array | int, start: float, end: float, decay_steps: int) -> jax.Array:
    """Linear schedule: `start` at step 0, `end` from `decay_steps` on; float32 scalar."""
    fraction = jnp.clip(jnp.float32(actor_steps) / max(decay_steps, 1), 0.0, 1.0)
    if decay_steps == 0:
        fraction = jnp.float32(1.0)
    return start + fraction * (end - start)


def draw_uniform(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Returns the next key, and float32 [count] in [0, 1).

    As `split` and `uniform`, from one call of the generator instead of two; for a small network they are a third of
    the policy's time.
    """
    words = jax.random.bits(key, (2 + count,), jnp.uint32)
    return words[:2], (words[2:] >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def epsilon_greedy(uniform: jax.Array, values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Takes a uniformly random action with probability epsilon, else the best one.

    Args:
      uniform: random numbers in [0, 1), float32 [B].
      values: action values, float32 [B, A].
      epsilon: scalar in [0, 1].

    Returns:
      int32 [B].
    """
    num_actions = values.shape[-1]
    # One number serves both questions: below epsilon it's uniform on [0, epsilon), which picks the action.
    explore = uniform < epsilon
    random_action = jnp.minimum((uniform / jnp.maximum(epsilon, 1e-8) * num_actions).astype(jnp.int32), num_actions - 1)
    return jnp.where(explore, random_action, values.argmax(axis=-1).astype(jnp.int32))


def make_policy(networks: DQNNetworks, config: DQNConfig, evaluation: bool = False) -> ActorCore:
    """Builds the epsilon-greedy policy, with the schedule for acting or the fixed epsilon of evaluation."""

    def init(key: jax.Array, batch_size: int) -> jax.Array:
        del batch_size
        return key

    def select_action(
        params: hk.Params, observation: NestedArray, key: jax.Array, actor_steps: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        values = networks.apply(params, observation)
        key, uniform = draw_uniform(key, values.shape[0])
        epsilon: jax.Array | float = config.eval_epsilon
        if not evaluation:
            epsilon = linear_epsilon(actor_steps, config.epsilon_start, config.epsilon_end, config.epsilon_decay_steps)
        return epsilon_greedy(uniform, values, epsilon), key

    return ActorCore(init, select_action)

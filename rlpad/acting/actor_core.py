"""A policy as pure functions over a batch of streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from rlpad.types import NestedArray

#: Whatever a policy carries from step to step: keys, recurrent state. Any pytree.
State = Any
Params = Any


def _no_extras(state: State) -> NestedArray:
    del state
    return ()


@dataclasses.dataclass(frozen=True)
class ActorCore:
    """A policy that acts for B streams at once (Acme's ActorCore, batched from the start).

    Attributes:
      init: `init(key, batch_size) -> state`.
      select_action: `select_action(params, observation, state, actor_steps) -> (action, state)`; observation
        and action have a leading axis [B]; `actor_steps`, an int32 scalar, is how many steps all actors
        together have taken, for schedules. Pure; it's compiled with `jax.jit`.
      get_extras: `get_extras(state) -> extras`, a nest with a leading axis [B] that is stored beside each
        step, read after acting.
      variables: names of the variables that make up `params`, in order. A single name gives its nest itself.
    """

    init: Callable[[jax.Array, int], State]
    select_action: Callable[[Params, NestedArray, State, jax.Array], tuple[NestedArray, State]]
    get_extras: Callable[[State], NestedArray] = _no_extras
    variables: tuple[str, ...] = ("policy",)

    @property
    def has_extras(self) -> bool:
        """Whether this policy stores anything beside its steps."""
        return self.get_extras is not _no_extras


def feed_forward_actor_core(
    policy: Callable[[Params, jax.Array, NestedArray], NestedArray],
) -> ActorCore:
    """Makes an actor core of a stateless policy over batches.

    Args:
      policy: `policy(params, key, observation) -> action`, with a leading axis [B] on both.
    """

    def init(key: jax.Array, batch_size: int) -> jax.Array:
        del batch_size
        return key

    def select_action(
        params: Params, observation: NestedArray, key: jax.Array, actor_steps: jax.Array
    ) -> tuple[NestedArray, jax.Array]:
        del actor_steps
        key, action_key = jax.random.split(key)
        return policy(params, action_key, observation), key

    return ActorCore(init, select_action)


def vectorize_policy(
    policy: Callable[[Params, jax.Array, NestedArray], NestedArray],
) -> Callable[[Params, jax.Array, NestedArray], NestedArray]:
    """Turns a policy over one observation into one over a batch, with a key of its own per stream.

    Args:
      policy: `policy(params, key, observation) -> action` without a batch axis.
    """

    def batched(params: Params, key: jax.Array, observation: NestedArray) -> NestedArray:
        batch_size = jax.tree.leaves(observation)[0].shape[0]
        keys = jax.random.split(key, batch_size)
        return jax.vmap(policy, in_axes=(None, 0, 0))(params, keys, observation)

    return batched

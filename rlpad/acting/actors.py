"""The actor that runs an `ActorCore` over one or more environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dm_env
import jax
import numpy as np
import tree

from rlpad import core
from rlpad.acting.actor_core import ActorCore
from rlpad.acting.device import cpu_device, put_on_device
from rlpad.acting.variable_client import VariableClient
from rlpad.types import NestedArray, NestedSpec


def stack_batch(observations: Sequence[NestedArray]) -> NestedArray:
    """Stacks observations of equal structure along a new leading axis."""
    first = observations[0]
    if isinstance(first, np.ndarray):
        return first[None] if len(observations) == 1 else np.stack(observations)
    return tree.map_structure(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *observations)


class BatchedActor(core.VectorActor):
    """Acts for E streams with one compiled policy call per step; each stream has an adder of its own.

    Runs on the CPU: actors are many and their networks small, the accelerators belong to learners.
    """

    def __init__(
        self,
        actor_core: ActorCore,
        key: jax.Array,
        variable_client: VariableClient,
        action_spec: NestedSpec,
        *,
        adders: Sequence[core.Adder] = (),
        num_streams: int | None = None,
    ):
        """Builds the actor.

        Args:
          actor_core: the policy.
          key: JAX PRNG key for acting.
          variable_client: gives the policy's parameters.
          action_spec: nest of specs; actions are cast to its dtypes.
          adders: one per stream; none for an actor that only evaluates.
          num_streams: streams to act for; the number of adders by default.

        Raises:
          ValueError: the number of adders is neither zero nor `num_streams`.
        """
        self.num_streams = num_streams if num_streams is not None else len(adders)
        if self.num_streams < 1 or len(adders) not in (0, self.num_streams):
            raise ValueError(f"expected one adder per stream, got {len(adders)} for {self.num_streams} streams")
        self._core = actor_core
        self._client = variable_client
        self._adders = list(adders)
        self._action_dtypes = tree.map_structure(lambda spec: np.dtype(spec.dtype), action_spec)
        self._select = jax.jit(actor_core.select_action)
        with jax.default_device(cpu_device()):
            self._state: Any = actor_core.init(key, self.num_streams)
        self.set_progress(0)
        self._extras: list[NestedArray] = [()] * self.num_streams

    def select_actions(self, observations: Sequence[NestedArray]) -> Sequence[NestedArray]:
        """Returns one action per stream; see `core.VectorActor`."""
        actions, self._state = self._select(
            self._client.params, stack_batch(observations), self._state, self._actor_steps
        )
        if isinstance(self._action_dtypes, np.dtype):
            batch = np.asarray(actions).astype(self._action_dtypes, copy=False)
            selected = list(batch)
        else:
            cast = tree.map_structure(
                lambda dtype, value: np.asarray(value).astype(dtype, copy=False), self._action_dtypes, actions
            )
            selected = self._split(cast)
        if self._core.has_extras:
            self._extras = self._split(jax.device_get(self._core.get_extras(self._state)))
        return selected

    def _split(self, batch: NestedArray) -> list[NestedArray]:
        return [tree.map_structure(lambda leaf, i=i: leaf[i], batch) for i in range(self.num_streams)]

    def observe_first(self, stream: int, timestep: dm_env.TimeStep) -> None:
        """Starts an episode of one stream."""
        if self._adders:
            self._adders[stream].add_first(timestep)

    def observe(self, stream: int, action: NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Adds one step of one stream."""
        if self._adders:
            self._adders[stream].add(action, next_timestep, self._extras[stream])

    def update(self, wait: bool = False) -> None:
        """Refreshes the policy's parameters if they are due."""
        self._client.update(wait)

    def set_progress(self, actor_steps: int) -> None:
        """Moves the policy's schedules on."""
        self._actor_steps = put_on_device(np.int32(actor_steps), cpu_device())

    def ready(self) -> bool:
        """Whether replay would take one more step of every stream without waiting."""
        return all(adder.ready() for adder in self._adders)

    def staleness(self) -> dict[str, float]:
        """Returns how old the parameters are; see `VariableClient.staleness`."""
        return self._client.staleness()

    def flush(self) -> bool:
        """Flushes every adder."""
        flushed = [adder.flush() for adder in self._adders]  # every one, even if the first can't
        return all(flushed)

    def close(self) -> None:
        """Closes every adder."""
        for adder in self._adders:
            adder.close()


class SingleStreamActor(core.VectorActor):
    """Lets an actor of one environment stand where one of several is expected."""

    num_streams = 1

    def __init__(self, actor: core.Actor):
        self._actor = actor

    def select_actions(self, observations: Sequence[NestedArray]) -> Sequence[NestedArray]:
        """Acts on the one observation."""
        (observation,) = observations
        return [self._actor.select_action(observation)]

    def observe_first(self, stream: int, timestep: dm_env.TimeStep) -> None:
        """Passes on the first timestep."""
        self._actor.observe_first(timestep)

    def observe(self, stream: int, action: NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Passes on the step."""
        self._actor.observe(action, next_timestep)

    def update(self, wait: bool = False) -> None:
        """Updates the actor."""
        self._actor.update(wait)

    def ready(self) -> bool:
        """Whether the actor is ready."""
        return self._actor.ready()

    def close(self) -> None:
        """Closes the actor."""
        self._actor.close()

"""Policies without a learner: for evaluation, and for whoever loads a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np

from rlpad.acting.actors import BatchedActor
from rlpad.acting.device import cpu_device
from rlpad.acting.variable_client import VariableClient
from rlpad.specs import EnvironmentSpec
from rlpad.types import NestedArray, Variables

if TYPE_CHECKING:
    from rlpad.experiment.builder import Builder


class _FixedVariables:
    """A variable source whose variables are set by hand."""

    def __init__(self) -> None:
        self._version = 0
        self._variables: Mapping[str, NestedArray] = {}

    def set(self, variables: Mapping[str, NestedArray]) -> None:
        self._version += 1
        self._variables = variables

    def get_variables(self, names: Sequence[str], have_version: int = -1) -> Variables | None:
        if have_version == self._version:
            return None
        return Variables(self._version, [self._variables[name] for name in names])


class EvaluationPolicy:
    """An agent's evaluation policy on variables that are given to it."""

    def __init__(self, builder: Builder[Any, Any], spec: EnvironmentSpec, seed: int, num_streams: int = 1):
        """Builds the policy for `num_streams` environments; set variables before acting."""
        import jax

        policy = builder.make_policy(builder.make_networks(spec), spec, evaluation=True)
        self._source = _FixedVariables()
        client = VariableClient(self._source, policy.variables, device=cpu_device())
        self._actor = BatchedActor(policy, jax.random.PRNGKey(seed), client, spec.actions, num_streams=num_streams)
        self.num_streams = num_streams

    def set_variables(self, variables: Mapping[str, NestedArray]) -> None:
        """Puts in the variables to act on, by name."""
        self._source.set(variables)
        self._actor.update(wait=True)

    def __call__(self, observation: NestedArray) -> NestedArray:
        """Returns the action for one observation without a batch axis (a policy of one stream only).

        Raises:
          ValueError: the policy was built for several streams.
        """
        if self.num_streams != 1:
            raise ValueError(f"this policy acts for {self.num_streams} streams at once; build it for one")
        return self._actor.select_actions([observation])[0]

    def run_episodes(
        self,
        environments: Sequence[dm_env.Environment],
        episodes: int,
        should_stop: Callable[[], bool] = lambda: False,
        max_steps: int | None = None,
    ) -> tuple[list[float], list[int]]:
        """Runs a fixed number of episodes, spread evenly over the environments.

        Every environment runs its own share to the end, so short episodes don't crowd out long ones.

        Args:
          environments: `num_streams` environments.
          episodes: episodes in all.
          should_stop: asked at each step; true ends the run early.
          max_steps: steps after which an episode is cut; None for no limit.

        Returns:
          Undiscounted returns and lengths of the finished episodes, by environment and then in order. Array
          rewards count with their sum.
        """
        streams = len(environments)
        shares = [episodes // streams + (i < episodes % streams) for i in range(streams)]
        timesteps = [environment.reset() for environment in environments]
        totals, lengths = [0.0] * streams, [0] * streams
        finished: list[list[tuple[float, int]]] = [[] for _ in range(streams)]
        while any(len(done) < share for done, share in zip(finished, shares, strict=True)):
            if should_stop():
                break
            actions = self._actor.select_actions([timestep.observation for timestep in timesteps])
            for i, environment in enumerate(environments):
                if len(finished[i]) >= shares[i]:
                    continue
                timesteps[i] = environment.step(actions[i])
                totals[i] += float(np.sum(timesteps[i].reward))
                lengths[i] += 1
                if timesteps[i].last() or lengths[i] == max_steps:
                    finished[i].append((totals[i], lengths[i]))
                    totals[i], lengths[i] = 0.0, 0
                    if len(finished[i]) < shares[i]:
                        timesteps[i] = environment.reset()
        rows = [row for done in finished for row in done]
        return [total for total, _ in rows], [length for _, length in rows]

"""What an agent must supply: a builder of its parts."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rlpad import core
from rlpad.specs import EnvironmentSpec

if TYPE_CHECKING:
    import jax

    from rlpad.acting.actor_core import ActorCore
    from rlpad.replay import ReplayClient, Sampler, Table

ConfigT = TypeVar("ConfigT")
NetworksT = TypeVar("NetworksT")


class Builder(abc.ABC, Generic[ConfigT, NetworksT]):
    """Builds an agent's parts (Acme's `ActorLearnerBuilder`); each is called in the process that needs it.

    A builder is made of the agent's config alone and is sent to every node, so it holds settings and no
    state. Register it with `@rlpad.registry.register_agent(name, config=...)`.
    """

    def __init__(self, config: ConfigT):
        self.config = config

    def check(self, spec: EnvironmentSpec) -> None:
        """Raises `UserError` if the agent can't run on this environment; called before anything starts."""

    @abc.abstractmethod
    def make_networks(self, spec: EnvironmentSpec) -> NetworksT:
        """Returns the networks as pure functions."""

    @abc.abstractmethod
    def make_policy(self, networks: NetworksT, spec: EnvironmentSpec, evaluation: bool = False) -> ActorCore:
        """Returns the policy for acting, or for evaluation."""

    @abc.abstractmethod
    def make_replay_tables(self, spec: EnvironmentSpec, policy: ActorCore) -> list[Table]:
        """Returns the replay tables; their samples are what `make_dataset_iterator` iterates over."""

    @abc.abstractmethod
    def make_adder(self, replay_client: ReplayClient, spec: EnvironmentSpec, policy: ActorCore) -> core.Adder:
        """Returns an adder for one environment."""

    @abc.abstractmethod
    def make_dataset_iterator(self, replay_client: ReplayClient) -> Sampler:
        """Returns the sampler that feeds the learner."""

    @abc.abstractmethod
    def make_learner(
        self,
        random_key: jax.Array,
        networks: NetworksT,
        dataset: Sampler,
        spec: EnvironmentSpec,
        replay_client: ReplayClient,
    ) -> core.Learner:
        """Returns the learner."""

    def variable_update_period(self) -> int:
        """Returns after how many batched steps an actor asks for new variables."""
        return 1

    def make_actor(
        self,
        random_key: jax.Array,
        policy: ActorCore,
        spec: EnvironmentSpec,
        variable_source: Any,
        adders: Sequence[core.Adder] = (),
        num_streams: int = 1,
    ) -> core.VectorActor:
        """Returns an actor for `num_streams` environments; without adders it only acts."""
        from rlpad.acting.actors import BatchedActor
        from rlpad.acting.device import cpu_device
        from rlpad.acting.variable_client import VariableClient

        client = VariableClient(
            variable_source,
            policy.variables,
            update_period=self.variable_update_period(),
            device=cpu_device(),
        )
        return BatchedActor(policy, random_key, client, spec.actions, adders=adders, num_streams=num_streams)

"""Puts DQN together."""

from __future__ import annotations

from agents.dqn import learning, networks
from agents.dqn.config import DQNConfig
from rlpad import specs
from rlpad.acting.actor_core import ActorCore
from rlpad.errors import UserError
from rlpad.experiment.transitions import TransitionBuilder
from rlpad.learning import LearnerCore
from rlpad.registry import register_agent


@register_agent("dqn", config=DQNConfig)
class DQNBuilder(TransitionBuilder[DQNConfig, networks.DQNNetworks]):
    """Builds DQN's parts for any environment with one discrete action and scalar rewards."""

    def check(self, spec: specs.EnvironmentSpec) -> None:
        """Refuses what DQN can't do."""
        if not isinstance(spec.actions, specs.DiscreteArray):
            kind = getattr(spec.actions, "name", None) or type(spec.actions).__name__
            raise UserError(
                f"dqn needs one discrete action, but this environment's is {kind}: {spec.actions!r}; "
                "expected a Discrete action space"
            )
        if getattr(spec.rewards, "shape", None) != ():
            raise UserError(f"dqn needs a scalar reward, but this environment's is {spec.rewards!r}")
        if self.config.torso == "nature" and not networks.is_image(spec):
            raise UserError(
                "torso 'nature' needs image observations [H, W, C] of at least 36x36, "
                f"but this environment's are {spec.observations!r}; try torso 'mlp'"
            )

    def make_networks(self, spec: specs.EnvironmentSpec) -> networks.DQNNetworks:
        """Builds the action-value network."""
        return networks.make_networks(spec, self.config)

    def make_policy(
        self, nets: networks.DQNNetworks, spec: specs.EnvironmentSpec, evaluation: bool = False
    ) -> ActorCore:
        """Builds the epsilon-greedy policy."""
        del spec
        return networks.make_policy(nets, self.config, evaluation)

    def make_learner_core(self, nets: networks.DQNNetworks, spec: specs.EnvironmentSpec) -> LearnerCore:
        """Builds the pure learner."""
        del spec
        return learning.make_learner_core(nets, self.config)

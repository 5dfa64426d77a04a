"""What an environment takes and gives: the specs that agents are built from."""

from __future__ import annotations

from typing import NamedTuple

import dm_env
from dm_env import specs

from rlpad.types import NestedSpec

Array = specs.Array
BoundedArray = specs.BoundedArray
DiscreteArray = specs.DiscreteArray


class EnvironmentSpec(NamedTuple):
    """The four specs of an environment; each a `dm_env.specs.Array` or a nest of them."""

    observations: NestedSpec
    actions: NestedSpec
    rewards: NestedSpec
    discounts: NestedSpec


def make_environment_spec(environment: dm_env.Environment) -> EnvironmentSpec:
    """Reads the specs of an environment without stepping it."""
    return EnvironmentSpec(
        observations=environment.observation_spec(),
        actions=environment.action_spec(),
        rewards=environment.reward_spec(),
        discounts=environment.discount_spec(),
    )

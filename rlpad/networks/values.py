"""Heads and networks that give action values."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax

from rlpad.networks.linear import MLP
from rlpad.networks.torsos import NatureTorso, flatten_observation
from rlpad.types import NestedArray


class DuellingHead(hk.Module):
    """Duelling streams: q = v + a - mean(a) (Wang et al. 2016, arXiv 1511.06581, equation 9)."""

    def __init__(self, num_actions: int, hidden_sizes: Sequence[int], name: str | None = None):
        super().__init__(name=name)
        self._num_actions = num_actions
        self._hidden_sizes = tuple(hidden_sizes)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Maps features [B, D] to action values [B, A]."""
        value = MLP((*self._hidden_sizes, 1), name="value")(features)
        advantage = MLP((*self._hidden_sizes, self._num_actions), name="advantage")(features)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)


class QNetwork(hk.Module):
    """Action values [B, A] of a batch of observations.

    With `torso="mlp"` all leaves of the observation are flattened into one vector; with `torso="nature"` the
    observation is one image [B, H, W, C] and goes through the Nature CNN.
    """

    def __init__(
        self,
        num_actions: int,
        *,
        torso: str,
        hidden_sizes: Sequence[int],
        duelling: bool = False,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self._num_actions = num_actions
        self._torso = torso
        self._hidden_sizes = tuple(hidden_sizes)
        self._duelling = duelling

    def __call__(self, observation: NestedArray) -> jax.Array:
        """Maps observations with a leading batch axis to action values, float32 [B, A]."""
        features = NatureTorso()(observation) if self._torso == "nature" else flatten_observation(observation)
        if not self._duelling:
            return MLP((*self._hidden_sizes, self._num_actions))(features)
        return DuellingHead(self._num_actions, self._hidden_sizes)(features)

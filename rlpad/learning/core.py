"""The seam between an agent and the machinery: an agent's learner as pure functions.

An agent supplies `init`, `gradients` and `apply`; `update` is their composition. Gradients cross between the
two halves, which is where an allreduce or a parameter server stands without the agent knowing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from rlpad.types import NestedArray

#: An agent's training state: any pytree of arrays (parameters, targets, optimiser state, step count, key).
State = Any
Gradients = Any


class Batch(NamedTuple):
    """A batch as a loss sees it.

    Attributes:
      data: nest of arrays [B, ...], the structure of the replay table's signature.
      probabilities: float32 [B], the probability with which each item was drawn.
      table_size: float32 [B], items in the table when each item was drawn.
    """

    data: NestedArray
    probabilities: jax.Array | np.ndarray
    table_size: jax.Array | np.ndarray


class Aux(NamedTuple):
    """What a loss yields beside its gradients.

    Attributes:
      metrics: scalar float32 arrays by log key.
      priorities: float32 [B], new priorities of the batch's items, or None where replay isn't prioritised.
    """

    metrics: Mapping[str, jax.Array]
    priorities: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class LearnerCore:
    """An agent's learner, as pure functions that `jax.jit` can trace.

    Attributes:
      init: `init(key) -> state`.
      gradients: `gradients(state, batch) -> (grads, aux)`; must not change the state.
      apply: `apply(state, grads, aux) -> (state, metrics)`; takes one optimiser step.
      variables: `variables(state) -> {name: nest}`, what actors and evaluators may pull. By rlpad's naming
        rule the acting parameters are called `policy`.
    """

    init: Callable[[jax.Array], State]
    gradients: Callable[[State, Batch], tuple[Gradients, Aux]]
    apply: Callable[[State, Gradients, Aux], tuple[State, Mapping[str, jax.Array]]]
    variables: Callable[[State], Mapping[str, NestedArray]]

    def update(self, state: State, batch: Batch) -> tuple[State, Aux]:
        """Takes one SGD step on one batch; returns the new state, and the metrics of both halves."""
        grads, aux = self.gradients(state, batch)
        state, metrics = self.apply(state, grads, aux)
        return state, aux._replace(metrics={**aux.metrics, **metrics})

    def update_many(self, state: State, batches: Batch) -> tuple[State, Aux]:
        """Takes K SGD steps in one `lax.scan`.

        Args:
          state: training state.
          batches: a batch whose leaves have two leading axes [K, B, ...].

        Returns:
          The state after K steps; metrics are means over the K steps, priorities are [K, B].
        """
        # Two steps per round of the loop: XLA copies the state between rounds, a fifth of a small network's step.
        state, aux = jax.lax.scan(self.update, state, batches, unroll=2)
        metrics = jax.tree.map(lambda values: values.mean(axis=0), aux.metrics)
        return state, aux._replace(metrics=metrics)

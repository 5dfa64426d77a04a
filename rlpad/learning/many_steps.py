"""Several SGD steps in one call."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlpad.learning.core import Aux, Batch, LearnerCore, State


class ManySteps:
    """Takes K SGD steps per call: as one compiled loop, or as K compiled calls where XLA's loops are slow.

    On CPUs XLA runs a convolution inside of a loop ten times slower than outside of one (the Nature CNN on batches of
    32: 1.5 s and 0.14 s per step). Small networks gain from the loop, which saves K - 1 calls.
    """

    def __init__(self, learner_core: LearnerCore, platform: str):
        """Compiles nothing yet.

        Args:
          learner_core: the agent's pure functions.
          platform: JAX's name of the platform that it runs on, such as `cpu`.
        """
        self._core = learner_core
        self._platform = platform
        self._loop = jax.jit(learner_core.update_many, donate_argnums=0)
        self._single = jax.jit(learner_core.update, donate_argnums=0)
        self._in_loop: bool | None = None

    def __call__(self, state: State, batches: Batch) -> tuple[State, Aux]:
        """Takes K steps on batches [K, B, ...]; see `LearnerCore.update_many`. The state is donated."""
        if self._in_loop is None:
            self._in_loop = self._platform != "cpu" or not self._has_convolution(state, batches)
        if self._in_loop:
            return self._loop(state, batches)
        steps = []
        for index in range(len(batches.probabilities)):
            state, aux = self._single(state, jax.tree.map(lambda leaf, i=index: leaf[i], batches))
            steps.append(aux)
        metrics = jax.tree.map(lambda *values: jnp.mean(jnp.stack(values)), *[aux.metrics for aux in steps])
        priorities = None if steps[0].priorities is None else jnp.stack([aux.priorities for aux in steps])
        return state, Aux(metrics, priorities)

    def _has_convolution(self, state: State, batches: Batch) -> bool:
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        return "conv_general_dilated" in str(jax.make_jaxpr(self._core.update)(state, first))

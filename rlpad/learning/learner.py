"""The generic learner: runs any `LearnerCore` on samples from replay."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rlpad import core
from rlpad.errors import nearest
from rlpad.learning.core import Batch, LearnerCore, State
from rlpad.learning.many_steps import ManySteps
from rlpad.types import NestedArray, Variables


class SampleSource(Protocol):
    """What the learner needs of a replay sampler; `rlpad.replay.Sampler` fulfils it."""

    def ready(self) -> bool: ...

    def wait_ready(self, timeout: float) -> bool: ...

    def __next__(self) -> Any: ...

    def close(self) -> None: ...


class PrioritySink(Protocol):
    """Where new priorities go; `rlpad.replay.ReplayClient` fulfils it."""

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> None: ...


class ReplayLearner(core.Learner):
    """Takes SGD steps on batches from replay and serves the resulting variables.

    One `step` takes `sgd_steps_per_step` SGD steps in one call of the device. On several devices the batch axis is
    sharded over all of them and the state is replicated (`jit` with shardings inserts the allreduce).

    Metrics are fetched from the device only when they are asked for, and priorities one step late, so that
    the host prepares the next batch while the device works on this one.
    """

    def __init__(
        self,
        learner_core: LearnerCore,
        samples: SampleSource,
        *,
        key: jax.Array,
        batch_size: int,
        sgd_steps_per_step: int = 1,
        priority_sink: PrioritySink | None = None,
        table: str = "replay",
        devices: Sequence[jax.Device] | None = None,
    ):
        """Builds the learner and its initial state.

        Args:
          learner_core: the agent's pure functions.
          samples: yields `ReplaySample`s of `batch_size * sgd_steps_per_step` items.
          key: JAX PRNG key for the initial state.
          batch_size: items per SGD step.
          sgd_steps_per_step: SGD steps fused into one `step`.
          priority_sink: takes the new priorities; None where replay isn't prioritised.
          table: the table that priorities belong to.
          devices: devices to train on; all local ones by default.

        Raises:
          ValueError: the batch size can't be split evenly over the devices.
        """
        self._core = learner_core
        self._samples = samples
        self._batch_size = batch_size
        self._sgd_steps = sgd_steps_per_step
        self._priority_sink = priority_sink
        self._table = table
        devices = list(devices if devices is not None else jax.local_devices())
        if batch_size % len(devices):
            raise ValueError(
                f"batch_size {batch_size} can't be split over {len(devices)} devices; "
                f"expected a multiple of {len(devices)}"
            )
        mesh = jax.sharding.Mesh(np.asarray(devices), ("data",))
        self._replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._batch_sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data"))
        self._update = ManySteps(learner_core, devices[0].platform)
        self._copy_variables = jax.jit(lambda state: jax.tree.map(jnp.copy, dict(learner_core.variables(state))))
        # The donated state is invalid while an update is being dispatched: whoever reads it holds this lock.
        self._state_lock = threading.Lock()
        # Every leaf gets a buffer of its own, as a donated state must not alias itself.
        self._state: State = jax.tree.map(jnp.copy, jax.device_put(learner_core.init(key), self._replicated))
        self._learner_steps = 0
        self._published: tuple[int, Mapping[str, NestedArray]] | None = None
        self._publish_lock = threading.Lock()
        self._metrics: Mapping[str, jax.Array] = {}
        self._late: tuple[np.ndarray, jax.Array] | None = None
        self._seconds_waiting = 0.0
        self._seconds_total_start = time.monotonic()

    @property
    def learner_steps(self) -> int:
        """SGD steps taken since the initial state."""
        return self._learner_steps

    def step(self) -> bool:
        """Takes `sgd_steps_per_step` SGD steps if a batch is there; returns whether it was."""
        if not self._samples.ready():
            return False
        sample = next(self._samples)
        batches = self._to_batches(sample)
        with self._state_lock:
            self._state, aux = self._update(self._state, batches)
            self._learner_steps += self._sgd_steps
        self._metrics = aux.metrics
        self._send_priorities()
        if self._priority_sink is not None and aux.priorities is not None:
            self._late = (sample.info.keys, aux.priorities)
        return True

    def idle(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for a batch."""
        self._send_priorities()
        start = time.monotonic()
        self._samples.wait_ready(timeout)
        self._seconds_waiting += time.monotonic() - start

    def _to_batches(self, sample: Any) -> Batch:
        shape = (self._sgd_steps, self._batch_size)
        batch = Batch(
            data=sample.data,
            probabilities=np.asarray(sample.info.probabilities, np.float32),
            table_size=np.asarray(sample.info.table_size, np.float32),
        )
        batch = jax.tree.map(lambda leaf: np.reshape(leaf, shape + leaf.shape[1:]), batch)
        if len(self._batch_sharding.device_set) == 1:
            return batch  # the compiled call moves it, more quickly than a device_put per leaf
        return jax.device_put(batch, self._batch_sharding)

    def _send_priorities(self) -> None:
        if self._late is None or self._priority_sink is None:
            return
        keys, priorities = self._late
        self._late = None
        values = np.asarray(priorities, np.float64).reshape(-1)
        if not np.all(np.isfinite(values)):
            raise FloatingPointError(
                f"the loss gave priorities that are not finite after {self._learner_steps} learner steps; "
                "a lower learning rate or gradient clipping usually mends this"
            )
        self._priority_sink.update_priorities(self._table, keys, values)

    def get_variables(self, names: Sequence[str], have_version: int = -1) -> Variables | None:
        """Returns host copies of the named variables; see `core.VariableSource`.

        One host copy is made per version, however many ask for it. Safe from any thread.
        """
        with self._publish_lock:
            if have_version == self._learner_steps:
                return None
            if self._published is None or self._published[0] != self._learner_steps:
                with self._state_lock:
                    version, copies = self._learner_steps, self._copy_variables(self._state)
                self._published = (version, jax.tree.map(np.asarray, copies))
            version, variables = self._published
        for name in names:
            if name not in variables:
                known = ", ".join(sorted(variables))
                raise KeyError(f"no variable {name!r}; there are: {known}{nearest(name, variables)}")
        return Variables(version, [variables[name] for name in names])

    def metrics(self) -> dict[str, float]:
        """Returns the newest step's metrics as Python floats; waits for the device."""
        values = {name: float(value) for name, value in jax.device_get(dict(self._metrics)).items()}
        elapsed = max(time.monotonic() - self._seconds_total_start, 1e-9)
        return {**values, "data_wait_fraction": self._seconds_waiting / elapsed}

    def save(self) -> NestedArray:
        """Returns the training state as NumPy arrays, with the step count."""
        with self._state_lock:
            copies = jax.tree.map(jnp.copy, self._state)
            steps = self._learner_steps
        return {"state": jax.tree.map(np.asarray, copies), "learner_steps": steps}

    def restore(self, state: NestedArray) -> None:
        """Puts back a state that `save` returned."""
        with self._state_lock:
            restored = jax.device_put(state["state"], self._replicated)
            self._state = jax.tree.map(jnp.copy, restored)
            self._learner_steps = int(state["learner_steps"])

    def waiting_on(self) -> str:
        """Says that the learner waits for a batch; the replay's own line tells why there is none."""
        return f"a batch of {self._batch_size * self._sgd_steps} items"

    def close(self) -> None:
        """Sends the last priorities and stops sampling."""
        self._send_priorities()
        self._samples.close()

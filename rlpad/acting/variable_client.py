"""Keeps an actor's copy of the learner's variables fresh, off the hot path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import jax

from rlpad.acting.device import put_on_device
from rlpad.types import NestedArray, Variables


class VariableClient:
    """Pulls named variables from a variable source and puts them on a device.

    A pull is asked for every `update_period` calls of `update` and arrives in the background, one at a time;
    a source that is called directly (the `inline` and `threads` launchers) may answer at once. A pull that
    failed is raised by the next `update`: an actor never goes on unaware with stale parameters.
    """

    def __init__(
        self,
        source: Any,
        names: Sequence[str],
        *,
        update_period: int = 1,
        device: jax.Device | None = None,
        timeout: float = 600.0,
    ):
        """Sets up the client without pulling anything yet.

        Args:
          source: a `core.VariableSource`, or a client of one (with `.futures`).
          names: variables to pull.
          update_period: calls of `update` between two pulls.
          device: where the variables are put; JAX's default device if None.
          timeout: seconds that a pull may take before it counts as failed; the first one waits for the
            learner to be built.

        Raises:
          ValueError: the update period is below 1.
        """
        if update_period < 1:
            raise ValueError(f"update_period must be at least 1, got {update_period}")
        self._source = source
        self._names = tuple(names)
        self._period = update_period
        self._device = device
        self._timeout = timeout
        self._calls = 0
        self._pending: Future[Variables | None] | None = None
        self._version = -1
        self._params: NestedArray = None
        self._lag = 0
        self._arrived = time.monotonic()

    @property
    def params(self) -> NestedArray:
        """The newest variables: the nest itself for one name, else a list in the order of the names."""
        if self._version < 0:
            self.update(wait=True)
        return self._params

    @property
    def version(self) -> int:
        """Learner steps of the newest variables; -1 before the first pull."""
        return self._version

    def staleness(self) -> dict[str, float]:
        """Returns how old the variables are.

        `policy_lag`: learner steps between the newest variables and those they replaced, which is how far
        behind the actor had fallen. `policy_age_seconds`: since the source last confirmed or renewed them.
        """
        return {"policy_lag": self._lag, "policy_age_seconds": time.monotonic() - self._arrived}

    def update(self, wait: bool = False) -> None:
        """Takes in a pull that has arrived, and asks for the next one when it's due.

        Args:
          wait: ask now and block until the answer is there.

        Raises:
          Exception: whatever the pull raised (`PeerGone` when the learner is gone, say).
        """
        self._calls += 1
        if self._pending is not None and (wait or self._pending.done()):
            self._take(self._pending.result(self._timeout))
        if wait or (self._pending is None and self._calls >= self._period):
            self._ask()
            assert self._pending is not None
            if wait or self._pending.done():
                self._take(self._pending.result(self._timeout))

    def _ask(self) -> None:
        self._calls = 0
        futures = getattr(self._source, "futures", None)
        if futures is not None:
            self._pending = futures.get_variables(self._names, self._version, timeout=self._timeout)
            return
        future: Future[Variables | None] = Future()
        future.set_result(self._source.get_variables(self._names, self._version))
        self._pending = future

    def _take(self, variables: Variables | None) -> None:
        self._pending = None
        self._arrived = time.monotonic()
        if variables is None:
            return
        self._lag = variables.version - self._version if self._version >= 0 else 0
        self._version = variables.version
        values = put_on_device(list(variables.values), self._device)
        self._params = values[0] if len(self._names) == 1 else values

"""Who decides how many environment steps an actor may take."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """Steps that an actor was granted.

    Attributes:
      granted: steps it may take; 0 while other actors hold the last ones.
      actor_steps: steps that all actors together have taken and reported.
      done: whether the goal is reached, so that nobody will be granted any more.
    """

    granted: int
    actor_steps: int
    done: bool


class Steps(abc.ABC):
    """A supply of environment steps."""

    #: True once no more steps will be given.
    finished: bool = False

    @abc.abstractmethod
    def take(self, count: int) -> int:
        """Returns how many of `count` steps may be taken now; the caller takes exactly so many."""

    @property
    @abc.abstractmethod
    def actor_steps(self) -> int:
        """Steps that all actors together have taken, as far as it is known here."""


class UnlimitedSteps(Steps):
    """As many steps as one wants; counts them."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, count: int) -> int:
        """Grants everything."""
        self._taken += count
        return count

    @property
    def actor_steps(self) -> int:
        """Steps taken."""
        return self._taken


class LeasedSteps(Steps):
    """Steps that a coordinator hands out in chunks, so that all actors together take exactly their goal."""

    def __init__(self, coordinator: Any, worker: str, chunk: int):
        """Takes no lease yet.

        Args:
          coordinator: has `lease(worker, used, want) -> Lease`; an object or an RPC client of one.
          worker: name of the node that acts.
          chunk: steps to ask for at a time.

        Raises:
          ValueError: the chunk is below 1.
        """
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self._coordinator = coordinator
        self._worker = worker
        self._chunk = chunk
        self._left = 0
        self._used = 0
        self._total = 0

    def take(self, count: int) -> int:
        """Takes steps from the lease, and renews the lease when what is left of it isn't enough."""
        # Not only when it's empty: batches would be cut wherever the chunk is no multiple of their size,
        # always at the cost of the same environments. What was left goes back with the renewal.
        if self._left < count and not self.finished:
            lease = self._coordinator.lease(self._worker, self._used, max(self._chunk, count))
            self._used, self._left, self._total = 0, lease.granted, lease.actor_steps
            self.finished = lease.done
        taken = min(count, self._left)
        self._left -= taken
        self._used += taken
        return taken

    @property
    def actor_steps(self) -> int:
        """Steps of all actors at the last renewal, and one's own since."""
        return self._total + self._used

"""A node that has a process, as the supervisor knows it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from rlpad.launch.channel import Channel
from rlpad.launch.foreground import Foreground
from rlpad.launch.messages import Spawn
from rlpad.launch.policies import FailurePolicy


@dataclasses.dataclass
class SupervisedNode:
    """A node that has a process, as the supervisor knows it.

    Attributes:
      foreground: what runs it in the launcher's terminal, if it's debugged there.
      leaves: the nodes that run and serve there, by name, with their addresses as soon as they're known: itself, or
        those of a colocation.
    """

    name: str
    spawn: Callable[[int], Spawn]
    policy: FailurePolicy
    leaves: dict[str, str | None]
    foreground: Foreground | None = None
    state: str = "starting"
    epoch: int = 0
    pid: int | None = None
    control: Channel | None = None
    works: bool | None = None
    heard: float = 0.0
    error: BaseException | None = None
    failed_at: float | None = None
    restart_at: float = 0.0
    doubtful_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def due(self) -> bool:
        """Whether it's time to start it."""
        if self.state == "starting":
            return self.epoch == 0
        return self.state == "restarting" and time.monotonic() >= self.restart_at

    @property
    def settled(self) -> bool:
        """Whether no more work is to be expected of it."""
        if self.state in ("finished", "stopped", "ignored"):
            return True
        return self.state == "running" and self.works is False

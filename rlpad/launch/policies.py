"""What happens when a node dies."""

from __future__ import annotations

import dataclasses

from rlpad.launch.errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Stop:
    """A node that dies ends the program."""


@dataclasses.dataclass(frozen=True)
class Restart:
    """A node that dies is started again, under the same name with the next epoch."""

    max_restarts: int = 3
    """Times that each node may be started again; one death more ends the program."""
    backoff_s: float = 0.5
    """Seconds before the first restart; doubles with each, up to 30."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.backoff_s < 0:
            raise LaunchError(f"max_restarts and backoff_s must be at least 0, got {self}")

    def delay(self, restarts: int) -> float:
        """Seconds to wait before restart number `restarts`, counted from 1."""
        return min(30.0, self.backoff_s * 2 ** (restarts - 1))

    def used_up(self) -> str:
        """Says that there are no more restarts."""
        return f"max_restarts (={self.max_restarts}) is reached."


@dataclasses.dataclass(frozen=True)
class Ignore:
    """A node that dies is gone; the program goes on."""


FailurePolicy = Stop | Restart | Ignore

"""What happens when a node dies, and what it runs on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

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


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a node runs on, where it has a process of its own.

    Attributes:
      threads: CPU threads of its compute libraries; None leaves it to them.
      jax_platform: platform for JAX, such as `cpu`; None leaves it to JAX.
      env: further environment variables; those that a library reads when it's loaded come too late for what
        the fork server has preloaded.
    """

    threads: int | None = None
    jax_platform: str | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise LaunchError(f"threads must be at least 1, got {self.threads}")

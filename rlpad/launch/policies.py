"""What happens when a node dies.

A node dies if it raises, is killed, is stuck (see `heartbeat_timeout_s` of `launch`), or ends its process before its
work is done: `sys.exit()` and `os._exit(0)` are deaths as well. A node whose work is done has finished, under every
policy: it isn't started again, it counts as finished also when its process then exits with code 0, and when all nodes
have finished the program is completed. What ends while the program stops hasn't died.

One that has finished but still serves can die too: if it's killed, say. Started again, it does its work again.

Policies are for nodes in processes of their own. Under `inline` and `threads` each node that fails ends the program.
"""

from __future__ import annotations

import dataclasses

from rlpad.launch.errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Stop:
    """A node that dies ends the program, which has failed then; one that finishes doesn't."""


@dataclasses.dataclass(frozen=True)
class Restart:
    """A node that dies is started again, under the same name with the next epoch; one that finishes isn't.

    Calls that it hadn't answered raise `PeerGone`, unless they ask for a `retry`; later ones go to its successor.
    """

    max_restarts: int = 3
    """Times that each node may be started again; one death more ends the program."""
    backoff_s: float = 0.5
    """Seconds before the first restart; doubles with each, up to 30."""

    def __post_init__(self) -> None:
        if not (self.max_restarts >= 0 and self.backoff_s >= 0):  # NaN is neither
            raise LaunchError(f"max_restarts and backoff_s must be at least 0, got {self}")

    def delay(self, restarts: int) -> float:
        """Seconds to wait before restart number `restarts`, counted from 1."""
        # Bounded, as a float can't hold 2 to the power of a thousand restarts.
        return min(30.0, self.backoff_s * 2.0 ** min(restarts - 1, 64))

    def used_up(self) -> str:
        """Says that there are no more restarts."""
        return f"max_restarts (={self.max_restarts}) is reached."


@dataclasses.dataclass(frozen=True)
class Ignore:
    """A node that dies is gone; the program goes on, and ends as if the node had finished.

    A program whose nodes have all died has failed.
    """


FailurePolicy = Stop | Restart | Ignore

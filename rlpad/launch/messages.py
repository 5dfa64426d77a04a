"""What supervisor, fork server and nodes say to each other; pickled over private sockets."""

from __future__ import annotations

import dataclasses

from rlpad.launch.resources import Grant


@dataclasses.dataclass(frozen=True)
class ServerSetup:
    """First message to the fork server."""

    sys_path: list[str]
    preload: tuple[str, ...]
    folder: str
    title: str


@dataclasses.dataclass(frozen=True)
class ServerUp:
    """The fork server is ready; `problem` says why it starts nodes slowly, if it does."""

    pid: int
    problem: str


@dataclasses.dataclass(frozen=True)
class Spawn:
    """Start a node.

    Attributes:
      name: the node's name.
      epoch: 1, and one more for each restart.
      title: what it's called in `ps`.
      payload: the node, pickled with cloudpickle.
      folder: private folder for sockets.
      control: path of the supervisor's socket.
      log: path of the log file, or None to share the launcher's output.
      grant: what it gets of the machine.
      debugger: what it's run under in the foreground, or None for a node like others.
    """

    name: str
    epoch: int
    title: str
    payload: bytes
    folder: str
    control: str
    log: str | None
    grant: Grant
    debugger: str | None = None


@dataclasses.dataclass(frozen=True)
class Spawned:
    """A node's process was started."""

    name: str
    epoch: int
    pid: int


@dataclasses.dataclass(frozen=True)
class Kill:
    """Kill a node's process group."""

    pid: int


@dataclasses.dataclass(frozen=True)
class Exited:
    """A node's process has ended; the code is negative for signals."""

    pid: int
    code: int


@dataclasses.dataclass(frozen=True)
class Hello:
    """First message of a node."""

    name: str
    epoch: int


@dataclasses.dataclass(frozen=True)
class Ready:
    """A node is built: where it can be called (if it can), and whether it has work to do."""

    address: str | None
    works: bool


@dataclasses.dataclass(frozen=True)
class InnerReady:
    """A node of a colocation is built: its name, and where it can be called (if it can)."""

    name: str
    address: str | None


@dataclasses.dataclass(frozen=True)
class Heartbeat:
    """A node lives."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A node's work is done."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """A node raised; the exception is in the form of `rpc.codec.dump_exception`."""

    error: bytes


@dataclasses.dataclass(frozen=True)
class AskStop:
    """A node asks for the program to stop."""

    reason: str
    status: str


@dataclasses.dataclass(frozen=True)
class Resolve:
    """A node asks where another one is."""

    request: int
    name: str


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The answer: an address, or None with `gone` for one that won't come (back), without for one that may."""

    request: int
    address: str | None
    gone: str = ""


@dataclasses.dataclass(frozen=True)
class StopNode:
    """Stop, and exit."""

"""Where code of a node finds its node and its program."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlpad.launch.errors import LaunchError

if TYPE_CHECKING:
    from rlpad.launch.nodes.base import Built, Node

#: What is called when a program stops: without arguments, or with those of a signal's handler.
StopHandler = Callable[..., object]
#: Seconds for which a call waits until a node is built, or started again.
BUILD_TIMEOUT_SECONDS = 600.0
#: Seconds that handlers of a stop get where nobody ends those that take too long.
STOP_HANDLER_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class NodeInfo:
    """What a node knows of itself.

    Attributes:
      name: `group/index`.
      group: label of its group.
      index: its place in the group.
      size: nodes in the group.
      run_dir: the run directory, or None.
      seed: a seed of its own, from the program's seed and its name.
      epoch: 1, and one more for each restart.
    """

    name: str
    group: str
    index: int
    size: int
    run_dir: str | None
    seed: int
    epoch: int = 1


class Context(abc.ABC):
    """The program as one of its nodes sees it.

    Attributes:
      info: what the node knows of itself.
      stop_event: set when the program stops.
      several_nodes: whether it stands for a program with several nodes in this process, and so for none
        of them in particular.
      single_threaded: whether one thread runs all nodes, so that no two calls come at the same time.
      survives_fork: whether it's the context of a forked child, too: one that a node has forked belongs to the node.
    """

    several_nodes = False
    single_threaded = False
    survives_fork = False

    def __init__(self, info: NodeInfo, stop_event: threading.Event):
        self.info = info
        self.stop_event = stop_event
        self._handlers: list[tuple[StopHandler, threading.Thread]] = []

    @property
    def has_stop_handlers(self) -> bool:
        """Whether a stop of the program is waited for by `register_stop_handler`."""
        return bool(self._handlers)

    def add_stop_handler(self, handler: StopHandler) -> None:
        """Has `handler` called in a thread of its own when the program stops."""
        context = contextvars.copy_context()

        def wait() -> None:
            self.stop_event.wait()
            if entry in self._handlers:
                context.run(call)

        call = _without_arguments(handler)
        thread = threading.Thread(target=wait, name="rlpad-stop-handler", daemon=True)
        entry = (handler, thread)
        self._handlers.append(entry)
        thread.start()

    def remove_stop_handler(self, handler: StopHandler) -> None:
        """Takes back `add_stop_handler`.

        Raises:
          LaunchError: it isn't registered.
        """
        left = [entry for entry in self._handlers if entry[0] != handler]
        if len(left) == len(self._handlers):
            raise LaunchError(f"{handler!r} is no stop handler of {self.info.name}")
        self._handlers = left

    def join_stop_handlers(self, timeout: float | None = None) -> None:
        """Waits for the handlers of a program that has stopped, at most `timeout` seconds altogether."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for _, thread in self._handlers:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    @abc.abstractmethod
    def connect(self, name: str, *, call_timeout: float | None = None) -> Any:
        """Returns a client of the node called `name`.

        Args:
          name: the node.
          call_timeout: seconds after which its calls end with `CallTimeout` if they don't say otherwise.
        """

    @abc.abstractmethod
    def address(self, name: str) -> str:
        """Returns the address of a node that brings its own transport, waiting until it's up."""

    @abc.abstractmethod
    def scratch(self) -> str:
        """Returns a private folder that is removed when the program ends, however it ends."""

    @abc.abstractmethod
    def stop(self, reason: str, status: str) -> None:
        """Asks the program to stop."""

    def host(self, nodes: Sequence[Node], *, first: bool) -> Built:
        """Builds nodes of a colocation, each in a thread of its own, where it will run.

        Args:
          nodes: the nodes inside of the colocation.
          first: whether all stop when one has completed.
        """
        raise LaunchError("this launcher runs the nodes of colocations one by one")


_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("rlpad_context", default=None)
_live: list[Context] = []
_live_lock = threading.Lock()


@contextlib.contextmanager
def entered(context: Context) -> Iterator[None]:
    """Makes `context` the current one, for this thread."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def add_live(context: Context) -> None:
    """Makes a program known to threads that no node started itself; `context` stands for it."""
    with _live_lock:
        _live.append(context)


def remove_live(context: Context) -> None:
    """Forgets what `add_live` made known."""
    with _live_lock, contextlib.suppress(ValueError):
        _live.remove(context)


def _forget_in_child() -> None:
    # Another thread of the parent may have held the lock; and a program that the parent launched doesn't run here.
    global _live_lock
    _live_lock = threading.Lock()
    _live[:] = [context for context in _live if context.survives_fork]


os.register_at_fork(after_in_child=_forget_in_child)


def current() -> Context:
    """Returns the context of this thread's node, or that of the only program that runs here.

    Raises:
      LaunchError: no program runs here, or several do and this thread belongs to none of them.
    """
    context = _current.get()
    if context is not None:
        return context
    with _live_lock:
        if len(_live) == 1:
            return _live[0]
        number = len(_live)
    raise LaunchError(
        "this is not called from a node: no program runs here"
        if not number
        else f"this thread belongs to no node, and {number} programs run here; "
        "use the Run that launch returned, or register what you need in the node's own thread"
    )


def single_threaded() -> bool:
    """Whether this thread's node shares its thread with all others; outside of nodes it doesn't."""
    context = _current.get()
    return context is not None and context.single_threaded


def node_info() -> NodeInfo:
    """Returns name, group, index, group size, run directory and seed of the current node.

    Raises:
      LaunchError: not called from a node, or from a thread that can't be told to belong to one.
    """
    context = current()
    if context.several_nodes:
        raise LaunchError("this thread belongs to no node; call node_info in the thread that the node runs in")
    return context.info


def stop(reason: str = "stopped by the program", status: str = "completed") -> None:
    """Stops the program that this thread belongs to; returns at once and never kills the caller.

    Args:
      reason: one line for people.
      status: `completed`, `interrupted` or `failed`.

    Raises:
      LaunchError: not called from a node, or the status is unknown.
    """
    check_status(status)
    current().stop(reason, status)


def check_status(status: str) -> None:
    """Raises `LaunchError` for an unknown status."""
    if status not in ("completed", "interrupted", "failed"):
        raise LaunchError(f"status must be completed, interrupted or failed, got {status!r}")


def stop_event() -> threading.Event:
    """Returns the event that is set when the program stops.

    Raises:
      LaunchError: not called from a node.
    """
    return current().stop_event


def wait_for_stop(timeout: float | None = None) -> bool:
    """Waits until the program stops, or `timeout` seconds; returns whether it stops."""
    return stop_event().wait(timeout)


def register_stop_handler(handler: StopHandler) -> None:
    """Has `handler` called in a thread of its own, once, when the program stops.

    Its node waits for it; one that takes longer than the notice counts as a node that ignores the stop. Under `inline`
    it has five seconds.

    One that needs two arguments, as handlers of signals do, gets SIGTERM and None.

    Raises:
      LaunchError: not called from a node.
    """
    current().add_stop_handler(handler)


def unregister_stop_handler(handler: StopHandler) -> None:
    """Takes back `register_stop_handler`; called in the node that registered it.

    Raises:
      LaunchError: not called from a node, or it isn't registered there.
    """
    current().remove_stop_handler(handler)


def _without_arguments(handler: StopHandler) -> Callable[[], object]:
    try:
        inspect.signature(handler).bind()
    except TypeError:
        return functools.partial(handler, signal.SIGTERM, None)
    except ValueError:  # a builtin whose signature can't be read
        pass
    return handler


def wait_event(event: threading.Event, stop: threading.Event, timeout: float) -> bool:
    """Waits for `event`, giving up when `stop` is set or the time is over; returns whether it came."""
    deadline = time.monotonic() + timeout
    while not event.wait(0.05):
        if stop.is_set() or time.monotonic() >= deadline:
            return event.is_set()
    return True

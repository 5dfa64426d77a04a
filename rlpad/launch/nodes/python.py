"""Nodes that run a function, or an object of a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.base import Built, CallNode
from rlpad.launch.worker import CallOnce, closer, is_worker

if TYPE_CHECKING:
    from rlpad.launch.context import Context


class _NoHandle(Handle):
    """Refuses to become a client."""

    refusal = "can't be called by other nodes; make it a CourierNode"

    def dereference(self, context: Context | None = None) -> NoReturn:
        """Raises `LaunchError`: nobody can call such a node."""
        raise LaunchError(f"{self.name} {self.refusal}")


class PyNode(CallNode):
    """Calls a function once: `PyNode(function, *args, **kwargs)`."""

    handle_class: type[Handle] = _NoHandle

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
        """Describes the call.

        Raises:
          LaunchError: the function can't be called with these arguments.
        """
        super().__init__(function, args, kwargs)

    def build(self, context: Context) -> Built:
        """Leaves the call itself to the first step."""
        return Built(worker=CallOnce(lambda: self.call(context)))


class PyClassNode(CallNode):
    """Makes an object and runs it: `PyClassNode(Class, *args, **kwargs)`.

    A worker is stepped; of another object `run()` is called, if it has one; after `disable_run()` neither.
    """

    handle_class: type[Handle] = _NoHandle

    def __init__(self, constructor: Callable[..., Any], *args: Any, **kwargs: Any):
        """Describes the object.

        Raises:
          LaunchError: the constructor can't be called with these arguments.
        """
        super().__init__(constructor, args, kwargs)
        self._runs = True

    def disable_run(self) -> None:
        """Has the object only made, not run: for tests that step it themselves."""
        self._runs = False

    def enable_run(self) -> None:
        """Takes back `disable_run`."""
        self._runs = True

    def build(self, context: Context) -> Built:
        """Makes the object."""
        return self._built(self.call(context))

    def _built(self, made: Any) -> Built:
        """Finds out how to run an object: as a worker, by its `run`, or not at all."""
        if not self._runs:
            return Built(close=closer(made))
        if is_worker(made):
            return Built(worker=made, close=made.close)
        run = getattr(type(made), "run", None)
        worker = CallOnce(made.run) if callable(run) else None
        return Built(worker=worker, close=closer(made))

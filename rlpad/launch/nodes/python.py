"""Nodes that run a function, or an object of a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.base import Built, Node
from rlpad.launch.worker import CallOnce, closer, is_worker

if TYPE_CHECKING:
    from rlpad.launch.context import Context


class _NoHandle(Handle):
    """Refuses to become a client."""

    refusal = "can't be called by other nodes; make it a CourierNode"

    def dereference(self, context: Context) -> NoReturn:
        """Raises `LaunchError`: nobody can call such a node."""
        raise LaunchError(f"{self.name} {self.refusal}")


class PyNode(Node):
    """Calls a function once: `PyNode(function, *args, **kwargs)`."""

    handle_class = _NoHandle

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
        """Describes the call.

        Raises:
          LaunchError: the function can't be called with these arguments.
        """
        super().__init__(function, args, kwargs)

    def build(self, context: Context) -> Built:
        """Leaves the call itself to the first step."""
        return Built(worker=CallOnce(lambda: self.call(context)))


class ObjectNode(Node):
    """What nodes have in common that make an object and run it, if it can be run."""

    _runs = True

    def disable_run(self) -> None:
        """Has the object made but not run: for tests that call its methods themselves."""
        self._runs = False

    def enable_run(self) -> None:
        """Takes `disable_run` back."""
        self._runs = True

    def build(self, context: Context) -> Built:
        """Makes the object."""
        return built_object(self.call(context), runs=self._runs)


class PyClassNode(ObjectNode):
    """Makes an object and runs it: `PyClassNode(Class, *args, **kwargs)`.

    A worker is stepped; of another object `run()` is called, if it has one.
    """

    handle_class = _NoHandle

    def __init__(self, constructor: Callable[..., Any], *args: Any, **kwargs: Any):
        """Describes the object.

        Raises:
          LaunchError: the constructor can't be called with these arguments.
        """
        super().__init__(constructor, args, kwargs)


def built_object(made: Any, *, runs: bool = True) -> Built:
    """Finds out how to run an object, if it's to run: as a worker, by its `run`, or not at all."""
    if is_worker(made):
        return Built(worker=made if runs else None, close=made.close)
    run = getattr(type(made), "run", None)
    worker = CallOnce(made.run) if runs and callable(run) else None
    return Built(worker=worker, close=closer(made))

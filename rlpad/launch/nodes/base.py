"""What every node is: a description until it's launched, then something that runs, serves, or both."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Deferred, Handle, check_hidden, find_handles, map_handles, map_leaves

if TYPE_CHECKING:
    from rlpad.launch.context import Context
    from rlpad.launch.policies import FailurePolicy, Resources


@dataclasses.dataclass
class Built:
    """A node come to life.

    Attributes:
      service: object whose methods other nodes call, or None.
      address: where it can be reached by itself, for services that bring their own transport.
      worker: what is stepped until it has finished, or None; see `rlpad.launch.worker`.
      close: called once at the end, after the last step.
      thread_pool_size: calls of the service that may run at once.
    """

    service: Any = None
    address: str | None = None
    worker: Any = None
    close: Callable[[], object] = lambda: None
    thread_pool_size: int = 16


class Node(abc.ABC):
    """One node of a program.

    Attributes:
      name: `group/index`, given when it's added to a program.
      group: label of its group.
      index: its place in the group.
      resources: what it runs on.
      on_failure: what happens when it dies.
    """

    #: The class of the handles that refer to such a node.
    handle_class: type[Handle] = Handle
    #: Whether arguments that are missing at first may come later.
    arguments_may_follow = False

    name: str | None = None
    group: str
    index: int
    resources: Resources
    on_failure: FailurePolicy

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        if not callable(function):
            raise LaunchError(f"{type(self).__name__} needs something callable, got {function!r}")
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._check_signature(partial=self.arguments_may_follow)

    def _check_signature(self, *, partial: bool) -> None:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # some builtins have none that can be read
            return
        try:
            (signature.bind_partial if partial else signature.bind)(*self.args, **self.kwargs)
        except TypeError as error:
            raise LaunchError(f"{self!r}: {error}; expected {_name_of(self.function)}{signature}") from error

    def create_handle(self) -> Handle:
        """Returns a handle, to pass to other nodes."""
        return self.handle_class(self)

    @property
    def handles(self) -> list[Handle]:
        """The handles among this node's arguments."""
        plain = _strip_deferred((self.args, self.kwargs))
        return find_handles(plain)

    def check(self) -> None:
        """Checks that the function can be called, and that every handle among its arguments can be found.

        Raises:
          LaunchError: an argument is missing, or a handle is hidden; names the node and the argument.
        """
        self._check_signature(partial=False)
        plain_args, plain_kwargs = _strip_deferred((self.args, self.kwargs))
        check_hidden(self.function, f"{self.name}: {_name_of(self.function)}")
        for index, value in enumerate(plain_args):
            check_hidden(value, f"{self.name}: argument {index} of {_name_of(self.function)}")
        for name, value in plain_kwargs.items():
            check_hidden(value, f"{self.name}: argument {name!r} of {_name_of(self.function)}")

    def call(self, context: Context) -> Any:
        """Calls the node's function with handles replaced by clients and deferred arguments built."""
        unwrapped = _unwrap((self.args, self.kwargs), context)
        args, kwargs = _build_deferred(map_handles(unwrapped, lambda handle: handle.dereference(context)))
        return self.function(*args, **kwargs)

    @abc.abstractmethod
    def build(self, context: Context) -> Built:
        """Brings the node to life, in the thread or process that it runs in."""

    @property
    def title(self) -> str:
        """What it is, for people: the class or function that it calls."""
        return _name_of(self.function)

    def __repr__(self) -> str:
        return f"{self.name or type(self).__name__}({_name_of(self.function)})"


def _name_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"partial({_name_of(function.func)})"
    return getattr(function, "__qualname__", None) or repr(function)


class _Call:
    """A deferred call whose arguments have their clients already."""

    def __init__(self, deferred: Deferred, args: Any, kwargs: Any):
        self.constructor, self.args, self.kwargs = deferred.constructor, args, kwargs


def _map_deferred(value: Any, function: Callable[[Any], Any]) -> Any:
    return map_leaves(value, (Deferred, _Call), function)


def _strip_deferred(value: Any) -> Any:
    return _map_deferred(value, lambda d: [d.constructor, _strip_deferred(d.args), _strip_deferred(d.kwargs)])


def _unwrap(value: Any, context: Context) -> Any:
    def replace(deferred: Any) -> Any:
        inner = map_handles(
            _unwrap((deferred.args, deferred.kwargs), context), lambda handle: handle.dereference(context)
        )
        return _Call(deferred, *inner)

    return _map_deferred(value, replace)


def _build_deferred(value: Any) -> Any:
    return _map_deferred(
        value, lambda call: call.constructor(*_build_deferred(call.args), **_build_deferred(call.kwargs))
    )

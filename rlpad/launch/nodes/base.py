"""What every node is: a description until it's launched, then something that runs, serves, or both."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Deferred, Handle, check_hidden, find_handles, map_handles, map_leaves

if TYPE_CHECKING:
    from rlpad.launch.context import Context
    from rlpad.launch.policies import FailurePolicy
    from rlpad.launch.resources import Resources


@dataclasses.dataclass
class Built:
    """A node come to life.

    Attributes:
      service: object whose methods other nodes call, or None.
      address: where it can be reached by itself, for services that bring their own transport.
      worker: what is stepped until it has finished, or None; see `rlpad.launch.worker`.
      close: called once at the end, after the last step.
      thread_pool_size: calls of the service that may run at once.
      lingers: says whether it's still needed when its worker has finished, for more than service and address.
    """

    service: Any = None
    address: str | None = None
    worker: Any = None
    close: Callable[[], object] = lambda: None
    thread_pool_size: int = 16
    lingers: Callable[[], bool] = lambda: False


class Node(abc.ABC):
    """One node of a program.

    Attributes:
      name: `group/index`, given when it's added to a program; `group/index.inner` inside of a colocation.
      group: label of its group.
      index: its place in the group.
      resources: what it runs on.
      on_failure: what happens when it dies.
    """

    #: The class of the handles that refer to such a node.
    handle_class: type[Handle] = Handle

    name: str | None = None
    group: str
    index: int
    resources: Resources
    on_failure: FailurePolicy

    @property
    def inner(self) -> list[Node]:
        """The nodes of a colocation; of any other node none."""
        return []

    def walk(self) -> Iterator[Node]:
        """Yields this node and all inside of it."""
        yield self
        for node in self.inner:
            yield from node.walk()

    def processes(self) -> list[tuple[Node, list[Node]]]:
        """Returns the nodes that get a process each, where nodes do, with those that run in it."""
        return [(self, [self])]

    def leaves(self) -> list[Node]:
        """Returns the nodes, of this one and those inside, that hold no others: they run and serve."""
        return [node for node in self.walk() if not node.inner]

    def place(self, name: str, group: str, index: int, resources: Resources, on_failure: FailurePolicy) -> None:
        """Gives the node its place in a program.

        Raises:
          LaunchError: it, or a node inside of it, has one already, or would get two.
        """
        found: set[int] = set()
        for node in self.walk():
            if node.name is not None or id(node) in found:
                raise LaunchError(f"{node!r} is in a program already; make another node")
            found.add(id(node))
        self._place(name, group, index, resources, on_failure)

    def _place(self, name: str, group: str, index: int, resources: Resources, on_failure: FailurePolicy) -> None:
        self.name, self.group, self.index = name, group, index
        self.resources, self.on_failure = resources, on_failure
        for number, node in enumerate(self.inner):
            node._place(f"{name}.{number}", group, index, resources, on_failure)

    def create_handle(self) -> Handle:
        """Returns a handle, to pass to other nodes."""
        return self.handle_class(self)

    @property
    def title(self) -> str:
        """What it is, for people."""
        return type(self).__name__

    @property
    @abc.abstractmethod
    def handles(self) -> list[Handle]:
        """The handles that the node turns into clients, those of inner nodes left out."""

    @abc.abstractmethod
    def check(self) -> None:
        """Checks what can be checked before anything is built; inner nodes are checked by themselves.

        Raises:
          LaunchError: something is wrong; names the node.
        """

    @abc.abstractmethod
    def build(self, context: Context) -> Built:
        """Brings the node to life, in the thread or process that it runs in."""

    def __repr__(self) -> str:
        return self.name or type(self).__name__


class CallNode(Node):
    """A node that is described by a call of a function or class, made in the node."""

    #: Whether arguments that are missing at first may come later.
    arguments_may_follow = False

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
        args, kwargs = dereference((self.args, self.kwargs), context)
        return self.function(*args, **kwargs)

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


def dereference(value: Any, context: Context) -> Any:
    """Returns a nest with clients for handles, and with what `Deferred` builds; clients are made first."""
    unwrapped = _unwrap(value, context)
    return _build_deferred(map_handles(unwrapped, lambda handle: handle.dereference(context)))


class _Call:
    """A deferred call whose arguments have their clients already."""

    def __init__(self, deferred: Deferred, args: Any, kwargs: Any):
        self.constructor, self.made_at = deferred.constructor, deferred.made_at
        self.args, self.kwargs = args, kwargs

    def __call__(self) -> Any:
        args, kwargs = _build_deferred(self.args), _build_deferred(self.kwargs)
        try:
            return self.constructor(*args, **kwargs)
        except Exception as error:
            error.add_note(f"raised by {_name_of(self.constructor)}, of the Deferred made at {self.made_at}")
            raise


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
    return _map_deferred(value, lambda call: call())

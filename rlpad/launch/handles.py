"""Handles: how one node refers to another before either exists."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from rlpad.errors import nearest
from rlpad.launch import context as context_lib
from rlpad.launch.errors import LaunchError

if TYPE_CHECKING:
    from rlpad.launch.context import Context
    from rlpad.launch.nodes.base import Node


#: Options of Launchpad's clients that have no counterpart here.
_IDLE_CLIENT_OPTIONS = ("compress", "wait_for_ready", "chunk_tensors", "load_balancing_policy", "propagate_deadline")


class Handle:
    """Refers to a node by its name; becomes a client of it in the node that it's passed to.

    It can be made and passed on before its node is added to a program.
    """

    #: Why such a node can't be called by others, if so.
    refusal = ""

    def __init__(self, node: Node, client_options: Mapping[str, Any] | None = None):
        self._node: Node | None = node
        self._name = ""
        self._client_options = dict(client_options or {})

    def set_client_kwargs(self, **options: Any) -> None:
        """Sets options of the clients that this handle becomes.

        Args:
          **options: `call_timeout`: seconds (or a `timedelta`) after which a call ends with `CallTimeout` if it
            doesn't say otherwise; None or 0 for the default. What Launchpad's clients took besides is accepted and
            makes no difference.

        Raises:
          LaunchError: an option is unknown or wrong.
        """
        self._client_options = check_client_options(options)

    @property
    def name(self) -> str:
        """The node's name, `group/index`.

        Raises:
          LaunchError: the node isn't in a program yet.
        """
        if self._node is not None:
            if self._node.name is None:
                raise LaunchError(f"{self._node!r} isn't in a program: add it with program.add_node")
            return self._node.name
        return self._name

    @property
    def node(self) -> Node | None:
        """The node, in the process that built the program."""
        return self._node

    def dereference(self, context: Context | None = None) -> Any:
        """Returns a client of the node, for the node of `context` or for the one that this is called in.

        The launching process may call it, too, while one program runs there.

        Raises:
          LaunchError: this is called outside of a program.
        """
        return (context or context_lib.current()).connect(self.name, **self._client_options)

    def __reduce__(self) -> tuple[Callable[..., Handle], tuple[type[Handle], str, dict[str, Any]]]:
        return _named_handle, (type(self), self.name, self._client_options)

    def __repr__(self) -> str:
        named = self._name or (self._node.name if self._node is not None else None) or "a node in no program"
        return f"<{type(self).__name__} of {named}>"


def check_client_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of clients that make a difference.

    Raises:
      LaunchError: one is unknown or wrong.
    """
    known = ("call_timeout", *_IDLE_CLIENT_OPTIONS)
    for name in options:
        if name not in known:
            raise LaunchError(f"clients have no option {name!r}{nearest(name, known)}")
    timeout = options.get("call_timeout")
    if isinstance(timeout, datetime.timedelta):
        timeout = timeout.total_seconds()
    if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
        raise LaunchError(f"call_timeout must be a number of seconds, got {timeout!r}")
    return {"call_timeout": timeout} if timeout else {}


def _named_handle(kind: type[Handle], name: str, client_options: dict[str, Any]) -> Handle:
    handle = kind.__new__(kind)
    handle._node, handle._name, handle._client_options = None, name, client_options
    return handle


def map_handles(value: Any, function: Callable[[Handle], Any]) -> Any:
    """Replaces every handle in nested lists, tuples, dicts, named tuples and dataclasses.

    What holds no handle is returned itself, not copied.
    """
    return map_leaves(value, Handle, function)


def map_leaves(value: Any, kind: type | tuple[type, ...], function: Callable[[Any], Any]) -> Any:
    """Replaces all that is of `kind` in nested lists, tuples, dicts, named tuples and dataclasses.

    A nest in which nothing is replaced is returned itself, not copied.
    """
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        old = dict(value)
        new = {key: map_leaves(child, kind, function) for key, child in old.items()}
        return value if all(new[key] is old[key] for key in old) else _like_mapping(value, new)
    if isinstance(value, list | tuple):
        items = [map_leaves(child, kind, function) for child in value]
        if all(now is then for now, then in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = _fields(value)
        new_fields = {name: map_leaves(child, kind, function) for name, child in fields.items()}
        changed = {name: child for name, child in new_fields.items() if child is not fields[name]}
        if not changed:
            return value
        # Not made anew by its constructor, which needn't take all fields and may change them again.
        copied = copy.copy(value)
        for name, child in changed.items():
            object.__setattr__(copied, name, child)
        return copied
    return value


def _fields(value: Any) -> dict[str, Any]:
    # Fields that were never set have no value.
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}


def _like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    copied = copy.copy(value)  # keeps what else it has, such as a default factory
    copied.update(items)
    return copied


def find_handles(value: Any) -> list[Handle]:
    """Lists the handles that `map_handles` would replace."""
    found: list[Handle] = []

    def note(handle: Handle) -> Handle:
        found.append(handle)
        return handle

    map_handles(value, note)
    return found


def check_hidden(value: Any, where: str) -> None:
    """Looks for handles where they can't be replaced: closures, partials, sets, bound methods, attributes.

    Raises:
      LaunchError: there is one; names the argument and the place.
    """
    for path, handle in _hidden(value, where, set(), 0):
        raise LaunchError(
            f"{path} hides {handle!r}, where it can't be turned into a client; "
            "pass it as an argument, on its own or in a list, tuple, dict or dataclass"
        )


def _hidden(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Handle]]:
    if id(value) in seen or depth > 8 or isinstance(value, Handle | str | bytes | int | float | type(None)):
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        for key, child in dict(value).items():
            yield from _handle_or_deeper(key, f"a key of {path}", seen, depth)
            yield from _hidden(child, f"{path}[{key!r}]", seen, depth + 1)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _hidden(child, f"{path}[{index}]", seen, depth + 1)
    elif isinstance(value, set | frozenset):
        for child in value:
            yield from _handle_or_deeper(child, f"a set in {path}", seen, depth)
    elif isinstance(value, functools.partial):
        for name, child in [("function", value.func), *enumerate(value.args), *value.keywords.items()]:
            place = f"a functools.partial in {path} (argument {name})"
            yield from _handle_or_deeper(child, place, seen, depth)
    elif isinstance(value, types.MethodType):
        yield from _handle_or_deeper(value.__self__, f"the object of a bound method in {path}", seen, depth)
    elif isinstance(value, types.FunctionType):
        yield from _in_function(value, path, seen, depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, child in _fields(value).items():
            yield from _hidden(child, f"{path}.{name}", seen, depth + 1)
    elif not isinstance(value, type | types.ModuleType) and hasattr(value, "__dict__"):
        for name, child in list(vars(value).items()):
            place = f"attribute {name!r} of {type(value).__name__} in {path}"
            yield from _handle_or_deeper(child, place, seen, depth)


def _in_function(value: types.FunctionType, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Handle]]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            child = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        place = f"the closure of {value.__qualname__} in {path} ({name})"
        yield from _handle_or_deeper(child, place, seen, depth)
    for child in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
        yield from _handle_or_deeper(child, f"a default of {value.__qualname__} in {path}", seen, depth)


def _handle_or_deeper(child: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Handle]]:
    # Below something that can't be replaced, a plain nest doesn't help any more.
    handles = find_handles(child)
    for handle in handles:
        yield path, handle
    if not handles:
        yield from _hidden(child, path, seen, depth + 1)


class Deferred:
    """Builds an argument in the node instead of in the launching process: for what can't be pickled.

    `Deferred(make_env, seed)` is replaced by `make_env(seed)` when the node is built. Handles among its
    arguments are dereferenced, and deferred arguments may be nested. What the constructor raises gets a note that says
    where the `Deferred` was made.
    """

    def __init__(self, constructor: Callable[..., Any], *args: Any, **kwargs: Any):
        frame = sys._getframe(1)
        self.made_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.constructor = constructor
        self.args = args
        self.kwargs = kwargs

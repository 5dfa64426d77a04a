"""What a server can be asked to call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rlpad.errors import nearest
from rlpad.launch.rpc import codec
from rlpad.launch.rpc import stream as streams

#: What `list_methods` calls.
LIST_METHODS = "__list_methods__"


class Methods:
    """The public callables of an object, and further functions, by name."""

    def __init__(self, target: object, name: str):
        """Binds the callables.

        Args:
          target: the object.
          name: what it is called in messages.
        """
        self._name = name
        self._functions = _public_callables(target)
        self._functions[LIST_METHODS] = self._list

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Adds a further function.

        Raises:
          TypeError: `function` can't be called.
        """
        if not callable(function):
            raise TypeError(f"{name!r} can't be bound: {function!r} isn't callable")
        self._functions[name] = function

    def execute(self, payload: bytes | memoryview, buffers: list[Any]) -> tuple[int, bytes, list[memoryview]]:
        """Calls what a request asks for; returns the reply."""
        try:
            method, args, kwargs = codec.loads(payload, buffers)
            function = self._functions.get(method)
            if function is None:
                hint = nearest(method, self._list())
                raise AttributeError(f"{self._name} has no method {method!r}{hint}")
            result = function(*args, **kwargs)
            del args, kwargs
            try:
                return streams.RESULT, *codec.dumps(result)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise TypeError(f"the result of {method!r} can't be pickled: {reason}") from error
        except BaseException as error:  # whatever it was, the caller must hear of it
            return streams.ERROR, codec.dump_exception(error), []

    def _list(self) -> list[str]:
        return sorted(name for name in self._functions if name != LIST_METHODS)


def is_served(target: object, name: str) -> bool:
    """Whether something of an object can be called by this name; no property is evaluated for that."""
    if name == "__call__":
        return callable(target)
    static = inspect.getattr_static(target, name, None)
    # Properties and the like are no callables; what a callable descriptor gives is a bound method.
    wrappers = (classmethod, staticmethod, functools.partialmethod, functools.singledispatchmethod)
    return not name.startswith("_") and (isinstance(static, wrappers) or callable(static))


def _public_callables(target: object) -> dict[str, Callable[..., Any]]:
    """Returns what of an object can be called, found without running any of its code."""
    found = {name: getattr(target, name) for name in dir(target) if name != "__call__" and is_served(target, name)}
    found = {name: value for name, value in found.items() if callable(value)}
    if is_served(target, "__call__"):
        found["__call__"] = target
    return found

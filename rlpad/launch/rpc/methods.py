"""What of an object others can call."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any

from rlpad.errors import nearest
from rlpad.launch.rpc import codec
from rlpad.launch.rpc import stream as streams

#: What `list_methods` calls.
LIST_METHODS = "__list_methods__"


class Forwarder(abc.ABC):
    """A service that answers to every public name, and `__call__`, by asking another."""

    @abc.abstractmethod
    def _forward(self, name: str) -> Callable[..., Any]:
        """Returns what answers to `name`."""

    @abc.abstractmethod
    def _list_methods(self) -> list[str]:
        """Returns the names that the other one answers to."""


class Methods:
    """The public callables of an object, and further functions, by name.

    Each is looked up when it's first called, and no property is evaluated for that.
    """

    def __init__(self, target: object, name: str):
        """Takes an object.

        Args:
          target: the object; a `Forwarder` answers to more names than it has.
          name: what it is called in messages.
        """
        self._target = target
        self._name = name
        self._functions: dict[str, Callable[..., Any]] = {LIST_METHODS: self.names}

    def bind(self, name: str, function: Callable[..., Any]) -> None:
        """Adds a further function.

        Raises:
          TypeError: `function` can't be called.
        """
        if not callable(function):
            raise TypeError(f"{name!r} can't be bound: {function!r} isn't callable")
        self._functions[name] = function

    def get(self, name: str) -> Callable[..., Any]:
        """Returns what is called by this name.

        Raises:
          AttributeError: nothing is.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._find(name)
            if function is None:
                raise AttributeError(f"{self._name} has no method {name!r}{nearest(name, self.names())}")
            self._functions[name] = function
        return function

    def names(self) -> list[str]:
        """Returns the names that can be called, sorted."""
        if isinstance(self._target, Forwarder):
            return self._target._list_methods()
        found = {name for name in dir(self._target) if self._find(name) is not None}
        return sorted(found | self._functions.keys() - {LIST_METHODS})

    def execute(self, payload: bytes | memoryview, buffers: list[Any]) -> tuple[int, bytes, list[memoryview]]:
        """Calls what a request asks for; returns the reply."""
        try:
            method, args, kwargs = codec.loads(payload, buffers)
            function = self._functions.get(method) or self.get(method)
            result = function(*args, **kwargs)
            del args, kwargs
            try:
                return streams.RESULT, *codec.dumps(result)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise TypeError(f"the result of {method!r} can't be pickled: {reason}") from error
        except BaseException as error:  # whatever it was, the caller must hear of it
            return streams.ERROR, codec.dump_exception(error), []

    def _find(self, name: str) -> Callable[..., Any] | None:
        if isinstance(self._target, Forwarder):
            return self._target._forward(name) if name == "__call__" or not name.startswith("_") else None
        if not _is_served(self._target, name):
            return None
        if name == "__call__":
            return self._target  # type: ignore[return-value]  # it's callable, or it wouldn't be served
        function = getattr(self._target, name)
        return function if callable(function) else None


def _is_served(target: object, name: str) -> bool:
    """Whether something of an object can be called by this name; no property is evaluated for that."""
    if name == "__call__":
        return callable(target)
    static = inspect.getattr_static(target, name, None)
    # Properties and the like are no callables; what a callable descriptor gives is a bound method.
    wrappers = (classmethod, staticmethod, functools.partialmethod, functools.singledispatchmethod)
    return not name.startswith("_") and (isinstance(static, wrappers) or callable(static))

"""Clients that call nodes of the same process directly."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rlpad.launch.errors import CallTimeout
from rlpad.launch.rpc.methods import LIST_METHODS

if TYPE_CHECKING:
    from rlpad.launch.launchers.local import LocalNode


class DirectClient:
    """Calls a node of this process as an RPC client would: same names, same errors, no copy."""

    #: Calls don't leave this process.
    in_process = True

    def __init__(self, node: LocalNode, call_timeout: float | None = None):
        self._node = node
        self._call_timeout = call_timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        node, default = self._node, self._call_timeout

        def call(*args: Any, timeout: float | None = default, retry: int = 0, **kwargs: Any) -> Any:
            del retry  # a direct call can't get lost
            if timeout is None or node.runtime.single_threaded:
                return node.call(name, args, kwargs)
            return _within(node, name, timeout, args, kwargs)

        call.__name__ = name
        self.__dict__[name] = call
        return call

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
        """Calls the object itself."""
        del retry
        timeout = self._call_timeout if timeout is None else timeout
        if timeout is None or self._node.runtime.single_threaded:
            return self._node.call("__call__", args, kwargs)
        return _within(self._node, "__call__", timeout, args, kwargs)

    @property
    def futures(self) -> _DirectFutures:
        """The same methods, each returning a future."""
        return _DirectFutures(self._node, self._call_timeout)

    def close(self) -> None:
        """Holds nothing."""

    def __list_methods__(self) -> list[str]:
        """Returns the names of what can be called."""
        return self._node.call(LIST_METHODS, (), {})

    def __reduce__(self) -> Any:
        raise TypeError("a client of a node in this process can't be sent to another; pass the handle on instead")

    def __repr__(self) -> str:
        return f"<client of {self._node.name}>"


def _within(node: LocalNode, method: str, timeout: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    future = node.submit(method, args, kwargs)
    try:
        return future.result(timeout)
    except TimeoutError as error:
        # One that the method itself has raised comes with a future that is done, and so can't be cancelled.
        if not future.cancel():
            return future.result()
        raise CallTimeout(f"{method!r} on {node.name} wasn't answered within {timeout:g} s") from error


class _DirectFutures:
    def __init__(self, node: LocalNode, call_timeout: float | None):
        self._node = node
        self._call_timeout = call_timeout

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Future[Any]:
            del retry
            return self._node.submit(name, args, kwargs, self._call_timeout if timeout is None else timeout)

        return call

    def __call__(self, *args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Future[Any]:
        """Calls the object itself."""
        del retry
        return self._node.submit("__call__", args, kwargs, self._call_timeout if timeout is None else timeout)

"""The node whose methods other nodes call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlpad.errors import nearest
from rlpad.launch.errors import LaunchError
from rlpad.launch.nodes.base import Built
from rlpad.launch.nodes.python import ObjectNode, built_object

if TYPE_CHECKING:
    from rlpad.launch.context import Context

_OPTIONS = ("thread_pool_size",)


class CourierNode(ObjectNode):
    """Makes an object and serves its public methods: `CourierNode(Class, *args, **kwargs)`.

    The object is also run, if it's a worker or has `run()`; it's served until the program ends, even when its
    run has ended before.

    Nodes that hold each other's handles are made without them first: `a = CourierNode(A)`,
    `b = CourierNode(B, a.create_handle())`, then `a.configure(b.create_handle())`.
    """

    arguments_may_follow = True

    def __init__(
        self,
        constructor: Callable[..., Any],
        *args: Any,
        courier_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        """Describes the object.

        Args:
          constructor: class, or function that makes the object.
          *args: its arguments.
          courier_kwargs: options of the service: `thread_pool_size`, the calls that may run at once (16).
          **kwargs: its keyword arguments.

        Raises:
          LaunchError: the constructor can't be called with these arguments, or an option is wrong.
        """
        options = dict(courier_kwargs or {})
        for name in options:
            if name not in _OPTIONS:
                raise LaunchError(f"CourierNode has no courier_kwargs {name!r}{nearest(name, _OPTIONS)}")
        self.thread_pool_size = options.get("thread_pool_size", 16)
        if not isinstance(self.thread_pool_size, int) or self.thread_pool_size < 1:
            raise LaunchError(f"thread_pool_size must be a number of at least 1, got {self.thread_pool_size!r}")
        super().__init__(constructor, args, kwargs)

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Replaces the constructor's arguments by these, before the program is launched.

        Raises:
          LaunchError: the constructor can't be called with these arguments.
        """
        before = self.args, self.kwargs
        self.args, self.kwargs = args, kwargs
        try:
            self._check_signature(partial=False)
        except LaunchError:
            self.args, self.kwargs = before
            raise

    def build(self, context: Context) -> Built:
        """Makes the object."""
        made = self.call(context)
        built = built_object(made, runs=self._runs)
        built.service = made
        built.thread_pool_size = self.thread_pool_size
        return built

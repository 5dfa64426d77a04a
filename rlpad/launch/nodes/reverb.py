"""The node that runs a dm-reverb server."""

from __future__ import annotations

import importlib.util
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlpad.launch import context as context_lib
from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Handle
from rlpad.launch.nodes.base import Built, CallNode

if TYPE_CHECKING:
    from rlpad.launch.context import Context


class ReverbHandle(Handle):
    """Becomes a `reverb.Client`."""

    def dereference(self, context: Context | None = None) -> Any:
        """Returns a client of the server, once the server is up."""
        import reverb

        return reverb.Client((context or context_lib.current()).address(self.name))


class ReverbNode(CallNode):
    """Serves replay tables with dm-reverb: `ReverbNode(priority_tables_fn)`.

    The server chooses a free port. It listens on every interface and knows no authentication: whoever can
    reach the machine can read and write the tables, so keep it behind a firewall.
    """

    handle_class = ReverbHandle

    def __init__(
        self,
        priority_tables_fn: Callable[[], Sequence[Any]],
        checkpoint_ctor: Callable[[], Any] | None = None,
        checkpoint_time_delta_minutes: float | None = None,
    ):
        """Describes the server.

        Args:
          priority_tables_fn: makes the `reverb.Table`s, in the node.
          checkpoint_ctor: makes the checkpointer (`reverb.checkpointers`), in the node; its newest checkpoint is
            loaded at the start. Without one, checkpoints end with the program.
          checkpoint_time_delta_minutes: minutes between checkpoints; None for none but those that clients ask for. One
            that fails ends the program.

        Raises:
          LaunchError: the minutes aren't positive, or there's no `checkpoint_ctor` that they'd be for.
        """
        super().__init__(priority_tables_fn, (), {})
        if checkpoint_time_delta_minutes is not None:
            if not checkpoint_time_delta_minutes > 0:
                raise LaunchError(
                    f"checkpoint_time_delta_minutes must be positive, got {checkpoint_time_delta_minutes}"
                )
            if checkpoint_ctor is None:
                raise LaunchError("checkpoint_time_delta_minutes needs a checkpoint_ctor, or nothing would be kept")
        self._checkpoint_ctor = checkpoint_ctor
        self._minutes = checkpoint_time_delta_minutes

    @property
    def title(self) -> str:
        """What it is; the function that makes its tables says little."""
        return "dm-reverb"

    def check(self) -> None:
        """Checks that reverb is installed.

        Raises:
          LaunchError: it isn't.
        """
        super().check()
        if importlib.util.find_spec("reverb") is None:
            raise LaunchError(f"{self.name}: ReverbNode needs the extra: pip install 'rlpad[reverb]'")

    def build(self, context: Context) -> Built:
        """Starts the server."""
        import reverb

        if self._checkpoint_ctor is not None:
            checkpointer = self._checkpoint_ctor()
        else:
            # Without a checkpointer of its own the server makes a temporary folder that nobody removes.
            folder = tempfile.mkdtemp(prefix="reverb-", dir=context.scratch())
            checkpointer = reverb.checkpointers.DefaultCheckpointer(path=folder)
        server = reverb.Server(tables=list(self.call(context)), checkpointer=checkpointer)
        address = f"localhost:{server.port}"
        if self._minutes is None:
            return Built(address=address, close=server.stop)
        checkpoints = _Checkpoints(reverb.Client(address), 60.0 * self._minutes, context)

        def close() -> None:
            checkpoints.end()
            server.stop()

        return Built(address=address, close=close)


class _Checkpoints:
    """Has a server write checkpoints, from a thread."""

    def __init__(self, client: Any, period_s: float, context: Context):
        self._client, self._period, self._context = client, period_s, context
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rlpad-{context.info.name}-checkpoints", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            try:
                self._client.checkpoint()
            except Exception as error:
                self._context.stop(f"{self._context.info.name} can't write a checkpoint: {error}", "failed")
                return

    def end(self) -> None:
        """Writes no more; waits for one that's being written."""
        self._ended.set()
        self._thread.join()

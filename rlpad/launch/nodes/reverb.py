"""The node that runs a dm-reverb server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlpad.launch import context as context_lib
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

    def __init__(self, priority_tables_fn: Callable[[], Sequence[Any]]):
        """Describes the server.

        Args:
          priority_tables_fn: makes the `reverb.Table`s, in the node.
        """
        super().__init__(priority_tables_fn, (), {})

    @property
    def title(self) -> str:
        """What it is; the function that makes its tables says little."""
        return "dm-reverb"

    def build(self, context: Context) -> Built:
        """Starts the server."""
        import reverb

        # Without a checkpointer of its own the server makes a temporary folder that nobody removes.
        folder = tempfile.mkdtemp(prefix="reverb-", dir=context.scratch())
        checkpointer = reverb.checkpointers.DefaultCheckpointer(path=folder)
        server = reverb.Server(tables=list(self.call(context)), checkpointer=checkpointer)
        return Built(address=f"localhost:{server.port}", close=server.stop)

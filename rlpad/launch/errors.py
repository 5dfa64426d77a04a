"""Errors of launching, of nodes and of calls between them."""

from __future__ import annotations

from rlpad.errors import UserError


class LaunchError(UserError):
    """A program that can't be launched as it stands; raised before anything starts."""


class PeerGone(ConnectionError):
    """The node that was called has ended, died, or never came up."""


class CallTimeout(TimeoutError):
    """A call wasn't answered in time; it may or may not have run."""


class RemoteError(RuntimeError):
    """Stands for a remote exception that can't be rebuilt here.

    Attributes:
      type_name: qualified name of the remote exception's class.
      remote_traceback: the remote traceback as text.
    """

    def __init__(self, message: str, type_name: str = "", remote_traceback: str = ""):
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (str(self), self.type_name, self.remote_traceback)


class RemoteTraceback(Exception):
    """Cause of an exception that was raised elsewhere; prints as the remote traceback.

    Attributes:
      text: the remote traceback, as Python prints it.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.text,)


class NodeFailed(RuntimeError):
    """A node died without an exception of its own: killed by a signal, or by an exit code.

    Attributes:
      node: the node's name.
    """

    def __init__(self, node: str, message: str):
        super().__init__(message)
        self.node = node

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.node, str(self))


class StalledError(RuntimeError):
    """Nobody can step; the message says who waits for what."""


def as_failure(node: str, error: BaseException) -> Exception:
    """Returns the error itself if it can be raised in the launching process without ending that too."""
    if isinstance(error, Exception):
        return error
    failed = NodeFailed(node, f"node {node} ended with {error!r}")
    failed.__cause__ = error
    return failed

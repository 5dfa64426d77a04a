"""The fork server, as its supervisor sees it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from typing import Any

from rlpad.launch import linux
from rlpad.launch.channel import Channel
from rlpad.launch.errors import NodeFailed
from rlpad.launch.messages import ServerSetup


class ForkServer:
    """Starts `rlpad.launch.forkserver`, talks to it, and ends it."""

    def __init__(self, title: str, preload: tuple[str, ...], folder: str):
        """Starts the process."""
        self._socket, theirs = socket.socketpair()
        # One BLAS thread, as it's too late to choose after the fork; XLA reads NPROC later, in each node.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlpad.launch.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        self._channel = Channel(self._socket)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.send(ServerSetup(list(sys.path), preload, folder, f"rlpad: fork server ({title})"))
        self._sender = threading.Thread(target=self._send_all, name="rlpad-fork-requests", daemon=True)
        self._sender.start()

    def fileno(self) -> int:
        """Returns the descriptor, to wait for."""
        return self._channel.fileno()

    def send(self, request: Any) -> None:
        """Sends a request, without waiting: the server may itself be waiting for somebody to read what it says."""
        self._requests.put(request)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # it's dead, which will be seen
            while (request := self._requests.get()) is not None:
                self._channel.send(request)

    def receive_ready(self) -> list[Any]:
        """Returns what the server has said.

        Raises:
          NodeFailed: it's dead.
        """
        try:
            return self._channel.receive_ready()
        except (EOFError, OSError) as error:
            text = linux.describe_exit(self._process.wait(5.0))
            raise NodeFailed("fork server", f"the fork server {text}; all nodes died with it") from error

    def end(self) -> None:
        """Ends the server; it kills whatever is left, and so does the kernel if it can't."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever else may have a copy
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            linux.kill_group(self._process.pid)
            self._process.wait(5.0)
        self._requests.put(None)
        self._sender.join()
        self._channel.close()

    def abandon(self) -> None:
        """Closes a forked child's copy."""
        self._channel.close()

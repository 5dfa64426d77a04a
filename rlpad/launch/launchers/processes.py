"""One machine, one process per node, all under a supervisor."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import cloudpickle

from rlpad.launch.errors import LaunchError, PeerGone
from rlpad.launch.handles import Handle
from rlpad.launch.launchers.local import node_info_of
from rlpad.launch.messages import Spawn
from rlpad.launch.nodes.base import Node
from rlpad.launch.program import Program
from rlpad.launch.rpc import Client
from rlpad.launch.run import NodeStatus, Run, SignalHandlers
from rlpad.launch.supervisor import SupervisedNode, Supervisor, control_path, make_folder

#: Seconds without a sign of life after which a node counts as dead; a compiler may hold the interpreter for long.
HEARTBEAT_TIMEOUT_SECONDS = 120.0


class ProcessesRun(Run):
    """Runs every node in a child process of rlpad's fork server.

    Temporary files of the nodes (`TMPDIR`) lie in the launch's private folder and end with it.
    """

    def __init__(
        self,
        program: Program,
        *,
        run_dir: str | None,
        seed: int,
        preload: Sequence[str],
        handle_signals: bool,
        stop_notice_s: float,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_SECONDS,
    ):
        super().__init__()
        processes = [process for node in program.nodes.values() for process in node.processes()]
        payloads = [self._pickled(program, node, leaves, run_dir, seed) for node, leaves in processes]
        logs = _log_folder(run_dir)
        folder = make_folder()
        nodes = [
            SupervisedNode(
                str(node.name),
                _Spawner(node, payload, program.name, folder, logs),
                node.on_failure,
                leaves={str(leaf.name): None for leaf in leaves},
            )
            for (node, leaves), payload in zip(processes, payloads, strict=True)
        ]
        self._clients: dict[str, Client] = {}
        self._clients_lock = threading.Lock()
        self._supervisor = Supervisor(
            self,
            nodes,
            title=program.name,
            folder=folder,
            preload=tuple(preload),
            stop_notice_s=stop_notice_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
        )
        self._signals = SignalHandlers(self)
        if handle_signals:
            self._signals.install()
        self._supervisor.start()

    @staticmethod
    def _pickled(program: Program, node: Node, leaves: Sequence[Node], run_dir: str | None, seed: int) -> bytes:
        infos = {each.name: node_info_of(program, each, run_dir, seed) for each in (node, *leaves)}
        try:
            return cloudpickle.dumps((node, infos))
        except Exception as error:
            raise LaunchError(f"{node!r} can't be sent to a process: {type(error).__name__}: {error}") from error

    def _wait(self, timeout: float | None) -> bool:
        done = self._supervisor.done
        # Python handles signals between waits only, so none may be endless.
        ended = done.wait(timeout) if timeout is not None else _wait_in_slices(done)
        if ended:
            self._close()
        return ended

    def _begin_stop(self) -> None:
        self._supervisor.ask_stop()

    def kill(self) -> None:
        """Kills every process at once and waits until all are gone."""
        if not self._supervisor.done.is_set():
            self.stop("killed by the launching process")
            self._supervisor.ask_kill()
            self._supervisor.done.wait(30.0)
        self._close()

    def _close(self) -> None:
        self._signals.restore()
        with self._clients_lock:
            for client in self._clients.values():
                client.close()
            self._clients = {}

    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""
        return self._supervisor.status()

    def client(self, handle: Handle) -> Client:
        """Returns a client of a node; it waits for a node that isn't up yet."""
        supervisor, name = self._supervisor, handle.name

        def address() -> str:
            found, gone = supervisor.resolve(name)
            if gone:
                raise PeerGone(gone)
            if found is None:
                raise LookupError(f"{name} isn't up yet")
            return found

        with self._clients_lock:
            if name not in self._clients:
                self._clients[name] = Client(address, name=name)
            return self._clients[name]


class _Spawner:
    """Makes the request that starts a node, for each epoch anew."""

    def __init__(self, node: Node, payload: bytes, program: str, folder: str, logs: str | None):
        self._node, self._payload, self._program, self._folder, self._logs = node, payload, program, folder, logs

    def __call__(self, epoch: int) -> Spawn:
        node = self._node
        assert node.name is not None
        return Spawn(
            name=node.name,
            epoch=epoch,
            title=f"rlpad: {node.name} ({self._program})",
            payload=self._payload,
            folder=self._folder,
            control=control_path(self._folder),
            log=None if self._logs is None else os.path.join(self._logs, f"{node.group}-{node.index}.log"),
            threads=node.resources.threads,
            jax_platform=node.resources.jax_platform,
            env=dict(node.resources.env),
        )


def _log_folder(run_dir: str | None) -> str | None:
    if run_dir is None:
        return None
    folder = Path(run_dir).absolute() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _wait_in_slices(event: threading.Event) -> bool:
    while not event.wait(0.2):
        pass
    return True

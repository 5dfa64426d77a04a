"""One machine, one process per node, all under a supervisor."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlpad.launch import context as context_lib
from rlpad.launch import leaving
from rlpad.launch.context import BUILD_TIMEOUT_SECONDS, Context, NodeInfo
from rlpad.launch.errors import LaunchError, PeerGone
from rlpad.launch.folder import control_path, make_folder
from rlpad.launch.foreground import Foreground
from rlpad.launch.handles import Handle
from rlpad.launch.launchers.local import node_info_of
from rlpad.launch.messages import Spawn
from rlpad.launch.nodes.base import Node
from rlpad.launch.program import Program
from rlpad.launch.resources import Grant, Resources, allocate
from rlpad.launch.rpc import Client
from rlpad.launch.rpc.client import CALL_TIMEOUT_SECONDS
from rlpad.launch.rpc.codec import dump_by_value
from rlpad.launch.run import NodeStatus, Run, SignalHandlers
from rlpad.launch.supervised import SupervisedNode
from rlpad.launch.supervisor import Supervisor


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
        folder: str | None = None,
        resources: Mapping[str, Resources],
        preload: Sequence[str],
        handle_signals: bool,
        stop_notice_s: float,
        heartbeat_timeout_s: float,
        debug: str | None = None,
        debugger: str = "pdb",
    ):
        super().__init__()
        processes = [process for node in program.nodes.values() for process in node.processes()]
        sizes = {label: len(nodes) for label, nodes in program.groups.items()}
        wanted = [resources.get(node.group, node.resources) for node, _ in processes]
        grants = allocate([node for node, _ in processes], wanted, sizes)
        payloads = [self._pickled(program, node, leaves, run_dir, seed) for node, leaves in processes]
        logs = _log_folder(run_dir)
        folder = folder or make_folder()
        nodes = [
            SupervisedNode(
                str(node.name),
                _Spawner(node, payload, grant, program.name, folder, logs, debugger if node.name == debug else None),
                node.on_failure,
                leaves={str(leaf.name): None for leaf in leaves},
                foreground=Foreground() if node.name == debug else None,
            )
            for (node, leaves), payload, grant in zip(processes, payloads, grants, strict=True)
        ]
        self._supervisor = Supervisor(
            self,
            nodes,
            title=program.name,
            folder=folder,
            preload=tuple(preload),
            stop_notice_s=stop_notice_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
        )
        info = node_info_of(program, processes[0][0], run_dir, seed)
        self._context = _LauncherContext(self, self._supervisor, info, folder)
        self._signals = SignalHandlers(self)
        if handle_signals:
            self._signals.install()
        context_lib.add_live(self._context)
        leaving.add(self)
        self._supervisor.start()

    @staticmethod
    def _pickled(program: Program, node: Node, leaves: Sequence[Node], run_dir: str | None, seed: int) -> bytes:
        infos = {each.name: node_info_of(program, each, run_dir, seed) for each in (node, *leaves)}
        try:
            return dump_by_value((node, infos))
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
        self._context.stop_event.set()
        self._supervisor.ask_stop()

    def kill(self) -> None:
        """Kills every process at once and waits until all are gone."""
        if not self._supervisor.done.is_set():
            self.stop("killed by the launching process")
            self._supervisor.ask_kill()
            self._supervisor.done.wait(30.0)
        self._close()
        leaving.remove(self)

    def _close(self) -> None:
        self._signals.restore()
        self._context.close()

    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""
        return self._supervisor.status()

    def client(self, handle: Handle) -> Any:
        """Returns a client of a node; it waits for a node that isn't up yet."""
        return handle.dereference(self._context)

    def ended(self, killed: tuple[str, ...] = ()) -> None:
        """Makes what was requested the outcome; the program isn't known here any more."""
        context_lib.remove_live(self._context)
        super().ended(killed)


class _LauncherContext(Context):
    """The program as the launching process sees it."""

    several_nodes = True  # and none of them in this process

    def __init__(self, run: ProcessesRun, supervisor: Supervisor, info: NodeInfo, folder: str):
        super().__init__(info, threading.Event())
        self._run = weakref.ref(run)
        self._supervisor = supervisor
        self._folder = folder
        self._clients: dict[tuple[str, float | None], Client] = {}
        self._lock = threading.Lock()

    def connect(self, name: str, *, call_timeout: float | None = None) -> Client:
        """Returns a client that finds the node through the supervisor, anew after each restart."""

        def address() -> str:
            found = self._resolve(name)
            if found is None:
                raise LookupError(f"{name} isn't up yet")
            return found

        with self._lock:
            key = name, call_timeout
            if key not in self._clients:
                timeout = call_timeout or CALL_TIMEOUT_SECONDS
                self._clients[key] = Client(address, call_timeout=timeout, name=name)
            return self._clients[key]

    def _resolve(self, name: str) -> str | None:
        found, gone = self._supervisor.resolve(name)
        if gone:
            raise PeerGone(gone)
        return found

    def address(self, name: str) -> str:
        """Waits until a node is up and returns its address."""
        deadline = time.monotonic() + BUILD_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            found = self._resolve(name)
            if found is not None:
                return found
            time.sleep(0.02)
        raise PeerGone(f"{name} didn't come up")

    def scratch(self) -> str:
        """Returns the launch's private folder; the fork server removes it."""
        return self._folder

    def stop(self, reason: str, status: str) -> None:
        """Stops the program."""
        run = self._run()
        if run is not None:
            run.stop(reason, status)

    def close(self) -> None:
        """Closes all clients."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients = {}


class _Spawner:
    """Makes the request that starts a node, for each epoch anew."""

    def __init__(
        self,
        node: Node,
        payload: bytes,
        grant: Grant,
        program: str,
        folder: str,
        logs: str | None,
        debugger: str | None,
    ):
        self._node, self._payload, self._grant, self._debugger = node, payload, grant, debugger
        self._program, self._folder, self._logs = program, folder, logs

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
            grant=self._grant,
            debugger=self._debugger,
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

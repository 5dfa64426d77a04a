"""The supervisor: starts nodes through the fork server, hears of each one's life, and ends them all."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from rlpad.launch import linux
from rlpad.launch.channel import Channel
from rlpad.launch.errors import NodeFailed, PeerGone
from rlpad.launch.folder import control_path
from rlpad.launch.forking import ForkServer
from rlpad.launch.messages import (
    AskStop,
    Exited,
    Failed,
    Finished,
    Hello,
    InnerReady,
    Kill,
    Ready,
    Resolve,
    Resolved,
    ServerUp,
    Spawned,
    StopNode,
)
from rlpad.launch.policies import Ignore, Restart
from rlpad.launch.rpc.codec import load_exception
from rlpad.launch.run import NodeStatus, Run
from rlpad.launch.supervised import SupervisedNode

#: Seconds for which a `PeerGone` waits for the failure that caused it to become known.
CAUSE_SECONDS = 1.0
#: Seconds that a node has to close what it holds after it has failed.
CLOSE_SECONDS = 5.0
#: Of the notice, the part that workers get; services get the rest.
WORKERS_SHARE = 0.75
#: Seconds that each of the two gets at least.
LEAST_SECONDS = 0.75


class Supervisor:
    """Owns the processes of a program; one thread does everything, others only leave requests."""

    def __init__(
        self,
        run: Run,
        nodes: Sequence[SupervisedNode],
        *,
        title: str,
        folder: str,
        preload: tuple[str, ...],
        stop_notice_s: float,
        heartbeat_timeout_s: float,
    ):
        self._run = run
        self.nodes = {node.name: node for node in nodes}
        self._host = {leaf: node for node in nodes for leaf in node.leaves}
        self._folder = folder
        self._notice = stop_notice_s
        self._heartbeat_timeout = heartbeat_timeout_s
        self._lock = threading.RLock()
        self._wake_lock = threading.RLock()
        self._by_control: dict[Channel, SupervisedNode | None] = {}
        self._stop_asked = threading.Event()
        self._kill_asked = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._killed: list[str] = []
        self.done = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(control_path(folder))
        self._listener.listen(512)
        self._listener.setblocking(False)
        self._server_up = False
        self._server = ForkServer(title, preload, folder)
        self._thread = threading.Thread(target=self._main, name="rlpad-supervisor", daemon=True)
        _supervisors.add(self)

    def start(self) -> None:
        """Begins to supervise."""
        self._thread.start()

    # What other threads may ask for.

    def ask_stop(self) -> None:
        self._stop_asked.set()
        self._wake()

    def ask_kill(self) -> None:
        self._kill_asked.set()
        self._wake()

    def _wake(self) -> None:
        # Under a lock, so that the number isn't another file's by now; one that nobody holds for long.
        with self._wake_lock, contextlib.suppress(OSError):  # full, and so awake already; or closed, at the end
            os.write(self._wake_write, b".")

    def resolve(self, name: str) -> tuple[str | None, str]:
        """Returns a node's address, or None; and why it won't come (back), if so."""
        with self._lock:
            node = self._host[name]
            address = node.leaves[name]
            up = node.state in ("running", "finished")
            if node.alive and (up or (address is not None and node.state == "starting")):
                return address, "" if address else f"{name} serves nothing that could be called"
            if node.state in ("starting", "restarting", "doubtful") and not self._stop_asked.is_set():
                return None, ""
            return None, f"{name} has ended"

    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""
        with self._lock:
            shown = {"doubtful": "failed", "ignored": "failed"}
            return {
                leaf: NodeStatus(shown.get(node.state, node.state), max(node.epoch, 1), node.pid)
                for leaf, node in self._host.items()
            }

    # The supervisor's thread.

    def _main(self) -> None:
        try:
            self._supervise()
            self._stop_nodes()
        except Exception as error:
            self._run.fail("supervisor", error)
        finally:
            self._end_server()
            self._run.ended(tuple(self._killed))
            self.done.set()

    def _supervise(self) -> None:
        while not self._stop_asked.is_set() and not self._kill_asked.is_set():
            self._handle_events(0.1)
            with self._lock:
                self._check_foreground()
                self._start_due()
                self._check_doubts()
                self._check_heartbeats()
                settled = all(node.settled for node in self.nodes.values())
                worked = any(node.works for node in self.nodes.values())
                dead = all(node.state == "ignored" for node in self.nodes.values())
            if dead:
                self._run.stop("every node has died", "failed")
            elif settled and worked:
                self._run.stop("every node has finished", "completed")

    def _handle_events(self, timeout: float) -> None:
        sources: list[Any] = [self._wake_read, self._listener, self._server, *self._by_control]
        for source in wait(sources, timeout):
            if source is self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            elif source is self._listener:
                self._accept()
            elif source is self._server:
                self._hear_server()
            elif isinstance(source, Channel) and source in self._by_control:  # not closed since, as its node had ended
                self._hear_node(source)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # accepted already, while another node's end was looked into
            return
        self._by_control[Channel(connection)] = None

    def _hear_all(self) -> None:
        """Takes in what nodes have said so far; a node's last words count for more than the news of its end."""
        while wait([self._listener], 0):
            self._accept()
        for control in list(self._by_control):
            while control in self._by_control and control.ready():
                self._hear_node(control)

    def _hear_server(self) -> None:
        messages = self._server.receive_ready()
        with self._lock:
            for message in messages:
                if isinstance(message, ServerUp):
                    self._server_up = True
                    if message.problem:
                        print(f"rlpad: {message.problem}", file=sys.stderr)
                elif isinstance(message, Spawned):
                    node = self.nodes[message.name]
                    node.pid, node.heard = message.pid, time.monotonic()
                elif isinstance(message, Exited):
                    self._exited(message)

    def _start_due(self) -> None:
        if not self._server_up:
            return
        for node in self.nodes.values():
            if node.due:
                node.epoch += 1
                node.state, node.works, node.error, node.failed_at = "starting", None, None, None
                node.leaves = dict.fromkeys(node.leaves)
                spawn = node.spawn(node.epoch)
                if node.foreground is None:
                    self._server.send(spawn)
                else:
                    node.pid = node.foreground.start(spawn)

    def _hear_node(self, control: Channel) -> None:
        try:
            messages = control.receive_ready()
        except (EOFError, OSError):
            self._by_control.pop(control, None)
            control.close()
            return
        with self._lock:
            for message in messages:
                speaker = self._by_control.get(control)
                if isinstance(message, Hello):
                    node = self.nodes[message.name]
                    node.control = control
                    self._by_control[control] = node
                    node.heard = time.monotonic()
                elif speaker is not None and speaker.control is control:  # not an earlier epoch's last words
                    self._heard(speaker, control, message)

    def _heard(self, node: SupervisedNode, control: Channel, message: Any) -> None:
        node.heard = time.monotonic()
        if isinstance(message, Ready):
            node.works = message.works
            if node.name in node.leaves:
                node.leaves[node.name] = message.address
            if node.state == "starting":
                node.state = "running"
        elif isinstance(message, InnerReady):
            node.leaves[message.name] = message.address
        elif isinstance(message, Finished):
            node.state = "finished"
        elif isinstance(message, Failed):
            node.error, node.failed_at = load_exception(message.error), node.heard
        elif isinstance(message, AskStop):
            self._run.stop(message.reason, message.status)
        elif isinstance(message, Resolve):
            address, gone = self.resolve(message.name)
            with contextlib.suppress(OSError):  # it may have died since it asked
                control.send(Resolved(message.request, address, gone))

    def _exited(self, message: Exited) -> None:
        node = next((n for n in self.nodes.values() if n.pid == message.pid), None)
        if node is None:
            return
        self._hear_all()
        node.pid = None
        error = node.error
        # In a stop a node may end before all that it said of itself was heard.
        ended_early = node.state != "finished" and not self._stop_asked.is_set()
        if error is None and (message.code != 0 or ended_early):
            how = linux.describe_exit(message.code)
            if message.code == 0:
                how += " before its work was done"
            error = NodeFailed(node.name, f"node {node.name} {how}")
        if self._stop_asked.is_set():
            node.state = "failed" if error is not None else "stopped"
            if error is not None and not isinstance(error, PeerGone) and node.name not in self._killed:
                self._run.fail_late(node.name, error)
        elif error is None:
            node.state = "finished"
        elif isinstance(error, PeerGone):
            node.state, node.error, node.doubtful_since = "doubtful", error, time.monotonic()
        else:
            self._died(node, error)

    def _check_foreground(self) -> None:
        """Sees the end of a node that isn't the fork server's."""
        for node in self.nodes.values():
            if node.foreground is not None and node.alive and (code := node.foreground.poll()) is not None:
                assert node.pid is not None
                self._exited(Exited(node.pid, code))

    def _check_doubts(self) -> None:
        """A node that missed another one isn't the cause, if there's another one."""
        now = time.monotonic()
        for node in self.nodes.values():
            if node.state != "doubtful" or node.doubtful_since is None or node.error is None:
                continue
            if now - node.doubtful_since >= CAUSE_SECONDS:
                self._died(node, node.error)

    def _died(self, node: SupervisedNode, error: BaseException) -> None:
        if isinstance(node.policy, Ignore):
            node.state = "ignored"
            self._report(node, error, "goes on without it")
            return
        if isinstance(node.policy, Restart) and node.epoch <= node.policy.max_restarts:
            delay = node.policy.delay(node.epoch)
            node.state, node.restart_at = "restarting", time.monotonic() + delay
            self._report(node, error, f"restart {node.epoch} of {node.policy.max_restarts} in {delay:g} s")
            return
        if isinstance(node.policy, Restart) and node.policy.max_restarts:
            error.add_note(node.policy.used_up())
        node.state = "failed"
        self._run.fail(node.name, error)

    @staticmethod
    def _report(node: SupervisedNode, error: BaseException, what: str) -> None:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not isinstance(error, NodeFailed):
            text = f"node {node.name} failed: {type(error).__name__}: {text}"
        print(f"rlpad: {text}; {what}", file=sys.stderr, flush=True)

    def _check_heartbeats(self) -> None:
        now = time.monotonic()
        for node in self.nodes.values():
            if (
                node.alive
                and node.foreground is None
                and node.error is None
                and now - node.heard > self._heartbeat_timeout
            ):
                node.error = NodeFailed(
                    node.name, f"node {node.name} gave no sign of life for {self._heartbeat_timeout:g} s and was killed"
                )
                self._kill_node(node)
            elif node.alive and node.failed_at is not None and now - node.failed_at > CLOSE_SECONDS:
                self._kill_node(node)

    def _kill_node(self, node: SupervisedNode) -> None:
        if node.foreground is not None:
            node.foreground.kill()
        elif node.pid is not None:
            self._server.send(Kill(node.pid))

    def _stop_nodes(self) -> None:
        """Stops workers first, so that what they still have to write finds the services up."""
        started = time.monotonic()
        self._stop_asked.set()
        for works, share in ((True, WORKERS_SHARE), (False, 1.0)):
            # Workers that used up the notice don't take it from the services, which end quickly.
            deadline = max(started + share * self._notice, time.monotonic() + LEAST_SECONDS)
            with self._lock:
                chosen = [n for n in self.nodes.values() if (n.works is not False) == works]
            told: set[str] = set()
            while not self._kill_asked.is_set() and self._tell_stop(chosen, told):
                if time.monotonic() >= deadline:
                    self._kill_stubborn(chosen)
                    break
                self._handle_events(0.05)
                with self._lock:
                    self._check_foreground()

    def _tell_stop(self, chosen: list[SupervisedNode], told: set[str]) -> bool:
        """Tells those that live and weren't told; returns whether any lives."""
        with self._lock:
            alive = [node for node in chosen if node.alive or (node.state == "starting" and node.epoch)]
            for node in alive:
                if node.control is not None and node.name not in told:
                    told.add(node.name)
                    with contextlib.suppress(OSError):  # it's about to be seen dead
                        node.control.send(StopNode())
                if node.state in ("running", "finished"):
                    node.state = "stopping"
            return bool(alive)

    def _kill_stubborn(self, chosen: list[SupervisedNode]) -> None:
        with self._lock:
            stubborn = [node for node in chosen if node.alive]
            self._killed += [node.name for node in stubborn]
            for node in stubborn:
                self._kill_node(node)
        deadline = time.monotonic() + 2.0
        while any(node.alive for node in stubborn) and time.monotonic() < deadline:
            self._handle_events(0.05)
            with self._lock:
                self._check_foreground()

    def _end_server(self) -> None:
        """Ends the fork server; it kills whatever is left, and so does the kernel if it can't."""
        for node in self.nodes.values():
            if node.foreground is not None:
                node.foreground.kill()
        self._server.end()
        self._close()
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock:
            for node in self.nodes.values():
                node.pid = None
                if node.state not in ("failed", "ignored"):
                    node.state = "stopped"

    def _close(self) -> None:
        self._listener.close()
        for control in list(self._by_control):
            control.close()
        with self._wake_lock:
            for descriptor in (self._wake_read, self._wake_write):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wake_read = self._wake_write = -1

    def abandon(self) -> None:
        """Closes a forked child's copies, or nobody would see when the parent dies."""
        self._lock, self._wake_lock = threading.RLock(), threading.RLock()  # others of the parent may have held them
        self._server.abandon()
        self._close()


# Those of this process.
_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _abandon_all() -> None:
    for supervisor in list(_supervisors):
        supervisor.abandon()
    _supervisors.clear()


os.register_at_fork(after_in_child=_abandon_all)

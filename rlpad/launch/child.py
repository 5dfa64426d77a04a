"""A node in a process of its own."""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from rlpad.launch import context as context_lib
from rlpad.launch import linux
from rlpad.launch.channel import Channel
from rlpad.launch.context import BUILD_TIMEOUT_SECONDS, Context, NodeInfo, entered
from rlpad.launch.debugging import debugged
from rlpad.launch.errors import PeerGone, as_failure
from rlpad.launch.messages import (
    AskStop,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    InnerReady,
    Ready,
    Resolve,
    Resolved,
    Spawn,
    StopNode,
)
from rlpad.launch.nodes.base import Built, Node
from rlpad.launch.resources import Grant
from rlpad.launch.rpc import Client, Server
from rlpad.launch.rpc.client import CALL_TIMEOUT_SECONDS
from rlpad.launch.rpc.codec import dump_exception
from rlpad.launch.worker import step_until_done

HEARTBEAT_SECONDS = 1.0
#: Environment variables that bound the threads of compute libraries.
_THREAD_VARIABLES = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def run_node(spawn: Spawn, parent: int) -> int:
    """Runs a node in this process until the supervisor stops it; returns the exit code."""
    if spawn.debugger is None:
        os.setsid()
    linux.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _set_up_process(spawn)
    control = _Control(spawn)
    try:
        node, infos = pickle.loads(spawn.payload)
        infos = {name: dataclasses.replace(info, epoch=spawn.epoch) for name, info in infos.items()}
        context = _ProcessContext(infos, spawn, control)
        context_lib.add_live(context)
        with entered(context):
            debugged(spawn, lambda: _run(node.build(context), spawn, control, context))
    except BaseException as error:
        if spawn.debugger != "pdb":  # which has shown it already
            traceback.print_exception(error)
        control.fail(as_failure(spawn.name, error))
    else:
        return 0
    return 1


def _run(built: Built, spawn: Spawn, control: _Control, context: _ProcessContext) -> None:
    address = context.serve(spawn.name, built.service, built)
    control.tell(Ready(address, built.worker is not None))
    try:
        if built.worker is not None:
            step_until_done(built.worker)
            control.tell(Finished())
            if address is None and not context.has_stop_handlers and not built.lingers():
                return
        control.stop_event.wait()
        context.join_stop_handlers()
    except BaseException as error:
        if spawn.debugger is None:
            control.fail(as_failure(spawn.name, error))  # at once, for to close what has failed may take for ever
        raise
    finally:
        try:
            built.close()
        finally:
            context.end_services()


def _set_up_process(spawn: Spawn) -> None:
    import setproctitle

    setproctitle.setproctitle(spawn.title)
    if spawn.debugger is None:
        _redirect(spawn)
    faulthandler.enable(sys.stderr)
    # Libraries leave temporary files behind (TensorFlow its generated code); these end with the program.
    os.environ["TMPDIR"] = spawn.folder
    tempfile.tempdir = None
    _take_resources(spawn.grant)


def _redirect(spawn: Spawn) -> None:
    if spawn.log is not None:
        log = os.open(spawn.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # A forked copy of the parent's text layers would keep what the parent had buffered.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    if spawn.log is not None:
        print(f"-- {spawn.name} started at {started}, epoch {spawn.epoch}, process {os.getpid()}", flush=True)


def _take_resources(grant: Grant) -> None:
    sys.argv[1:] = grant.args
    if grant.cpus is not None:
        os.sched_setaffinity(0, grant.cpus)
    if grant.threads is not None:
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(grant.threads)))
    os.environ.update(grant.env)
    if grant.jax_platform is not None:
        os.environ["JAX_PLATFORMS"] = grant.jax_platform
        jax = sys.modules.get("jax")
        if jax is not None:
            # Loaded before the fork: it has read its environment already.
            jax.config.update("jax_platforms", grant.jax_platform)


class _Control:
    """The node's side of its channel to the supervisor."""

    def __init__(self, spawn: Spawn):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(spawn.control)
        self._channel = Channel(connection)
        self._send_lock = threading.Lock()
        self._requests = itertools.count()
        self._answers: dict[int, Resolved] = {}
        self._answered = threading.Condition()
        self.stop_event = threading.Event()
        self._ending = False
        self._own_group = spawn.debugger is None
        self.tell(Hello(spawn.name, spawn.epoch))
        for function in (self._listen, self._beat):
            threading.Thread(target=function, name="rlpad-control", daemon=True).start()

    def tell(self, message: Any) -> None:
        with self._send_lock:
            self._channel.send(message)

    def fail(self, error: BaseException) -> None:
        """Reports what the node raised first."""
        if not self._ending:
            self._ending = True
            self.tell(Failed(dump_exception(error)))

    def resolve(self, name: str) -> str:
        """Asks where a node is.

        Raises:
          LookupError: it isn't up yet.
          PeerGone: it has ended for good.
        """
        request = next(self._requests)
        self.tell(Resolve(request, name))
        with self._answered:
            self._answered.wait_for(lambda: request in self._answers, 30.0)
            answer = self._answers.pop(request, None)
        if answer is None:
            raise LookupError(f"the supervisor didn't say where {name} is")
        if answer.gone:
            raise PeerGone(answer.gone)
        if answer.address is None:
            raise LookupError(f"{name} isn't up yet")
        return answer.address

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                if not self._ending:
                    # Without the supervisor nobody would end this process.
                    if self._own_group:
                        linux.kill_group(os.getpgrp())
                    os._exit(1)
                return
            if isinstance(message, StopNode):
                self.stop_event.set()
            else:
                with self._answered:
                    self._answers[message.request] = message
                    self._answered.notify_all()

    def _beat(self) -> None:
        while not self._ending:
            try:
                self.tell(Heartbeat())
            except OSError:
                return  # the listener sees the same end, and acts on it
            time.sleep(HEARTBEAT_SECONDS)


class _ProcessContext(Context):
    """The program as a node in a process of its own sees it."""

    survives_fork = True

    def __init__(self, infos: dict[str, NodeInfo], spawn: Spawn, control: _Control):
        """Takes what is known of the node and, by name, of those inside of it."""
        super().__init__(infos[spawn.name], control.stop_event)
        self._inner = {name: info for name, info in infos.items() if name != spawn.name}
        self.several_nodes = bool(self._inner)
        self._control = control
        self._folder = spawn.folder
        self._servers: list[Server] = []

    def serve(self, name: str, service: Any, built: Built) -> str | None:
        """Serves a node's object to other processes; returns the node's address, if it has one."""
        if service is None:
            return built.address
        path = os.path.join(self._folder, f"{name.replace('/', '-')[-60:]}.{self.info.epoch}")
        server = Server(service, f"unix:{path}", thread_pool_size=built.thread_pool_size, name=name)
        self._servers.append(server)
        server.start()
        return server.address

    def end_services(self) -> None:
        """Ends what `serve` began."""
        for server in self._servers:
            server.stop()

    def host(self, nodes: Sequence[Node], *, first: bool) -> Built:
        """Builds nodes of a colocation in threads of this process."""
        from rlpad.launch.launchers.hosted import HostedRun
        from rlpad.launch.launchers.local import Parts

        def announce(name: str, service: Any, built: Built) -> None:
            self._control.tell(InnerReady(name, self.serve(name, service, built)))

        return HostedRun(Parts(nodes, self._inner, self, first), announce).build()

    def connect(self, name: str, *, call_timeout: float | None = None) -> Client:
        """Returns a client that asks the supervisor for the address, anew after each restart."""
        return Client(
            _Resolver(self._control, name),
            connect_timeout=BUILD_TIMEOUT_SECONDS,
            call_timeout=call_timeout or CALL_TIMEOUT_SECONDS,
            name=name,
        )

    def address(self, name: str) -> str:
        """Waits until a node is up and returns its address."""
        deadline = time.monotonic() + BUILD_TIMEOUT_SECONDS
        while not self.stop_event.is_set() and time.monotonic() < deadline:
            try:
                return self._control.resolve(name)
            except LookupError:
                time.sleep(0.02)
        raise PeerGone(f"{name} didn't come up")

    def scratch(self) -> str:
        """Returns the launch's private folder; the fork server removes it."""
        return self._folder

    def stop(self, reason: str, status: str) -> None:
        """Asks the supervisor to stop the program."""
        self._control.tell(AskStop(reason, status))


class _Resolver:
    """Finds a node's address for an RPC client."""

    def __init__(self, control: _Control, name: str):
        self._control = control
        self._name = name

    def __call__(self) -> str:
        return self._control.resolve(self._name)

    def __reduce__(self) -> Any:
        raise TypeError(f"a client of {self._name} belongs to this process; pass the handle on instead")


if __name__ == "__main__":
    with open(int(sys.argv[2]), "rb") as file:
        request = pickle.load(file)
    sys.exit(run_node(request, int(sys.argv[1])))

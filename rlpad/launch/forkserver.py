"""rlpad's own fork server: `python -m rlpad.launch.forkserver FD`.

Loads heavy modules once and forks nodes from there. It has one thread, starts no JAX backend, and is the parent of
every node: it sees each one's end. Its one control pipe leads to the supervisor. When that pipe ends, however the
launcher died, it kills every node's process group and removes the launch's private folder.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from multiprocessing.connection import wait
from typing import Any

from rlpad.launch import linux
from rlpad.launch.channel import Channel
from rlpad.launch.child import run_node
from rlpad.launch.foreground import start_anew
from rlpad.launch.messages import Exited, Kill, ServerSetup, ServerUp, Spawn, Spawned


def main(descriptor: int) -> None:
    """Serves until the control pipe ends."""
    os.set_inheritable(descriptor, False)
    control = Channel(socket.socket(fileno=descriptor))
    setup: ServerSetup = control.receive()
    sys.path[:] = setup.sys_path
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides, and the pipe tells of its end
    linux.adopt_orphans()
    try:
        problem = _preload(setup)
        server = _ForkServer(control, setup, forks=not problem)
        # The launcher may have ended while modules were loaded.
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            control.send(ServerUp(os.getpid(), problem))
            try:
                server.serve()
            finally:
                server.kill_all()
    finally:
        shutil.rmtree(setup.folder, ignore_errors=True)
    # Taking apart all that was loaded would take a second, for which the launcher would wait.
    sys.stderr.flush()
    os._exit(0)


def _preload(setup: ServerSetup) -> str:
    """Loads modules; returns why nothing can be forked afterwards, if that's so."""
    import setproctitle

    setproctitle.setproctitle(setup.title)
    for module in setup.preload:
        importlib.import_module(module)
    threads = linux.number_of_threads()
    if threads > 1:
        return f"loading {', '.join(setup.preload)} left {threads} threads running, so nodes are started anew"
    gc.collect()
    gc.freeze()  # collections in the nodes leave the shared memory shared
    return ""


class _ForkServer:
    def __init__(self, control: Channel, setup: ServerSetup, forks: bool):
        self._control = control
        self._forks = forks
        self._setup = setup
        # By process, with what watches those that were started anew.
        self._nodes: dict[int, subprocess.Popen[bytes] | None] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            sources: list[Any] = [self._control, self._wake_read]
            ready = wait(sources)
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                if not self._reap():
                    return
            if self._control in ready:
                try:
                    messages = self._control.receive_ready()
                except (EOFError, ConnectionError):
                    return
                if not all(self._obey(message) for message in messages):
                    return

    def _obey(self, message: Spawn | Kill) -> bool:
        if isinstance(message, Kill):
            if message.pid in self._nodes:
                linux.kill_group(message.pid)
                os.kill(message.pid, signal.SIGKILL)  # it may not have made its group yet
            return True
        if self._forks:
            pid = self._fork(message)
            self._nodes[pid] = None
        else:
            process = start_anew(message, self._setup.sys_path)
            pid = process.pid
            self._nodes[pid] = process  # kept, as `subprocess` reaps those that nobody holds any more
        return self._tell(Spawned(message.name, message.epoch, pid))

    def _fork(self, message: Spawn) -> int:
        parent = os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 counts threads in /proc/self/stat, and miscounts for a process with a space in its name.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            code = run_node(message, parent)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> bool:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return True
            if ended is None:
                return True
            pid = ended.si_pid
            # While the node isn't reaped, its group's number can't be anybody else's.
            if pid in self._nodes:
                linux.kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if pid in self._nodes:
                code = os.waitstatus_to_exitcode(status)
                process = self._nodes.pop(pid)
                if process is not None:
                    process.returncode = code
                if not self._tell(Exited(pid, code)):
                    return False

    def _tell(self, message: Spawned | Exited) -> bool:
        try:
            self._control.send(message)
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def kill_all(self) -> None:
        """Kills every node's group, and descendants that left their group, until there are none."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            for pid in self._nodes:
                linux.kill_group(pid)
            for pid in linux.children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]))

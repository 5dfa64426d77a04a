"""A launched program as others see it: `launch.json` in its run directory, and the control service named there.

The launching process writes the file, serves `status()` and `stop(reason)` on a Unix socket in a private folder, and
writes down at the end how it ended. A launcher that was killed leaves the file as it was; that its process is gone
says what happened, for the file tells that process from later ones of the same number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

from rlpad.files import write_atomically
from rlpad.launch import linux
from rlpad.launch.errors import LaunchError, PeerGone
from rlpad.launch.folder import make_folder
from rlpad.launch.nodes.base import Node
from rlpad.launch.program import Program
from rlpad.launch.rpc import Client, Server
from rlpad.launch.rpc.address import is_left_behind
from rlpad.launch.run import SIGTERM_EXIT, NodeStatus, Outcome, Run

LAUNCH_FILE = "launch.json"
#: States of a launch, besides the three of an outcome: it goes on; its launcher is gone without a word; it was begun
#: on another host, where alone it can be told.
RUNNING, KILLED, ELSEWHERE = "running", "killed", "elsewhere"
#: Seconds after which a launcher that doesn't answer isn't waited for any more.
ANSWER_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class LaunchRecord:
    """What `launch.json` says.

    Attributes:
      program: the program's name.
      launcher: `inline`, `threads` or `processes`.
      nodes: the names of all nodes, by group.
      processes: under `processes`, the names of those that have a process and so a log, by group; colocations are one.
      pid: the launching process.
      start_ticks: when that process began; see `linux.start_ticks`.
      boot_id: of the machine; see `linux.boot_id`.
      host: the machine's name.
      started: when the program was launched, in ISO 8601.
      control: address of the control service.
      ended: when it ended, or None.
      status: how: `completed`, `interrupted` or `failed`.
      reason: one line for people.
      exit_code: of the outcome.
    """

    program: str
    launcher: str
    nodes: dict[str, list[str]]
    processes: dict[str, list[str]]
    pid: int
    start_ticks: int
    boot_id: str
    host: str
    started: str
    control: str
    ended: str | None = None
    status: str | None = None
    reason: str = ""
    exit_code: int | None = None

    @property
    def state(self) -> str:
        """How it stands now: the outcome's status, `running`, `killed` or `elsewhere`."""
        if self.status is not None:
            return self.status
        if self.host != socket.gethostname():
            return ELSEWHERE
        alive = self.boot_id == linux.boot_id() and linux.start_ticks(self.pid) == self.start_ticks
        return RUNNING if alive else KILLED

    def client(self) -> Client:
        """Returns a client of the control service."""
        return Client(
            self._reachable,
            connect_timeout=ANSWER_SECONDS,
            call_timeout=ANSWER_SECONDS,
            name=f"the launching process {self.pid}",
        )

    def _reachable(self) -> str:
        # The socket listens from before the file names it, so who isn't there won't come.
        if self.state == KILLED or not os.path.exists(self._socket):
            raise PeerGone("it has ended")
        return self.control

    @property
    def _socket(self) -> str:
        return self.control.removeprefix("unix:")

    def kill(self, timeout: float) -> bool:
        """Kills the launching process, with which its nodes die; returns whether it has ended.

        Raises:
          LaunchError: it's another user's.
        """
        # What the descriptor stands for can't be replaced by a later process, unlike a number.
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if self.state == RUNNING:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                return bool(select.select([process], [], [], timeout)[0])
        except PermissionError as error:
            raise LaunchError(f"process {self.pid} is another user's, and can't be killed") from error
        finally:
            os.close(process)
        return True

    def clear_remains(self) -> None:
        """Removes the socket that a killed launcher has left, and its folder."""
        with contextlib.suppress(OSError):  # most likely somebody else has done that already
            if self.state == KILLED and is_left_behind(self._socket):
                os.unlink(self._socket)
                os.rmdir(os.path.dirname(self._socket))


def read_launch(run_dir: str | Path) -> LaunchRecord | None:
    """Returns what a run directory's `launch.json` says, or None if it has none.

    Raises:
      LaunchError: the file can't be read, or isn't rlpad's.
    """
    path = Path(run_dir) / LAUNCH_FILE
    try:
        record = LaunchRecord(**json.loads(path.read_bytes()))
        if not record.control.startswith("unix:"):
            raise ValueError(f"control address {record.control!r}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LaunchError(f"{str(path)!r} can't be read: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        raise LaunchError(f"{str(path)!r} isn't what this version of rlpad writes there: {error}") from error
    return record


def launch_controlled(program: Program, launcher: str, run_dir: str, start: Callable[[str], Run]) -> Run:
    """Starts a run that can be seen and stopped through its run directory.

    Args:
      program: what is run.
      launcher: by which launcher.
      run_dir: the run directory; made with mode 0700 if it isn't there.
      start: starts the run; gets a private folder to use, which is removed at the end.

    Raises:
      LaunchError: another program runs there, or the directory can't be made or written to; nothing has started.
    """
    with contextlib.ExitStack() as undo:
        control = _Control(program, launcher, Path(run_dir).absolute(), undo)
        run = start(control.folder)
        undo.callback(run.kill)
        control.serve(run)
        undo.pop_all()
    return run


class _Service:
    """What others may ask a launching process."""

    def __init__(self) -> None:
        self._run: weakref.ref[Run] | None = None

    def _found(self) -> Run:
        run = self._run() if self._run is not None else None
        if run is None:
            raise LookupError("the run is gone")
        return run

    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""
        return self._found().status()

    def stop(self, reason: str) -> None:
        """Asks the program to stop, as SIGTERM would, and returns at once.

        A run that ends sooner than this is answered takes the answer with it: the caller sees `PeerGone`.
        """
        self._found().stop(reason, "interrupted", SIGTERM_EXIT)


class _Control:
    """The launching process's side, from before the start of a run to its end."""

    def __init__(self, program: Program, launcher: str, run_dir: Path, undo: contextlib.ExitStack):
        """Claims a run directory; what that changes is undone by `undo`. Nobody is answered before `serve`."""
        self._path = run_dir / LAUNCH_FILE
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._service = _Service()
        self._make_run_dir(undo)
        self.folder = make_folder()
        undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._server = Server(self._service, f"unix:{self.folder}/seen", thread_pool_size=4, name="rlpad-control")
        undo.callback(self._server.stop)
        tops = list(program.nodes.values())
        nodes = _by_group(leaf for top in tops for leaf in top.leaves())
        processes = _by_group(node for top in tops for node, _ in top.processes() if launcher == "processes")
        ticks = linux.start_ticks(self._process)
        assert ticks is not None
        self._record = LaunchRecord(
            program=program.name,
            launcher=launcher,
            nodes=nodes,
            processes=processes,
            pid=self._process,
            start_ticks=ticks,
            boot_id=linux.boot_id(),
            host=socket.gethostname(),
            started=_now(),
            control=self._server.address,
        )
        self._claim(undo)

    def _make_run_dir(self, undo: contextlib.ExitStack) -> None:
        folder = self._path.parent
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
                undo.callback(_remove_if_empty, folder)
        except OSError as error:
            raise LaunchError(f"run directory {str(folder)!r} can't be made: {error.strerror}") from error

    def _claim(self, undo: contextlib.ExitStack) -> None:
        earlier = read_launch(self._path.parent)
        try:
            if earlier is None:
                write_atomically(self._path, _to_json(self._record), replace=False)
                undo.callback(self._path.unlink, missing_ok=True)
                return
            if earlier.state not in (RUNNING, ELSEWHERE):
                earlier.clear_remains()
                write_atomically(self._path, _to_json(self._record))
                undo.callback(write_atomically, self._path, _to_json(earlier))
                return
        except FileExistsError:  # written since it was looked at
            earlier = read_launch(self._path.parent) or self._record
        except OSError as error:
            raise LaunchError(f"{str(self._path)!r} can't be written: {error.strerror}") from error
        raise LaunchError(
            f"program {earlier.program!r} runs in run directory {str(self._path.parent)!r} already "
            f"(process {earlier.pid} on {earlier.host}); choose another run_dir, or end it with rlpad stop"
        )

    def serve(self, run: Run) -> None:
        """Answers until the run has ended, or is thrown away, or this process ends."""
        self._service._run = weakref.ref(run)
        self._server.start()
        weakref.finalize(run, self._end, None)
        run.at_end(self._end)

    def _end(self, outcome: Outcome | None) -> None:
        if os.getpid() != self._process:
            return  # a forked child's copy; the run is the parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        outcome = outcome or Outcome("interrupted", "nobody in the launching process waited for its end", 1)
        ended = dataclasses.replace(
            self._record, ended=_now(), status=outcome.status, reason=outcome.reason, exit_code=outcome.exit_code
        )
        try:
            found = read_launch(self._path.parent)
            if found == self._record:  # or else somebody has moved our run directory away
                write_atomically(self._path, _to_json(ended))
        except (OSError, LaunchError) as error:  # no reason for a run that has ended to fail
            print(f"rlpad: warning: how the run ended isn't in {str(self._path)!r}: {error}", file=sys.stderr)


def _by_group(nodes: Iterable[Node]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.group, []).append(str(node.name))
    return names


def _to_json(record: LaunchRecord) -> bytes:
    return (json.dumps(dataclasses.asdict(record), indent=2) + "\n").encode()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()

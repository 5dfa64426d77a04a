"""`rlpad logs`: shows what the nodes of a launched program print, merged or one by one, and follows it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import tyro

from rlpad.cli.launched import how_it_stands, open_launch
from rlpad.cli.parse import parse
from rlpad.errors import UserError, nearest
from rlpad.launch.control import ELSEWHERE, RUNNING, LaunchRecord

#: Lines that following begins with, of each log.
FOLLOWED_LINES = 10
_POLL_SECONDS = 0.2
_BLOCK_BYTES = 64 * 1024
#: ANSI codes that tell nodes apart: cyan, yellow, green, magenta, blue, red, and their bright ones.
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


@dataclasses.dataclass(frozen=True)
class LogsFlags:
    """Flags of `rlpad logs`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory of the program."""
    nodes: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NODE")] = ()
    """Nodes such as actor/0, or groups such as actor, which mean all their nodes; all nodes if none is named."""
    follow: Annotated[bool, tyro.conf.arg(aliases=["-f"])] = False
    """Go on until the run ends, or until Ctrl-C."""
    lines: int | None = None
    """Lines from the end of each log; by default all, or the last ten with --follow."""
    tmux: bool = False
    """Open a tmux session that only looks, with a window for each node."""


def main(arguments: Sequence[str]) -> int:
    """Prints logs."""
    flags = parse(
        LogsFlags,
        arguments,
        prog="rlpad logs",
        description=(
            "Shows what the nodes of a launched program print, node after node, or as it comes with --follow. "
            "Lines of several nodes begin with the node's name; a single node's are shown as they are.\n\n"
            "Exit codes: 0 if all was shown, to the run's end or to Ctrl-C, 2 for a request that can't be carried out."
        ),
    )
    if flags.lines is not None and flags.lines < 0:
        raise UserError(f"--lines must be at least 0, got {flags.lines}")
    record = open_launch(flags.run)
    logs = Logs(Path(flags.run), record, flags.nodes)
    if not flags.follow and not flags.tmux and not logs.paths():
        raise UserError(f"{flags.run!r} has no logs yet of {', '.join(flags.nodes) or 'any node'}")
    lines = FOLLOWED_LINES if flags.lines is None and (flags.follow or flags.tmux) else flags.lines
    if flags.tmux:
        return open_tmux(logs, lines)
    printer = Printer(logs, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    if not flags.follow:
        printer.print_new(lines, last=True)
        return 0
    with _interrupts() as interrupted:
        follow(flags.run, printer, lines, interrupted)
    return 0


class Logs:
    """The logs of a run, or of those nodes that were asked for.

    Attributes:
      run: the run directory.
      nodes: those nodes, in the order of the program.
    """

    def __init__(self, run: Path, record: LaunchRecord, asked: Sequence[str]):
        """Finds out which nodes are meant.

        Raises:
          UserError: the program's nodes have no logs, or it has no such node or group; names the nearest one.
        """
        if record.launcher != "processes":
            raise UserError(
                f"{str(run)!r} has no logs: under the launcher {record.launcher} "
                "all nodes print where the launching process does"
            )
        self.run = run
        known = {name: group for group, names in record.processes.items() for name in names}
        for name in asked:
            if name not in known and name not in record.processes:
                hint = nearest(name, [*record.processes, *known]) or f"; it has {', '.join(record.processes)}"
                raise UserError(f"{str(run)!r} has no node or group {name!r}{hint}")
        self.nodes = [name for name, group in known.items() if not asked or name in asked or group in asked]

    def path(self, node: str) -> Path:
        """Returns where a node's log is, or will be."""
        return self.run / "logs" / f"{node.replace('/', '-')}.log"

    def paths(self) -> dict[str, Path]:
        """Returns those that are there, by node."""
        return {node: path for node in self.nodes if (path := self.path(node)).exists()}


class Printer:
    """Prints what is new in logs."""

    def __init__(self, logs: Logs, *, colour: bool):
        """Prints nothing yet.

        Args:
          logs: the logs.
          colour: whether each node's name has a colour of its own.
        """
        self._logs = logs
        self._read: dict[str, int] = {}  # bytes
        self._begun: dict[str, bytes] = {}
        self._prefixes = dict.fromkeys(logs.nodes, "")
        if len(logs.nodes) > 1:
            width = max(map(len, logs.nodes))
            for number, node in enumerate(logs.nodes):
                name = f"{node:<{width}} | "
                code = _COLOURS[number % len(_COLOURS)]
                self._prefixes[node] = f"\x1b[{code}m{name}\x1b[0m" if colour else name

    def print_new(self, lines: int | None, *, last: bool) -> None:
        """Prints the whole lines that have come since.

        Args:
          lines: of logs that weren't there before only so many from their end, or all.
          last: whether no more is to come, so that a line without its end is printed too.
        """
        for node, path in self._logs.paths().items():
            with path.open("rb") as file:
                if lines is None or node in self._read:
                    file.seek(self._read.get(node, 0))
                else:
                    seek_last_lines(file, lines)
                while data := file.read(_BLOCK_BYTES):
                    *whole, begun = (self._begun.get(node, b"") + data).split(b"\n")
                    self._begun[node] = begun
                    self._print(node, whole)
                self._read[node] = file.tell()
            if last and self._begun.get(node):
                self._print(node, [self._begun[node]])

    def _print(self, node: str, lines: Sequence[bytes]) -> None:
        prefix = self._prefixes[node]
        sys.stdout.write("".join(f"{prefix}{line.decode(errors='replace')}\n" for line in lines))
        sys.stdout.flush()


def seek_last_lines(file: BinaryIO, lines: int) -> None:
    """Moves to where the last so many lines of a file begin; one without its end counts."""
    at = file.seek(0, os.SEEK_END)
    if at and lines:
        file.seek(at - 1)
        lines += file.read(1) == b"\n"  # that one ends the last line, and no line before it
    while at and lines:
        size = min(_BLOCK_BYTES, at)
        file.seek(at - size)
        block = file.read(size)
        while lines and (end := block.rfind(b"\n")) >= 0:
            block, lines = block[:end], lines - 1
        at = at - size if lines else at - size + len(block) + 1
    file.seek(at)


def follow(run: str, printer: Printer, lines: int | None, interrupted: threading.Event) -> None:
    """Prints what logs hold and what comes, until the run ends; then says on stderr how."""
    while True:
        record = open_launch(run)
        # What was printed before the end is in the logs by the time that the end is known.
        ended = record.state not in (RUNNING, ELSEWHERE)
        printer.print_new(lines, last=ended)
        if ended:
            print(f"rlpad: {how_it_stands(record)}", file=sys.stderr)
            return
        if interrupted.wait(_POLL_SECONDS):
            return
        lines = None  # logs that come later are shown from their beginning


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Has Ctrl-C set an event; it's how one leaves, and no failure."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


def open_tmux(logs: Logs, lines: int | None) -> int:
    """Opens a tmux session with a window for each node; attaches to it where stdout is a terminal.

    Raises:
      UserError: there's no tmux, or it can't open the session.
    """
    if shutil.which("tmux") is None:
        raise UserError("--tmux needs tmux, which isn't installed; rlpad logs --follow shows all nodes in one terminal")
    # tmux has its own use for dots and colons.
    session = f"rlpad-logs-{logs.run.absolute().name.replace('.', '_').replace(':', '_')}"
    for number, node in enumerate(logs.nodes):
        place = ["new-session", "-d", "-s", session] if number == 0 else ["new-window", "-d", "-t", f"={session}:"]
        tail = ["tail", "-n", str(lines), "-F", str(logs.path(node).absolute())]
        _tmux([*place, "-n", node, shlex.join(tail)], f"; if it's open already: tmux attach -t {session}")
    print(f"tmux session {session} is open: tmux attach -t {session}", flush=True)
    if sys.stdout.isatty():
        _tmux(["switch-client" if os.environ.get("TMUX") else "attach-session", "-t", f"={session}"], "")
    return 0


def _tmux(arguments: Sequence[str], hint: str) -> None:
    done = subprocess.run(["tmux", *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"tmux can't do {arguments[0]}: {reason}{hint}")

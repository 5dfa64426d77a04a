"""A node in the foreground, under a debugger."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch.foreground import DEBUGPY_ADDRESS

from .conftest import LONG, Start, end, wait_until
from .example_nodes import lines, write

SCRIPT = """
import sys
import rlpad.launch as lp

class Service:
    def add(self, left, right):
        return left + right

def use(service, fails):
    for number in range(3):
        total = service.add(number, 10)
        print("got", total, flush=True)
    if fails:
        raise ValueError(f"no {number}")

if __name__ == "__main__":
    program = lp.Program("p")
    service = program.add_node(lp.CourierNode(Service), label="service")
    program.add_node(lp.PyNode(use, service, len(sys.argv) > 1), label="user")
    run = lp.launch(program, "processes", debug="user/0")
    try:
        run.wait(30)
    finally:
        print(run.outcome.status, "-", run.outcome.reason)
        sys.exit(run.outcome.exit_code)
"""


def debug(tmp_path: Path, commands: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script, typing commands."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, script, *arguments],
        input="".join(command.format(script=script) + "\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_breakpoint_in_the_script(tmp_path: Path) -> None:
    done = debug(tmp_path, ["b {script}:12", "c", "p number * 100 + total", "cl 1", "c"])
    assert done.returncode == 0, done.stderr
    assert "user/0 stops here before it's built; set breakpoints" in done.stderr
    # It stopped once, in the first round, and showed the line.
    assert f"> {tmp_path}/script.py(12)use()" in done.stdout
    assert '-> print("got", total, flush=True)' in done.stdout
    assert "(user/0) 10\n" in done.stdout
    assert done.stdout.split("\n")[-4:] == ["got 11", "got 12", "completed - every node has finished", ""]


def test_it_stops_where_the_node_raises(tmp_path: Path) -> None:
    done = debug(tmp_path, ["c", "p (number, total)", "q"], "fails")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: no 2") == 1
    assert "user/0 raised this; q ends the program" in done.stderr
    assert f"> {tmp_path}/script.py(14)use()" in done.stdout
    assert "(user/0) (2, 12)\n" in done.stdout
    assert done.stdout.endswith("failed - node user/0 failed: ValueError: no 2\n")


def test_quitting_ends_the_program(tmp_path: Path) -> None:
    done = debug(tmp_path, ["q"])
    assert done.stdout.endswith("interrupted - quit in the debugger of user/0\n")
    assert "Traceback" not in done.stderr


class Editor:
    """Attaches to debugpy, as an editor does."""

    def __init__(self) -> None:
        self._socket = wait_until(self._connect)
        self._file = self._socket.makefile("rb")
        self._number = 0

    @staticmethod
    def _connect() -> socket.socket | None:
        try:
            return socket.create_connection(DEBUGPY_ADDRESS, timeout=LONG)
        except ConnectionRefusedError:
            return None

    def ask(self, command: str, **arguments: Any) -> None:
        """Sends a request."""
        self._number += 1
        request = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def wait_for(self, kind: str, name: str) -> dict[str, Any]:
        """Reads until an event, or the response to a request, has come."""
        while True:
            length = int(self._file.readline().split(b":")[1])
            self._file.readline()
            message = json.loads(self._file.read(length))
            if message["type"] == kind and name == message["event" if kind == "event" else "command"]:
                return message

    def close(self) -> None:
        """Leaves."""
        self._file.close()
        self._socket.close()


def test_debugpy(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("debugpy")
    path = tmp_path / "out"
    program = lp.Program("p")
    program.add_node(lp.PyNode(write, str(path), "ran"), label="user")
    run = start(program, "processes", debug="user/0", debugger="debugpy")
    editor = Editor()
    editor.ask("initialize", adapterID="test", clientID="test")
    editor.wait_for("response", "initialize")
    editor.ask("attach", justMyCode=False)
    editor.wait_for("event", "initialized")
    assert lines(path) == []  # it waits
    editor.ask("configurationDone")
    assert editor.wait_for("response", "attach")["success"]
    assert end(run).status == "completed"
    assert lines(path) == ["ran"]
    editor.close()


@pytest.mark.parametrize(
    ("launcher", "options", "message"),
    [
        ("processes", {"debug": "usr/0"}, "there is no node 'usr/0' to debug; did you mean 'user/0'"),
        ("processes", {"debug": "user/0", "debugger": "gdb"}, "unknown debugger 'gdb'; expected pdb or debugpy"),
        ("threads", {"debug": "user/0"}, "debug is for the launcher 'processes'; under 'threads', breakpoint"),
    ],
)
def test_mistakes(launcher: str, options: dict[str, Any], message: str) -> None:
    program = lp.Program("p")
    program.add_node(lp.PyNode(print), label="user")
    with pytest.raises(lp.LaunchError, match=message):
        lp.launch(program, launcher, **options)

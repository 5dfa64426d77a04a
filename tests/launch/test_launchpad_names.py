"""What programs written for Launchpad use, under its names."""

from __future__ import annotations

import datetime
import http.server
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch.launchpad import LAUNCHER_OF

from .conftest import LONG, Start, end, wait_until
from .example_nodes import CustomError, Waits, lines, write

#: All that `import launchpad as lp` gave, and what its documents promised besides.
NAMES = [
    "LaunchType",
    "is_local_launch",
    "is_local_launch_or_test",
    "LAUNCH_TYPE",
    "Program",
    "launch",
    "context",
    "PyNode",
    "PyClassNode",
    "CourierNode",
    "CourierHandle",
    "CourierClient",
    "MultiThreadingColocation",
    "ReverbNode",
    "DockerConfig",
    "batched_handler",
    "Address",
    "AbstractAddressBuilder",
    "SimpleLocalAddressBuilder",
    "get_port_from_address",
    "stop",
    "wait_for_stop",
    "stop_event",
    "register_stop_handler",
    "unregister_stop_handler",
    "make_program_stopper",
    "PythonProcess",
    "MultiProcessingColocation",
    "Deferred",
    "maybe_dereference",
    "make_program",
    "CacherNode",
]


def test_all_names() -> None:
    assert [name for name in NAMES if name not in lp.__all__] == []


def test_launch_types() -> None:
    assert lp.LaunchType("local_mt") is lp.LaunchType.LOCAL_MULTI_THREADING
    assert [t.value for t in lp.LaunchType if lp.is_local_launch(t)] == ["local_mt", "local_mp"]
    assert [t.value for t in lp.LaunchType if lp.is_local_launch_or_test(t.value)] == [
        "local_mt",
        "local_mp",
        "test_mt",
        "test_mp",
    ]
    with pytest.raises(ValueError, match="'nowhere' is not a valid LaunchType"):
        lp.is_local_launch("nowhere")


class Producer:
    """Works, and can be disabled."""

    def __init__(self, path: str, index: int = 0):
        self._path, self._index = path, index

    def run(self) -> None:
        """Writes that it ran."""
        write(self._path, "ran")

    def work(self, context: int) -> int:
        """Returns its index plus what it's given."""
        return self._index + context

    def slow(self) -> None:
        """Takes longer than its clients wait."""
        time.sleep(1.0)


class TestLaunch:
    """The arguments of `launch`."""

    @pytest.mark.parametrize("kind", [*LAUNCHER_OF, *(t.value for t in LAUNCHER_OF)])
    def test_types(self, kind: Any, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(write, str(tmp_path / "out"), "ran"), label="a")
        run = lp.launch([program], launch_type=kind)
        assert end(run).status == "completed"
        assert lines(tmp_path / "out") == ["ran"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"launch_type": "vertex_ai"}, "unknown launcher 'vertex_ai'; expected inline, threads, processes"),
            ({"launch_type": lp.LaunchType.LOCAL_DOCKER}, "unknown launcher 'local_docker'"),
            ({"launcher": "threads", "launch_type": "local_mp"}, "launcher and launch_type are the same thing"),
            ({"terminal": "tmux"}, "unknown terminal 'tmux'; did you mean 'tmux_session'"),
            ({"xm_resources": {}}, "xm_resources is for Vertex AI"),
            ({"local_resources": {"actr": lp.PythonProcess()}}, "'actr' that isn't there; did you mean 'actor'"),
            ({"local_resources": {"actor": {}}}, "must be Resources or a PythonProcess, got {}"),
        ],
    )
    def test_mistakes(self, options: dict[str, Any], message: str) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(print), label="actor")
        with pytest.raises(lp.LaunchError, match=message):
            lp.launch(program, **options)

    def test_several_programs(self) -> None:
        with pytest.raises(lp.LaunchError, match="launch needs one Program"):
            lp.launch([lp.Program("a"), lp.Program("b")])

    def test_terminal(self, start: Start, capfd: pytest.CaptureFixture[str]) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(int), label="a")
        end(start(program, "threads", terminal="tmux_session"))
        assert "no terminal is opened ('tmux_session')" in capfd.readouterr().err

    @pytest.mark.parametrize(("kind", "check"), [("test_mt", None), ("local_mt", True), ("inline", True)])
    def test_pickles_are_checked(self, kind: str, check: bool | None) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(print, threading.Lock()), label="bad")
        message = (
            r"nodes associated to bad \(PyNode\) were not serializable using cloudpickle. TypeError: cannot pickle"
        )
        with pytest.raises(lp.LaunchError, match=message):
            lp.launch(program, kind, serialize_py_nodes=check)

    def test_pickles_are_not_checked(self, start: Start) -> None:
        for kind, check in (("test_mt", False), ("local_mt", None)):
            program = lp.Program("p")
            program.add_node(lp.PyNode(repr, threading.Lock()), label="good")
            end(start(program, kind, serialize_py_nodes=check))

    def test_test_case(self, concurrent: str) -> None:
        runs: list[lp.Run] = []

        class Case(unittest.TestCase):
            def test(self) -> None:
                program = lp.Program("p")
                program.add_node(lp.PyClassNode(Waits), label="waits")
                runs.append(lp.launch(program, concurrent, test_case=self))
                wait_until(lambda: runs[0].status()["waits/0"].up)

        result = unittest.TestResult()
        Case("test").run(result)
        assert result.wasSuccessful(), result.errors
        assert runs[0].outcome is not None

    def test_flag(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            from absl import app, flags
            import rlpad.launch as lp

            def main(argv):
                program = lp.Program("p")
                program.add_node(lp.PyNode(print, "hello"), label="a")
                run = lp.launch(program)
                run.wait()
                print(lp.LAUNCH_TYPE.value, type(run).__name__)

            if __name__ == "__main__":
                app.run(main)
            """)
        )
        for arguments, expected in (([], "None ProcessesRun"), (["--lp_launch_type=local_mt"], "local_mt ThreadsRun")):
            done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split("\n")[:2] == ["hello", expected]


class TestPrograms:
    """Programs and nodes."""

    def test_groups(self) -> None:
        program = lp.Program("p")
        with program.group("a"):
            assert program.current_group == "a"
            nodes: list[lp.Node] = [lp.PyNode(print), lp.PyNode(print)]
            for node in nodes:
                program.add_node(node)
        other = lp.PyNode(print)
        program.add_node(other, label="b")
        assert program.groups == {"a": nodes, "b": [other]}
        assert program.get_all_nodes() == [*nodes, other]
        with pytest.raises(ValueError, match=r"Current group is only available in group context\."):
            _ = program.current_group

    def test_make_program(self) -> None:
        nodes = [lp.PyNode(print), lp.CourierNode(Producer, "x"), lp.PyNode(print), lp.PyNode(lambda: None)]
        program = lp.make_program(*nodes, name="made")
        assert program.name == "made"
        assert list(program.nodes) == ["print/0", "Producer/0", "print/1", "PyNode/0"]

    def test_a_node_that_is_stepped_by_a_test(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        nodes = [lp.CourierNode(Producer, str(tmp_path / "out"), index) for index in range(2)]
        for node in nodes:
            node.disable_run()
            program.add_node(node, label="producer")
        run = start(program, concurrent)
        # In the launching process, as programs do in their tests.
        clients = [node.create_handle().dereference() for node in nodes]
        assert [client.work(10) for client in clients] == [10, 11]
        assert lp.maybe_dereference(nodes[1].create_handle()).work(1) == 2
        assert [f.result(LONG) for f in [client.futures.work(5) for client in clients]] == [5, 6]
        assert lines(tmp_path / "out") == []
        stop = lp.make_program_stopper(lp.LaunchType.TEST_MULTI_THREADING)
        stop()
        assert end(run).status == "completed"
        nodes[0].enable_run()

    def test_run_is_enabled_again(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        node = lp.PyClassNode(Producer, str(tmp_path / "out"))
        node.disable_run()
        node.enable_run()
        program.add_node(node, label="a")
        end(start(program, launcher))
        assert lines(tmp_path / "out") == ["ran"]

    def test_client_options(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        timeout = datetime.timedelta(seconds=0.2)
        node = lp.CourierNode(Producer, str(tmp_path / "out"), courier_client_kwargs={"call_timeout": timeout})
        node.disable_run()
        program.add_node(node, label="slow")
        run = start(program, concurrent)
        impatient, patient = node.create_handle(), node.create_handle()
        patient.set_client_kwargs(call_timeout=None, compress=True)
        with pytest.raises(lp.CallTimeout):
            run.client(impatient).slow()
        assert run.client(impatient).slow(timeout=LONG) is None
        assert run.client(patient).slow() is None
        run.stop()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"call_timout": 1}, "no option 'call_timout'; did you mean 'call_timeout'"),
            ({"call_timeout": -1}, "call_timeout must be a number of seconds, got -1"),
            ({"call_timeout": "1"}, "call_timeout must be a number of seconds, got '1'"),
        ],
    )
    def test_bad_client_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(lp.LaunchError, match=message):
            lp.CourierNode(Producer, "x", courier_client_kwargs=options)


def stop_by(stopper: Any, path: str) -> None:
    """Stops the program with what it was given."""
    write(path, "stops")
    stopper()


def with_handlers(path: str) -> None:
    """Registers handlers, some of which it takes back."""

    def plain() -> None:
        write(path, "plain")

    def of_signal(number: int, frame: Any) -> None:
        write(path, f"signal {int(number)} {frame}")

    def taken_back() -> None:
        write(path, "taken back")

    for handler in (plain, taken_back, of_signal):
        lp.register_stop_handler(handler)
    lp.unregister_stop_handler(taken_back)
    try:
        lp.unregister_stop_handler(taken_back)
    except lp.LaunchError as error:
        write(path, str(error)[-31:])
    lp.stop()


class TestStopping:
    """Stoppers and handlers."""

    def test_stopper(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        stopper = lp.make_program_stopper("local_mp")
        program.add_node(lp.PyNode(stop_by, stopper, str(tmp_path / "out")), label="a")
        program.add_node(lp.PyClassNode(Waits), label="waits")
        assert end(start(program, launcher)).reason == "stopped by the program"
        with pytest.raises(lp.LaunchError, match="no program runs here"):
            stopper()

    def test_handlers(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(with_handlers, str(tmp_path / "out")), label="a")
        end(start(program, launcher))
        first, *rest = lines(tmp_path / "out")
        assert first.endswith("is no stop handler of a/0")
        assert sorted(rest) == ["plain", "signal 15 None"]


def fail_to_make() -> None:
    """Raises."""
    raise CustomError("not today")


def test_where_a_deferred_was_made(launcher: str, start: Start) -> None:
    program = lp.Program("p")
    deferred = lp.Deferred(fail_to_make)
    line = sys._getframe().f_lineno - 1
    program.add_node(lp.PyNode(print, [deferred]), label="a")
    with pytest.raises(CustomError, match="not today") as info:
        end(start(program, launcher))
    assert f"raised by fail_to_make, of the Deferred made at {__file__}:{line}" in info.value.__notes__


def serve_http(address: lp.Address) -> None:
    """Answers one HTTP request with `hello`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    port = lp.get_port_from_address(address.resolve())
    with http.server.HTTPServer(("localhost", port), Handler) as server:
        server.timeout = LONG
        server.handle_request()


def fetch(path: str, addresses: dict[str, lp.Address]) -> None:
    """Asks the server, once it's up."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            with urllib.request.urlopen(f"http://{addresses['web'].resolve()}/", timeout=LONG) as answer:
                write(path, answer.read().decode())
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


class TestAddresses:
    """Servers that nodes bring themselves."""

    def test_a_server_of_ones_own(self, concurrent: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        address = lp.Address("web")
        server = lp.PyNode(serve_http, address)
        address.assign(server)
        address.assign(server)
        program.add_node(server, label="server")
        program.add_node(lp.PyNode(fetch, str(tmp_path / "out"), {"web": address}), label="client")
        end(start(program, concurrent))
        assert lines(tmp_path / "out") == ["hello"]

    def test_mistakes(self) -> None:
        for name in ("", "Web", "1a", "a-b"):
            with pytest.raises(ValueError, match="malformed; expected small letters and digits"):
                lp.Address(name)
        address = lp.Address("web")
        with pytest.raises(lp.LaunchError, match="Address web of no node> is bound when its program is launched"):
            address.resolve()
        program = lp.Program("p")
        node = lp.PyNode(serve_http, address)
        program.add_node(node, label="a")
        with pytest.raises(lp.LaunchError, match="assigned to no node: call address.assign"):
            lp.launch(program, "inline")
        address.assign(node)
        with pytest.raises(lp.LaunchError, match=r"is assigned to a/0\(serve_http\) already"):
            address.assign(lp.PyNode(print))

    def test_builder(self) -> None:
        builder = lp.SimpleLocalAddressBuilder()
        ports = [lp.get_port_from_address(builder.build()) for _ in range(50)]
        assert len(set(ports)) == 50
        for bad in ("localhost", "localhost:", "localhost:http"):
            with pytest.raises(ValueError, match="expected an address such as"):
                lp.get_port_from_address(bad)


def test_vertex_is_refused() -> None:
    with pytest.raises(lp.LaunchError, match="Vertex AI"):
        lp.DockerConfig(".", "requirements.txt")

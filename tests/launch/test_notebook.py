"""Programs launched from the cells of a notebook."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import psutil
import pytest
from nbclient.exceptions import CellExecutionError

from .conftest import wait_until
from .scripts import alive

#: What a person would define in a notebook: all of it lives in its `__main__`.
DEFINITIONS = """
import dataclasses, os, signal, threading, time
import rlpad.launch as lp

OFFSET = 10

@dataclasses.dataclass
class Point:
    x: int

class Broken(Exception):
    pass

def add(point):
    return Point(point.x + OFFSET)

class Service:
    def add(self, point):
        return add(point)
    def fail(self):
        raise Broken("on purpose")

def work(service, path):
    with open(path, "w") as file:
        file.write(repr(service.add(Point(1))))

def breaks(service):
    service.fail()

def make(launcher, worker, *args):
    program = lp.Program("notebook")
    service = program.add_node(lp.CourierNode(Service), label="service")
    program.add_node(lp.PyNode(worker, service, *args), label="worker")
    return lp.launch(program, launcher), service
"""


class Notebook:
    """A kernel, and what its cells have printed."""

    def __init__(self, folder: Path):
        self._book = nbformat.v4.new_notebook()
        self._client = nbclient.NotebookClient(self._book, timeout=60, kernel_name="python3")
        self._running = contextlib.ExitStack()
        self._running.enter_context(self._client.setup_kernel(cwd=str(folder)))

    def run(self, source: str) -> str:
        """Runs a cell, and returns what it printed; raises `CellExecutionError` if it raises."""
        self._book.cells.append(nbformat.v4.new_code_cell(source))
        cell = self._client.execute_cell(self._book.cells[-1], len(self._book.cells) - 1)
        return "".join(
            output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"
        )

    def process(self) -> psutil.Process:
        """Returns the kernel's process."""
        return psutil.Process(int(self.run("print(os.getpid())")))

    def close(self) -> None:
        """Asks the kernel to shut down, and kills it if it takes more than some seconds."""
        self._running.close()


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook with the definitions; its temporary files lie in a folder of their own."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = tempfile.mkdtemp(prefix="t")  # short, as sockets are bound there
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    book = Notebook(tmp_path)
    try:
        book.run(DEFINITIONS)
        yield book
    finally:
        book.close()
        left = os.listdir(folder)
        shutil.rmtree(folder)
    assert not any(name.startswith("rlpad") for name in left)


def test_programs_of_a_notebook(notebook: Notebook) -> None:
    kernel = notebook.process()
    for launcher in ("threads", "processes"):
        # What is defined in the notebook reaches the nodes, and comes back as what it was.
        notebook.run(f"run, service = make({launcher!r}, work, 'answer')\nassert run.wait(20)")
        assert notebook.run("print(open('answer').read(), run.outcome.status)") == "Point(x=11) completed\n"
        notebook.run(f"""
run, service = make({launcher!r}, breaks)
try:
    run.wait(20)
except Broken as error:
    print(error, error.__notes__)
""")
        # A program goes on from cell to cell, beside another one, and each stops alone.
        notebook.run(f"""
def wait(service):
    lp.wait_for_stop()
first, service = make({launcher!r}, wait)
second, other = make({launcher!r}, wait)
assert first.client(service).add(Point(2)) == Point(12)
""")
        notebook.run("first.stop('enough', 'completed')\nassert first.wait(20) and first.outcome.reason == 'enough'")
        notebook.run("assert second.outcome is None and second.client(other).add(Point(3)) == Point(13)")
        # To interrupt a cell that waits is no reason for the program to end.
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            notebook.run("""
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
second.wait(20)
""")
        notebook.run("assert second.outcome is None and second.client(other).add(Point(4)) == Point(14)")
        notebook.run("second.stop()\nassert second.wait(20)")
        wait_until(lambda: not kernel.children(recursive=True), 5.0)
    assert "wait_for_stop" not in notebook.run("print([t.name for t in threading.enumerate() if 'rlpad' in t.name])")


def test_a_kernel_that_is_shut_down_stops_its_programs(notebook: Notebook, tmp_path: Path) -> None:
    kernel = notebook.process()
    notebook.run("""
def wait(service):
    lp.wait_for_stop()
    open('stopped', 'a').write('.')
runs = [make(launcher, wait) for launcher in ("threads", "processes")]
assert [run.client(service).add(Point(2)) for run, service in runs] == [Point(12)] * 2
while not all(status.up for run, _ in runs for status in run.status().values()):
    time.sleep(0.01)
""")
    children = kernel.children(recursive=True)
    assert len(children) == 3
    notebook.close()
    wait_until(lambda: not any(alive(process) for process in [kernel, *children]), 5.0)
    assert (tmp_path / "stopped").read_text() == ".."

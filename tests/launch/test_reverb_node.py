"""`ReverbNode`: tables that nodes write to and read from, and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp

from .conftest import Start, end, wait_until
from .example_nodes import lines, write

reverb = pytest.importorskip("reverb")


def tables() -> list[Any]:
    """Makes one table of ten items."""
    sampler, remover = reverb.selectors.Fifo(), reverb.selectors.Fifo()
    limiter = reverb.rate_limiters.MinSize(1)
    return [reverb.Table("queue", sampler, remover, max_size=10, rate_limiter=limiter)]


class Checkpointer:
    """Makes a checkpointer for a folder."""

    def __init__(self, folder: str):
        self._folder = folder

    def __call__(self) -> Any:
        return reverb.checkpointers.DefaultCheckpointer(path=self._folder)


def insert(path: str, client: Any, value: int) -> None:
    """Writes an item, then how many there are; waits for the stop."""
    client.insert([value], {"queue": 1.0})
    write(path, str(client.server_info()["queue"].current_size))
    lp.wait_for_stop()


@pytest.mark.parametrize("colocated", [False, True])
def test_checkpoints(concurrent: str, colocated: bool, start: Start, tmp_path: Path) -> None:
    path, folder = tmp_path / "out", tmp_path / "checkpoints"
    made: set[Path] = set()

    def newer() -> set[Path]:
        return set(folder.glob("*/DONE")) - made

    for value in range(2):
        program = lp.Program("p")
        node = lp.ReverbNode(tables, Checkpointer(str(folder)), checkpoint_time_delta_minutes=0.2 / 60)
        user = lp.PyNode(insert, str(path), node.create_handle(), value)
        if colocated:
            program.add_node(lp.MultiThreadingColocation([node, user]), label="both")
        else:
            program.add_node(node, label="replay")
            program.add_node(user, label="user")
        run = start(program, concurrent)
        wait_until(lambda count=value + 1: len(lines(path)) == count)
        made |= newer()
        wait_until(newer)
        run.stop("enough", "completed")
        assert end(run).status == "completed"
    # The second server began with what the first one's checkpoint held.
    assert lines(path) == ["1", "2"]


def test_a_checkpoint_that_fails_ends_the_program(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    program = lp.Program("p")
    node = lp.ReverbNode(tables, Checkpointer(str(folder)), checkpoint_time_delta_minutes=0.2 / 60)
    handle = program.add_node(node, label="replay")
    run = start(program, "processes")
    assert run.client(handle).server_info()["queue"].current_size == 0
    wait_until(lambda: list(folder.glob("*/DONE")))
    for made in folder.rglob("*"):
        if made.is_file():
            made.unlink()
    for made in folder.glob("*"):
        made.rmdir()
    folder.rmdir()
    folder.write_text("in the way")
    outcome = end(run)
    assert outcome.status == "failed"
    assert outcome.reason.startswith("replay/0 can't write a checkpoint: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_time_delta_minutes": 0}, "checkpoint_time_delta_minutes must be positive, got 0"),
        ({"checkpoint_time_delta_minutes": 1}, "needs a checkpoint_ctor"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lp.LaunchError, match=message):
        lp.ReverbNode(tables, **options)

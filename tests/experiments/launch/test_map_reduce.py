"""Counts are those of `collections.Counter`, however many mappers and reducers there are, and if one of them dies."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from experiments.launch.map_reduce import make_program, words_of
from tests.launch.conftest import LONG, Start, end, wait_until

from .conftest import Results


def write_texts(folder: Path, number: int) -> Counter[str]:
    """Writes texts of a hundred words each, some of them not ASCII; returns the right counts."""
    words, rng = ["the", "The", "cat", "naïve", "Ünter", "x1", "*", "--", "don't", *"abcdefghij"], random.Random(number)
    folder.mkdir(exist_ok=True)
    counts: Counter[str] = Counter()
    for index in range(number):
        lines = [" ".join(rng.choices(words, k=10)) for _ in range(10)]
        text = "\n".join([*lines[:5], "", *lines[5:]])
        (folder / f"{index}.txt").write_text(text, encoding="utf-8")
        counts.update(words_of(text))
    return counts


@pytest.mark.parametrize(("mappers", "reducers"), [(1, 1), (1, 8), (3, 3), (8, 1), (8, 8)])
def test_counts(results_of: Results, launcher: str, tmp_path: Path, mappers: int, reducers: int) -> None:
    counts = write_texts(tmp_path / "texts", 9)
    assert counts["the"] > counts["naïve"] > 0
    found = results_of(make_program, launcher, files=f"{tmp_path}/texts/*", mappers=mappers, reducers=reducers)
    assert found["counts"] == counts
    assert (found["lines"], found["words"]) == (9 * 11, counts.total())


class Reading:
    """A run in which the first mapper reads a pipe that the test writes to."""

    def __init__(self, start: Start, folder: Path, max_restarts: int):
        self.counts = write_texts(folder / "texts", 3) + Counter({"again": 2, "and": 3})
        self.out = folder / "results.json"
        pipe = folder / "texts" / "0-first.txt"  # files are given out in the order of their names
        os.mkfifo(pipe)
        # For reading as well, so that this doesn't wait for the mapper, and what is written waits for its successor.
        self._file = os.open(pipe, os.O_RDWR)
        program = make_program(f"{folder}/texts/*", 2, 2, max_restarts, str(self.out))
        self.run = start(program, "processes")
        self._reducers = [self.run.client(program.nodes[f"reducer/{n}"].create_handle()) for n in range(2)]

    def write(self, text: str, ands: int) -> None:
        """Writes lines, and waits until reducers have counted so many "and"."""
        os.write(self._file, text.encode())
        wait_until(lambda: sum(reducer.counts().get("and", 0) for reducer in self._reducers) == ands)

    def kill(self, node: str) -> None:
        """Kills a node, and waits until it's gone."""
        pid = self.run.status()[node].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.run.status()[node].pid != pid)

    def close(self) -> None:
        """Ends the text, if it hasn't ended."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


@pytest.fixture
def read(start: Start, tmp_path: Path) -> Iterator[Callable[[int], Reading]]:
    """Starts to read, with so many restarts for each mapper."""
    readings: list[Reading] = []

    def begin(max_restarts: int) -> Reading:
        readings.append(Reading(start, tmp_path, max_restarts))
        return readings[-1]

    yield begin
    for reading in readings:
        reading.close()


Read = Callable[[int], Reading]


def test_a_killed_mapper_begins_anew(read: Read, capfd: pytest.CaptureFixture[str]) -> None:
    reading = read(2)
    reading.write("again and\nand\nand the unfinished", 2)
    reading.kill("mapper/0")
    reading.write("again and\nand\nand again\n", 3)
    reading.close()
    assert end(reading.run).status == "completed"
    assert "node mapper/0 was killed by SIGKILL; restart 1 of 2" in capfd.readouterr().err
    assert reading.run.status()["mapper/0"].epoch == 2
    found: dict[str, Any] = json.loads(reading.out.read_text())
    assert found["counts"] == reading.counts
    assert found["lines"] == 3 * 11 + 3


def check_failed(reading: Reading, node: str) -> None:
    """Checks that a run ended because a node was killed, and reported nothing."""
    with pytest.raises(lp.NodeFailed, match=f"^node {node} was killed by SIGKILL"):
        reading.run.wait(LONG)
    assert reading.run.outcome is not None
    assert (reading.run.outcome.status, reading.run.outcome.exit_code) == ("failed", 1)
    assert not reading.out.exists()


def test_without_restarts_the_program_fails_and_says_why(read: Read) -> None:
    reading = read(0)
    reading.write("and\n", 1)
    reading.kill("mapper/0")
    check_failed(reading, "mapper/0")


def test_a_dead_reducer_ends_the_program(read: Read) -> None:
    reading = read(2)
    reading.write("and\n", 1)
    reading.kill("reducer/1")
    reading.close()  # a mapper that waits for text would be given the notice
    check_failed(reading, "reducer/1")


def test_a_file_that_cannot_be_read_fails_the_program(start: Start, concurrent: str, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    run = start(make_program(f"{tmp_path}/*.txt"), concurrent)
    with pytest.raises(UnicodeDecodeError) as caught:
        run.wait(LONG)
    assert caught.value.__notes__ == ["raised in node coordinator/0"]

"""Counts words: each mapper reads files and sends every word to the reducer that counts it.

python -m experiments.launch.map_reduce --files 'docs/*.md' --mappers 3 --reducers 2
"""

import glob
import re
import threading
import zlib
from collections import Counter
from typing import Any

import rlpad.launch as lp
from experiments.launch.command import command, gather, report


def words_of(text: str) -> list[str]:
    """Returns the words of a text, in small letters."""
    return re.findall(r"\w+", text.lower())


class Reducer:
    """Counts the words that are its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[tuple[str, int]] = set()
        self._counts: Counter[str] = Counter()

    def add(self, file: str, line: int, words: list[str]) -> None:
        """Counts words of a line; a line that comes again, from a mapper that had to begin anew, counts once."""
        with self._lock:
            if (file, line) not in self._seen:
                self._seen.add((file, line))
                self._counts.update(words)

    def counts(self) -> dict[str, int]:
        """Returns how often each word has come so far."""
        with self._lock:
            return dict(self._counts)


class Mapper:
    """Sends the words of files to the reducers."""

    def __init__(self, reducers: list[Any]):
        self._reducers = reducers

    def map(self, file: str) -> int:
        """Sends all words of a file; returns how many lines it has once every reducer has got its words."""
        lines = 0
        with open(file, encoding="utf-8") as text:
            for lines, line in enumerate(text, 1):
                shares: list[list[str]] = [[] for _ in self._reducers]
                for word in words_of(line):
                    # Not `hash`, which differs from process to process: all mappers must send a word to the same place.
                    shares[zlib.crc32(word.encode()) % len(shares)].append(word)
                full = [(reducer, share) for reducer, share in zip(self._reducers, shares, strict=True) if share]
                gather(reducer.futures.add(file, lines, share) for reducer, share in full)
        return lines


def coordinate(mappers: list[Any], reducers: list[Any], files: list[str], retries: int, out: str) -> None:
    """Gives out the files, waits until all are read, and collects the counts."""
    # A call isn't sent twice unless the caller says that this does no harm. The successor of a dead mapper gets it.
    calls = [mappers[n % len(mappers)].futures.map(file, retry=retries) for n, file in enumerate(files)]
    lines = sum(gather(calls))  # the barrier: from here on nobody sends words any more
    counts: Counter[str] = Counter()
    for part in gather(reducer.futures.counts() for reducer in reducers):
        counts.update(part)
    report({"lines": lines, "words": counts.total(), "counts": dict(counts.most_common())}, out)


def make_program(
    files: str = "docs/*.md", mappers: int = 3, reducers: int = 2, max_restarts: int = 3, out: str = ""
) -> lp.Program:
    """Makes a program that counts the words of files.

    Args:
      files: pattern of the files' names.
      mappers: how many nodes read files.
      reducers: how many nodes count words.
      max_restarts: how often each mapper may die and be started again before the program gives up.
      out: file for the results, as JSON.
    """
    names = sorted(glob.glob(files))
    if not names:
        raise lp.LaunchError(f"no file is called {files!r}; expected a pattern such as 'docs/*.md'")
    program = lp.Program("map-reduce")
    # What a reducer has counted dies with it, so that the death of one ends the program.
    shares = [program.add_node(lp.CourierNode(Reducer), label="reducer") for _ in range(reducers)]
    with program.group("mapper", on_failure=lp.Restart(max_restarts, backoff_s=0.1)):
        readers = [program.add_node(lp.CourierNode(Mapper, shares)) for _ in range(mappers)]
    program.add_node(lp.PyNode(coordinate, readers, shares, names, max_restarts, out), label="coordinator")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))

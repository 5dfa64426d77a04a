"""Where rows of metrics go: JSON lines, the terminal, TensorBoard, Weights & Biases."""

from __future__ import annotations

import abc
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from rlpad.errors import UserError
from rlpad.tracking.plain import split_nonfinite, to_plain
from rlpad.types import Metrics

#: Keys that say when a row was made rather than what was measured.
STEP_KEYS = ("actor_steps", "learner_steps")


class Logger(abc.ABC):
    """Takes rows of metrics. Safe to call from several threads."""

    @abc.abstractmethod
    def write(self, row: Metrics) -> None:
        """Takes one row: names to numbers, strings, arrays, or nests of these.

        Raises:
          TypeError: a value has no plain form; the message names it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Writes out what is pending; a second call does nothing."""


class JsonLinesLogger(Logger):
    """Appends one JSON object per row to a file; each row is there in full once `write` returns.

    Every row gets `time`, seconds since the epoch. JSON has no NaN and no infinities: they become null, and
    an entry `nonfinite` says which they were.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()
        self._clock = clock

    def write(self, row: Metrics) -> None:
        """Appends a row."""
        kept, lost = split_nonfinite(to_plain(row, "row"))
        if lost is not None:
            kept["nonfinite"] = lost
        line = json.dumps({"time": round(self._clock(), 3), **kept}, allow_nan=False) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TerminalLogger(Logger):
    """Prints rows as `[label] name = value` lines; at least some seconds pass between two of them."""

    def __init__(
        self,
        label: str,
        period_s: float = 1.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._label = label
        self._period = period_s
        self._stream = stream
        self._clock = clock
        self._printed_at = -float("inf")
        self._held: str | None = None
        self._lock = threading.Lock()

    def write(self, row: Metrics) -> None:
        """Prints a row, or holds it until a newer one takes its place."""
        line = format_row(self._label, to_plain(row, "row"))
        with self._lock:
            if self._clock() - self._printed_at < self._period:
                self._held = line
                return
            self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)
        self._printed_at = self._clock()
        self._held = None

    def close(self) -> None:
        """Prints the last row, if it was held back."""
        with self._lock:
            if self._held is not None:
                self._print(self._held)


def format_row(label: str, row: Metrics) -> str:
    """Formats a row of plain values as one line."""
    parts = []
    for name, value in row.items():
        if isinstance(value, float):
            parts.append(f"{name} = {value:.4g}")
        elif isinstance(value, int) and not isinstance(value, bool):
            parts.append(f"{name} = {value:,}")
        else:
            parts.append(f"{name} = {value}")
    return f"[{label}] {' | '.join(parts)}"


class TensorBoardLogger(Logger):
    """Writes TensorBoard events (extra `tensorboard`); numbers only, nests under `name/child`."""

    def __init__(self, folder: Path):
        """Opens an event file in `folder`.

        Raises:
          UserError: the extra isn't installed.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise UserError("--tensorboard needs the extra: pip install 'rlpad[tensorboard]'") from error
        self._writer = SummaryWriter(str(folder), write_to_disk=True)
        self._lock = threading.Lock()

    def write(self, row: Metrics) -> None:
        """Adds a row's numbers at its actor steps (learner steps if it has none)."""
        numbers = dict(flatten_numbers(to_plain(row, "row")))
        step = next((int(numbers[key]) for key in STEP_KEYS if key in numbers), None)
        with self._lock:
            for name, value in numbers.items():
                if name not in STEP_KEYS:
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes the event file."""
        with self._lock:
            self._writer.close()


class WandbLogger(Logger):
    """Logs to Weights & Biases (extra `wandb`): one W&B run per label, grouped by the run directory."""

    def __init__(self, project: str, run_dir: Path, label: str):
        """Starts a W&B run.

        Raises:
          UserError: the extra isn't installed.
        """
        try:
            import wandb
        except ImportError as error:
            raise UserError("--wandb needs the extra: pip install 'rlpad[wandb]'") from error
        self._run: Any = wandb.init(
            project=project,
            group=run_dir.name,
            name=f"{run_dir.name}/{label}",
            dir=str(run_dir),
            reinit="create_new",
        )

    def write(self, row: Metrics) -> None:
        """Logs a row's numbers."""
        self._run.log(dict(flatten_numbers(to_plain(row, "row"))))

    def close(self) -> None:
        """Finishes the W&B run."""
        self._run.finish()


class LoggerGroup(Logger):
    """Hands every row to several loggers."""

    def __init__(self, loggers: Sequence[Logger]):
        self._loggers = tuple(loggers)

    def write(self, row: Metrics) -> None:
        """Writes to all."""
        for logger in self._loggers:
            logger.write(row)

    def close(self) -> None:
        """Closes all."""
        for logger in self._loggers:
            logger.close()


def flatten_numbers(row: Any, name: str = "") -> list[tuple[str, float]]:
    """Lists the numbers in a plain value with their paths, `name/child`; strings and None are left out."""
    if isinstance(row, bool | int | float):
        return [(name, float(row))]
    children = row.items() if isinstance(row, dict) else enumerate(row) if isinstance(row, list) else ()
    return [pair for key, child in children for pair in flatten_numbers(child, f"{name}/{key}" if name else str(key))]


def check_extras(tensorboard: bool = False, wandb: str | None = None) -> None:
    """Checks that what is logged to is installed, before a run starts.

    Args:
      tensorboard: whether TensorBoard events are asked for.
      wandb: Weights & Biases project, or None.

    Raises:
      UserError: an extra isn't installed, or the project has no name.
    """
    for asked, extra, module in (
        (tensorboard, "tensorboard", "tensorboardX"),
        (wandb is not None, "wandb", "wandb"),
    ):
        if asked and importlib.util.find_spec(module) is None:
            raise UserError(f"--{extra} needs the extra: pip install 'rlpad[{extra}]'")
    if wandb is not None and not wandb.strip():
        raise UserError("--wandb expects the name of a project, got ''")


def make_logger(
    label: str,
    run_dir: str | Path,
    *,
    tensorboard: bool = False,
    wandb: str | None = None,
    terminal: bool = False,
) -> Logger:
    """Makes a node's logger: JSON lines under `metrics/<label>.jsonl`, and whatever else is asked for.

    Args:
      label: names the rows' source; letters, digits, `-` and `_`.
      run_dir: the run directory.
      tensorboard: also write TensorBoard events.
      wandb: also log to this Weights & Biases project.
      terminal: also print to the terminal, at most once a second.

    Raises:
      UserError: an extra isn't installed.
    """
    path = Path(run_dir)
    loggers: list[Logger] = [JsonLinesLogger(path / "metrics" / f"{label}.jsonl")]
    if tensorboard:
        loggers.append(TensorBoardLogger(path / "tensorboard" / label))
    if wandb is not None:
        loggers.append(WandbLogger(wandb, path, label))
    if terminal:
        loggers.append(TerminalLogger(label))
    return loggers[0] if len(loggers) == 1 else LoggerGroup(loggers)

"""The folder that a run leaves behind."""

from __future__ import annotations

import datetime
import getpass
import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlpad.errors import UserError
from rlpad.files import nearest_sibling, write_atomically
from rlpad.tracking.plain import describe, join_nonfinite

#: Packages whose versions a run depends on.
_PACKAGES = (
    "rlpad",
    "jax",
    "jaxlib",
    "dm-haiku",
    "optax",
    "numpy",
    "gymnasium",
    "dm-reverb",
    "ale-py",
)


class RunDirectory:
    """Reads and writes a run directory: `run.json`, `config.json` and `metrics/`.

    Attributes:
      path: the folder.
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: str | Path, config: Any, command: Sequence[str]) -> RunDirectory:
        """Starts a run in a folder that isn't used yet.

        Args:
          path: the folder; it may exist if it's empty.
          config: what is run; nested dataclasses, written to `config.json`.
          command: the command line, written to `run.json`.

        Raises:
          UserError: the folder is used, or can't be written to; nothing has been changed.
        """
        folder = Path(path).absolute()
        try:
            check_unused(folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(folder / "run.json", "x"):
                pass
        except FileExistsError as error:
            raise UserError(_used(folder)) from error
        except OSError as error:
            raise UserError(f"run directory {str(path)!r} can't be made: {error.strerror}") from error
        for name in ("metrics", "logs", "checkpoints"):
            (folder / name).mkdir()
        directory = cls(folder)
        directory._write("config.json", describe(config))
        directory._write(
            "run.json",
            {
                "status": "running",
                "reason": "",
                "actor_steps": 0,
                "learner_steps": 0,
                "restarts": 0,
                "started": _now(),
                "updated": _now(),
                "command": list(command),
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "user": _user(),
                "cpus": _cpus(),
                "nproc": os.environ.get("NPROC"),
                "versions": versions(),
            },
        )
        return directory

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Opens the directory of an earlier run.

        Raises:
          UserError: there is none; names the nearest one beside it.
        """
        folder = Path(path).absolute()
        if not (folder / "run.json").is_file():
            hint = nearest_sibling(folder, "run.json")
            raise UserError(f"no run directory {str(path)!r}: it has no run.json{hint}")
        return cls(folder)

    def read(self) -> dict[str, Any]:
        """Returns `run.json`."""
        return json.loads((self.path / "run.json").read_text())

    @property
    def config(self) -> dict[str, Any]:
        """What is in `config.json`."""
        return json.loads((self.path / "config.json").read_text())

    def update(self, **changes: Any) -> None:
        """Changes entries of `run.json`; a reader sees the old file or the new one."""
        self._write("run.json", {**self.read(), **changes, "updated": _now()})

    def _write(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def read_metrics(self, label: str) -> list[dict[str, Any]]:
        """Returns the rows of `metrics/<label>.jsonl`; empty if there are none.

        A last line without its end (the writer was killed, or is just writing) is left out.
        """
        path = self.path / "metrics" / f"{label}.jsonl"
        if not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        rows = []
        for line in lines:
            row = json.loads(line)
            lost = row.pop("nonfinite", None)
            rows.append(join_nonfinite(row, lost) if lost is not None else row)
        return rows


def check_unused(path: Path) -> None:
    """Raises `UserError` if a run directory can't be started at `path`."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise UserError(_used(path))


def _used(path: Path) -> str:
    return f"run directory {str(path)!r} is already used; choose another with --run-dir"


def default_run_path(agent: str, env: str, seed: int) -> Path:
    """Returns an unused path under `runs/` with agent, environment, seed and time in its name."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"{agent}-{env}")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{plain}-seed{seed}-{stamp}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on, where installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # containers run under ids that have no name
        return None


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")

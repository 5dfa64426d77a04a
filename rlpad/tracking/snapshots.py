"""Policy snapshots: the variables that actors pull, at one moment, in a folder of their own.

A snapshot is `checkpoints/policy-<actor_steps>/` with `variables.npz` (one array per leaf) and
`snapshot.json` (counts, and the nest that the leaves make up). It needs nothing but NumPy to be read.
`checkpoints/best.json` names the one that was evaluated best.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpad.errors import UserError
from rlpad.files import sync_directory, write_atomically, write_synced
from rlpad.types import NestedArray

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A snapshot on disk: its folder and the actor steps in its name."""

    path: Path
    actor_steps: int


def write_snapshot(
    run_dir: str | Path,
    variables: Mapping[str, NestedArray],
    *,
    actor_steps: int,
    learner_steps: int,
    final: bool = False,
) -> Snapshot:
    """Writes variables to a new folder; it appears complete or not at all, and replaces nothing.

    Args:
      run_dir: the run directory.
      variables: nests of arrays (dicts, lists, tuples and named tuples) by name.
      actor_steps: actor steps of the whole run at this moment.
      learner_steps: learner steps of the variables.
      final: whether these are the last ones of the run; goes into the name.

    Raises:
      TypeError: a nest holds something else.
    """
    leaves: list[np.ndarray] = []
    structure = {name: _encode(nest, leaves) for name, nest in variables.items()}
    meta = {
        "format": FORMAT,
        "actor_steps": actor_steps,
        "learner_steps": learner_steps,
        "final": final,
        "dtypes": [leaf.dtype.name for leaf in leaves],
        "structure": structure,
    }
    checkpoints = Path(run_dir) / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    temporary = checkpoints / f".policy-{uuid.uuid4().hex[:12]}.tmp"
    temporary.mkdir()
    try:
        buffer = io.BytesIO()
        # Foreign dtypes such as bfloat16 are stored as raw bytes; the JSON says what they are.
        np.savez(buffer, **{f"leaf_{i}": _storable(leaf) for i, leaf in enumerate(leaves)})
        write_synced(temporary / "variables.npz", buffer.getvalue())
        write_synced(temporary / "snapshot.json", json.dumps(meta, indent=1).encode())
        sync_directory(temporary)
        path = _rename_to_free_name(temporary, f"policy-{actor_steps:012d}{'-final' if final else ''}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(checkpoints)
    return Snapshot(path, actor_steps)


def _rename_to_free_name(temporary: Path, name: str) -> Path:
    number = 1
    while True:
        path = temporary.with_name(name if number == 1 else f"{name}-{number}")
        number += 1
        if path.exists():
            continue
        try:
            os.rename(temporary, path)
        except OSError:
            if path.exists():
                continue
            raise
        return path


def read_snapshot(path: str | Path) -> tuple[dict[str, NestedArray], dict[str, Any]]:
    """Returns a snapshot's variables by name, and its counts.

    Raises:
      UserError: there is no snapshot, or one of a format that this version can't read.
    """
    folder = Path(path)
    try:
        meta = json.loads((folder / "snapshot.json").read_text())
    except FileNotFoundError as error:
        raise UserError(f"no policy snapshot at {str(folder)!r}") from error
    if meta["format"] != FORMAT:
        raise UserError(f"snapshot {str(folder)!r} has format {meta['format']}, this version reads {FORMAT}")
    with np.load(folder / "variables.npz", allow_pickle=False) as stored:
        leaves = [_restore(stored[f"leaf_{i}"], name) for i, name in enumerate(meta["dtypes"])]
    structure = meta.pop("structure")
    return {name: _decode(nest, leaves) for name, nest in structure.items()}, meta


def list_snapshots(run_dir: str | Path) -> list[Snapshot]:
    """Returns a run's snapshots, in the order of their actor steps and then of their names."""
    found = []
    for path in (Path(run_dir) / "checkpoints").glob("policy-*"):
        steps = path.name.split("-")[1]
        if steps.isdigit() and (path / "snapshot.json").is_file():
            found.append(Snapshot(path, int(steps)))
    return sorted(found, key=lambda snapshot: (snapshot.actor_steps, snapshot.path.name))


def mark_best(run_dir: str | Path, snapshot: str, mean: float, episodes: int) -> None:
    """Notes that a snapshot's evaluation is the best so far, unless a better one has been noted."""
    path = Path(run_dir) / "checkpoints" / "best.json"
    if path.is_file() and json.loads(path.read_text())["episode_return_mean"] > mean:
        return
    row = {"snapshot": snapshot, "episode_return_mean": mean, "episodes": episodes}
    write_atomically(path, (json.dumps(row, indent=2) + "\n").encode())


def best_snapshot(run_dir: str | Path) -> Snapshot | None:
    """Returns the snapshot that was evaluated best, or None if none was evaluated."""
    path = Path(run_dir) / "checkpoints" / "best.json"
    if not path.is_file():
        return None
    name = json.loads(path.read_text())["snapshot"]
    return next((snapshot for snapshot in list_snapshots(run_dir) if snapshot.path.name == name), None)


def _encode(nest: NestedArray, leaves: list[np.ndarray]) -> Any:
    if isinstance(nest, Mapping):
        if not all(isinstance(key, str) for key in nest):
            raise TypeError(f"keys of a snapshot's dicts must be strings, got {list(nest)}")
        return {"dict": {key: _encode(child, leaves) for key, child in nest.items()}}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        kind = type(nest)
        return {
            "named": f"{kind.__module__}:{kind.__qualname__}",
            "fields": {name: _encode(child, leaves) for name, child in zip(nest._fields, nest, strict=True)},
        }
    if isinstance(nest, list | tuple):
        sequence = "list" if isinstance(nest, list) else "tuple"
        return {sequence: [_encode(child, leaves) for child in nest]}
    if nest is None:
        return {"none": True}
    array = np.asarray(nest)
    if array.dtype.kind == "O":
        raise TypeError(f"a snapshot holds arrays, got {type(nest).__qualname__}")
    leaves.append(array)
    return {"leaf": len(leaves) - 1}


def _decode(node: dict[str, Any], leaves: list[np.ndarray]) -> NestedArray:
    if "leaf" in node:
        return leaves[node["leaf"]]
    if "dict" in node:
        return {key: _decode(child, leaves) for key, child in node["dict"].items()}
    if "list" in node:
        return [_decode(child, leaves) for child in node["list"]]
    if "tuple" in node:
        return tuple(_decode(child, leaves) for child in node["tuple"])
    if "named" in node:
        module, _, name = node["named"].partition(":")
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        return kind(**{field: _decode(child, leaves) for field, child in node["fields"].items()})
    return None


def _storable(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "V":
        return array
    return array.view(np.dtype(f"V{array.dtype.itemsize}"))


def _restore(array: np.ndarray, dtype: str) -> np.ndarray:
    if array.dtype.kind != "V":
        return array
    import ml_dtypes

    return array.view(np.dtype(getattr(ml_dtypes, dtype)))

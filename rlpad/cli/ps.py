"""`rlpad ps`: shows which launched programs run, and where their nodes stand."""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlpad.cli.launched import ask_status, find_launches, how_it_stands, open_launch
from rlpad.cli.parse import parse
from rlpad.cli.text import count, duration, shown, table
from rlpad.errors import UserError
from rlpad.launch import NodeStatus, linux
from rlpad.launch.control import ELSEWHERE, RUNNING, LaunchRecord

#: Seconds over which the use of CPUs is measured.
SAMPLE_SECONDS = 0.3
#: Launching processes that are asked at the same time.
ASKED_AT_ONCE = 16
#: Of an experiment's run.json, what is told.
_EXPERIMENT = ("status", "reason", "actor_steps", "learner_steps", "restarts")


@dataclasses.dataclass(frozen=True)
class PsFlags:
    """Flags of `rlpad ps`."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RUN")] = None
    """Run directory whose nodes to show, one a line; without it the runs below --root are listed."""
    root: str = "runs"
    """Folder below which runs are looked for."""
    all: bool = False
    """List runs that have ended, too."""
    json: bool = False
    """Print JSON: a list of runs, or one object for RUN."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process uses: CPUs in per cent of one, and memory (its share where it shares pages); None if unknown."""

    cpu_percent: float | None = None
    memory_bytes: int | None = None


def main(arguments: Sequence[str]) -> int:
    """Prints the runs below a folder, or the nodes of one run."""
    flags = parse(
        PsFlags,
        arguments,
        prog="rlpad ps",
        description=(
            "Shows which launched programs run, and where their nodes stand.\n\n"
            "Exit codes: 0 if it was shown, 2 for a request that can't be carried out."
        ),
    )
    if flags.run is not None:
        view = view_of_run(flags.run)
        print(json.dumps(view, indent=2) if flags.json else "\n".join(render_run(view)))
        return 0
    root = Path(flags.root)
    if not root.is_dir() and flags.root != PsFlags.root:
        raise UserError(f"--root expects a folder, got {flags.root!r}")
    found = find_launches(root)
    views = _views({run: record for run, record in found.items() if flags.all or record.state == RUNNING})
    if flags.json:
        print(json.dumps(views, indent=2))
    elif views:
        print("\n".join(render_list(views)))
    else:
        ended = f" ({count(len(found), 'run')} ended: rlpad ps --all)" if found else ""
        print(f"nothing runs below {flags.root}{ended}")
    return 0


def _views(launches: Mapping[Path, LaunchRecord]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        statuses = pool.map(_status, launches.values())
        views = [summary(run, record, nodes) for (run, record), nodes in zip(launches.items(), statuses, strict=True)]
    return sorted(views, key=lambda view: (view["status"] != RUNNING, view["started"]))


def view_of_run(run: str) -> dict[str, Any]:
    """Returns what is shown of one run, nodes and processes included.

    Raises:
      UserError: there is no launch in this folder.
    """
    record = open_launch(run)
    nodes = _status(record)
    known = nodes or {}
    pids = [record.pid, *(status.pid for status in known.values() if status.pid is not None)]
    usage = usages(pids) if record.state == RUNNING else {}
    return {
        **summary(Path(run), record, nodes),
        **dataclasses.asdict(usage.get(record.pid, Usage())),
        "nodes": [
            {"name": name, "group": group, **_node(known.get(name), usage)}
            for group, names in record.nodes.items()
            for name in names
        ],
    }


def _status(record: LaunchRecord) -> dict[str, NodeStatus] | None:
    record.clear_remains()
    return ask_status(record) if record.state == RUNNING else None


def _node(status: NodeStatus | None, usage: Mapping[int, Usage]) -> dict[str, Any]:
    row = dict.fromkeys(("state", "epoch", "pid")) if status is None else dataclasses.asdict(status)
    return {**row, **dataclasses.asdict(usage.get(row["pid"] or 0, Usage()))}


def summary(run: Path, record: LaunchRecord, nodes: Mapping[str, NodeStatus] | None) -> dict[str, Any]:
    """Returns what the list tells of a run, in plain Python.

    Args:
      run: its run directory.
      record: what its launching process left there.
      nodes: where its nodes stand, if that's known.
    """
    up = 0 if record.state not in (RUNNING, ELSEWHERE) else None
    if nodes is not None:
        up = sum(status.up for status in nodes.values())
    return {
        "run": str(run),
        "program": record.program,
        "launcher": record.launcher,
        "host": record.host,
        "pid": record.pid,
        "started": record.started,
        "ended": record.ended,
        "status": record.state,
        "description": how_it_stands(record),
        "nodes_up": up,
        "nodes_total": sum(map(len, record.nodes.values())),
        "experiment": _experiment(run),
    }


def _experiment(run: Path) -> dict[str, Any] | None:
    from rlpad.tracking.run_directory import RunDirectory

    try:
        row = RunDirectory(run).read()
    except (FileNotFoundError, ValueError):  # no experiment, or one that is just being made
        return None
    return {key: row.get(key) for key in _EXPERIMENT} if isinstance(row, dict) else None


def usages(pids: Iterable[int]) -> dict[int, Usage]:
    """Measures what processes use; takes `SAMPLE_SECONDS`."""
    began = time.monotonic()
    before = {pid: linux.cpu_seconds(pid) for pid in pids}
    time.sleep(SAMPLE_SECONDS)
    seconds = time.monotonic() - began
    found = {}
    for pid, earlier in before.items():
        now = linux.cpu_seconds(pid)
        percent = None if now is None or earlier is None else round(100 * (now - earlier) / seconds, 1)
        found[pid] = Usage(percent, linux.memory_bytes(pid))
    return found


def render_list(views: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns one line for each run, under a line of heads."""
    rows = [
        [
            shown(Path(view["run"])),
            view["program"],
            view["launcher"],
            _local_time(view["started"]),
            f"{_number(view['nodes_up'])}/{view['nodes_total']}",
            " · ".join([_how(view), *_steps(view)]),
        ]
        for view in views
    ]
    return table(["RUN", "PROGRAM", "LAUNCHER", "SINCE", "NODES", "STATUS"], rows, right=["NODES"])


def render_run(view: Mapping[str, Any]) -> list[str]:
    """Returns two or three lines about a run, and one for each node while it goes on."""
    since = _local_time(view["started"])
    head = [shown(Path(view["run"])), view["program"], view["launcher"], f"since {since}", *_steps(view)]
    lines = [" · ".join(head)]
    if view["status"] != RUNNING:
        return [*lines, _how(view)]
    seconds = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(view["started"])).total_seconds()
    up = f"{_number(view['nodes_up'])}/{view['nodes_total']} nodes up"
    lines.append(f"{_how(view)} for {duration(seconds)} · {up}")
    lines.append(f"launching process {view['pid']}: {_cpu(view)} CPU, {_memory(view)}")
    rows = [
        [
            node["name"],
            node["state"] or "unknown",
            _number(node["epoch"] and node["epoch"] - 1),
            _number(node["pid"], ""),
            _cpu(node),
            _memory(node),
        ]
        for node in view["nodes"]
    ]
    columns = ["NODE", "STATE", "RESTARTS", "PID", "CPU", "MEMORY"]
    return [*lines, "", *table(columns, rows, right=columns[2:])]


def _how(view: Mapping[str, Any]) -> str:
    silent = view["status"] == RUNNING and view["nodes_up"] is None
    return f"{view['description']}, but its launching process doesn't answer" if silent else view["description"]


def _steps(view: Mapping[str, Any]) -> list[str]:
    experiment = view["experiment"] or {}
    return [
        f"{experiment[key]:,} {key.replace('_', ' ')}"
        for key in ("actor_steps", "learner_steps")
        if isinstance(experiment.get(key), int)
    ]


def _local_time(moment: str) -> str:
    return datetime.datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _number(number: int | None, separator: str = ",") -> str:
    return "-" if number is None else f"{number:{separator}}"


def _cpu(row: Mapping[str, Any]) -> str:
    return "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}%"


def _memory(row: Mapping[str, Any]) -> str:
    return "-" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 2**20:,.0f} MiB"

"""The function that launches a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlpad.errors import nearest
from rlpad.launch import launchpad
from rlpad.launch.address import SimpleLocalAddressBuilder, bind_addresses
from rlpad.launch.errors import LaunchError
from rlpad.launch.foreground import check_debug
from rlpad.launch.launchpad import LaunchType, PythonProcess
from rlpad.launch.program import Program
from rlpad.launch.resources import Resources
from rlpad.launch.rpc.codec import dump_by_value
from rlpad.launch.run import Run

LAUNCHERS = ("inline", "threads", "processes")
#: Seconds from a stop to the end: those who ignore it are killed in time for that.
STOP_NOTICE_SECONDS = 9.0
#: Seconds without a sign of life after which a node counts as stuck; a compiler may hold the interpreter for long.
HEARTBEAT_TIMEOUT_SECONDS = 120.0
#: A sign of life comes each second; a shorter bound than this would kill nodes that are only slow.
LEAST_HEARTBEAT_TIMEOUT_SECONDS = 2.0


def launch(
    program: Program | Sequence[Program],
    launcher: str | LaunchType | None = None,
    *,
    run_dir: str | None = None,
    seed: int = 0,
    preload: Sequence[str] = (),
    stop_notice_s: float = STOP_NOTICE_SECONDS,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_SECONDS,
    handle_signals: bool = True,
    test_serialization: bool = False,
    debug: str | None = None,
    debugger: str = "pdb",
    launch_type: str | LaunchType | None = None,
    local_resources: Mapping[str, PythonProcess | Resources] | None = None,
    test_case: Any = None,
    terminal: str | None = None,
    serialize_py_nodes: bool | None = None,
    xm_resources: Any = None,
) -> Run:
    """Launches a program.

    Args:
      program: what to run; Launchpad's list of one program is taken as well.
      launcher: `inline`, `threads` or `processes`, or one of Launchpad's names for the last two. By default what
        `--lp_launch_type` says if absl reads the command line, else `processes`.
      run_dir: folder for what the nodes leave behind; `processes` writes one log per node to its `logs/`. Its
        `launch.json` says what runs there, and how to see and stop it from outside (`rlpad ps`, `rlpad stop`).
      seed: seed of the program; every node gets one of its own from it.
      preload: modules that `processes` loads once, before its nodes are forked.
      stop_notice_s: seconds that nodes get to stop before they are killed and named.
      heartbeat_timeout_s: seconds without a sign of life (each node of `processes` gives one a second, from a thread of
        its own) after which a node is killed, and what its group's `on_failure` says happens. At least 2. Code that
        holds the interpreter lock for longer, such as some compilers, must fit in. A node under a debugger has no such
        bound.
      handle_signals: whether Ctrl-C and SIGTERM stop the program; only in the main thread.
      test_serialization: under `inline` and `threads`, send all that nodes pass to each other through the
        codec.
      debug: under `processes`, a node (its name) to run in the foreground of this terminal, under a debugger.
      debugger: `pdb`, which stops before the node is built and again where it raises; or `debugpy`, which waits until
        an editor is attached at 127.0.0.1:5678.
      launch_type: the same as `launcher`.
      local_resources: under `processes`, resources of groups by label, instead of (`Resources`) or besides
        (`PythonProcess`) those that the program gives them.
      test_case: a `unittest.TestCase`, at whose end the program is stopped.
      terminal: Launchpad's name of a terminal; nothing is opened, as output of nodes goes to the run directory.
      serialize_py_nodes: whether to check before the start, under any launcher, that nodes can be pickled; by default
        for `test_mt`.
      xm_resources: must be None.

    Returns:
      The run; wait for it with `run.wait()`. A script that doesn't goes on until the run has ended, unless it ends by
      an exception, which stops the run.

    Raises:
      LaunchError: the launcher is unknown, the program can't be launched as it stands, or another one runs in
        `run_dir`; nothing has started.
    """
    program = launchpad.check_programs(program)
    asked = _asked(launcher, launch_type)
    kind = _kind(asked)
    if not stop_notice_s > 0:
        raise LaunchError(f"stop_notice_s must be above 0, got {stop_notice_s}")
    if not heartbeat_timeout_s >= LEAST_HEARTBEAT_TIMEOUT_SECONDS:
        least = f"at least {LEAST_HEARTBEAT_TIMEOUT_SECONDS:g} seconds"
        raise LaunchError(f"heartbeat_timeout_s must be {least}, got {heartbeat_timeout_s}")
    if xm_resources is not None:
        raise LaunchError("xm_resources is for Vertex AI, which rlpad doesn't launch on")
    program.check()
    if debug is not None:
        check_debug(program, kind, debug, debugger)
    resources = launchpad.apply_resources(program, local_resources or {})
    if serialize_py_nodes or (serialize_py_nodes is None and asked == LaunchType.TEST_MULTI_THREADING.value):
        _check_pickles(program)
    if terminal is not None:
        launchpad.check_terminal(terminal)
    bind_addresses(program, SimpleLocalAddressBuilder())

    def start(folder: str | None) -> Run:
        if kind != "processes":
            return _start_here(kind, program, run_dir, seed, handle_signals, stop_notice_s, test_serialization)
        from rlpad.launch.launchers.processes import ProcessesRun

        return ProcessesRun(
            program,
            run_dir=run_dir,
            folder=folder,
            seed=seed,
            resources=resources,
            preload=preload,
            handle_signals=handle_signals,
            stop_notice_s=stop_notice_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            debug=debug,
            debugger=debugger,
        )

    run = _start_seen(kind, program, run_dir, start)
    if test_case is not None:
        test_case.addCleanup(run.kill)
    return run


def _start_seen(kind: str, program: Program, run_dir: str | None, start: Callable[[str | None], Run]) -> Run:
    """Starts a run, and lets it be seen and stopped through its run directory."""
    if run_dir is None:
        return start(None)
    from rlpad.launch.control import launch_controlled

    return launch_controlled(program, kind, run_dir, start)


def _start_here(
    kind: str,
    program: Program,
    run_dir: str | None,
    seed: int,
    handle_signals: bool,
    stop_notice_s: float,
    test_serialization: bool,
) -> Run:
    """Starts a run whose nodes are all in this process."""
    from rlpad.launch.launchers.inline import InlineRun
    from rlpad.launch.launchers.local import Parts
    from rlpad.launch.launchers.threads import ThreadsRun

    parts = Parts.whole(program, run_dir, seed)
    if kind == "inline":
        return InlineRun(parts, handle_signals=handle_signals, test_serialization=test_serialization)
    return ThreadsRun(
        parts, handle_signals=handle_signals, stop_notice_s=stop_notice_s, test_serialization=test_serialization
    )


def _asked(launcher: str | LaunchType | None, launch_type: str | LaunchType | None) -> str:
    if launcher is not None and launch_type is not None and launcher != launch_type:
        raise LaunchError(f"launcher and launch_type are the same thing, got {launcher!r} and {launch_type!r}")
    asked = launcher or launch_type or launchpad.LAUNCH_TYPE.value or "processes"
    return str(getattr(asked, "value", asked))


def _kind(asked: str) -> str:
    """Returns rlpad's name of a launcher."""
    if asked in LAUNCHERS:
        return asked
    for launch_type, kind in launchpad.LAUNCHER_OF.items():
        if asked == launch_type.value:
            return kind
    raise LaunchError(f"unknown launcher {asked!r}; expected {', '.join(LAUNCHERS)}{nearest(asked, LAUNCHERS)}")


def _check_pickles(program: Program) -> None:
    for node in program.nodes.values():
        try:
            dump_by_value(node)
        except Exception as error:
            text = (
                f"The nodes associated to {node.group} ({type(node).__name__}) were not serializable using cloudpickle."
            )
            raise LaunchError(f"{text} {type(error).__name__}: {error}") from error

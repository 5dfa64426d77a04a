"""The function that launches a program."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rlpad.errors import nearest
from rlpad.launch.errors import LaunchError
from rlpad.launch.program import Program
from rlpad.launch.run import Run

#: Launchers by name; the last four are Launchpad's names for the same things.
LAUNCHERS = {
    "inline": "inline",
    "threads": "threads",
    "processes": "processes",
    "local_mt": "threads",
    "test_mt": "threads",
    "local_mp": "processes",
    "test_mp": "processes",
}
#: Seconds from a stop to the end: those who ignore it are killed in time for that.
STOP_NOTICE_SECONDS = 9.0


def launch(
    program: Program,
    launcher: str = "processes",
    *,
    run_dir: str | None = None,
    seed: int = 0,
    preload: Sequence[str] = (),
    stop_notice_s: float = STOP_NOTICE_SECONDS,
    handle_signals: bool = True,
    test_serialization: bool = False,
) -> Run:
    """Launches a program.

    Args:
      program: what to run.
      launcher: `inline`, `threads` or `processes`.
      run_dir: folder for what the nodes leave behind; `processes` writes one log per node to its `logs/`. Its
        `launch.json` says what runs there, and how to see and stop it from outside (`rlpad ps`, `rlpad stop`).
      seed: seed of the program; every node gets one of its own from it.
      preload: modules that `processes` loads once, before its nodes are forked.
      stop_notice_s: seconds that nodes get to stop before they are killed and named.
      handle_signals: whether Ctrl-C and SIGTERM stop the program; only in the main thread.
      test_serialization: under `inline` and `threads`, send all that nodes pass to each other through the
        codec.

    Returns:
      The run; wait for it with `run.wait()`.

    Raises:
      LaunchError: the launcher is unknown, the program can't be launched as it stands, or another one runs in
        `run_dir`; nothing has started.
    """
    kind = LAUNCHERS.get(str(getattr(launcher, "value", launcher)))
    if kind is None:
        known = ("inline", "threads", "processes")
        hint = nearest(str(launcher), known)
        raise LaunchError(f"unknown launcher {launcher!r}; expected {', '.join(known)}{hint}")
    if not stop_notice_s > 0:
        raise LaunchError(f"stop_notice_s must be above 0, got {stop_notice_s}")
    program.check()
    start = functools.partial(
        _start,
        kind,
        program,
        run_dir=run_dir,
        seed=seed,
        preload=preload,
        stop_notice_s=stop_notice_s,
        handle_signals=handle_signals,
        test_serialization=test_serialization,
    )
    if run_dir is None:
        return start()
    from rlpad.launch.control import launch_controlled

    return launch_controlled(program, kind, run_dir, start)


def _start(
    kind: str,
    program: Program,
    *,
    run_dir: str | None,
    seed: int,
    preload: Sequence[str],
    stop_notice_s: float,
    handle_signals: bool,
    test_serialization: bool,
) -> Run:
    if kind == "inline":
        from rlpad.launch.launchers.inline import InlineRun

        return InlineRun(
            program,
            run_dir=run_dir,
            seed=seed,
            handle_signals=handle_signals,
            test_serialization=test_serialization,
        )
    if kind == "threads":
        from rlpad.launch.launchers.threads import ThreadsRun

        return ThreadsRun(
            program,
            run_dir=run_dir,
            seed=seed,
            handle_signals=handle_signals,
            stop_notice_s=stop_notice_s,
            test_serialization=test_serialization,
        )
    from rlpad.launch.launchers.processes import ProcessesRun

    return ProcessesRun(
        program,
        run_dir=run_dir,
        seed=seed,
        preload=preload,
        handle_signals=handle_signals,
        stop_notice_s=stop_notice_s,
    )

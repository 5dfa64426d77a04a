"""What becomes of programs when the script that launched them ends: they run on until they end themselves.

So it was with Launchpad. A script that ends by an exception stops its programs, and so does a person who leaves an
interactive session.
"""

from __future__ import annotations

import atexit

# Before the hook below: hooks are called in reverse order, and executors refuse work once they were.
import concurrent.futures.thread  # noqa: F401
import contextlib
import os
import sys
import threading
import traceback
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlpad.launch.run import Run

#: Seconds between looks at runs that go on.
_PERIOD_SECONDS = 0.1

# Runs that go on, or that have failed without anybody having heard of it; with the last error of the main thread
# before each. Python tells only the last one, and it may be older: one at a prompt, or of a test.
_runs: dict[Run, BaseException | None] = {}


def add(run: Run) -> None:
    """Has the process wait for a run at its end, unless somebody hears before how the run ended."""
    _runs[run] = _last_error()


def remove(run: Run) -> None:
    """Says that somebody has heard how a run ended, or that there's nothing to hear."""
    _runs.pop(run, None)


def _last_error() -> BaseException | None:
    return getattr(sys, "last_value", None)


def _leave() -> None:
    """Waits for the runs; called in the main thread after the script's last line, before threads are joined."""
    runs = dict(_runs)
    if not runs:
        return
    for run, earlier in runs.items():
        _stop_if_needed(run, earlier)
    if any(run.in_threads for run in runs):
        _check_threads()
    _wait(list(runs))
    code = 0
    for run in runs:
        outcome = run.outcome
        if outcome is None or not outcome.exit_code:
            continue
        code = code or outcome.exit_code
        if outcome.error is not None:
            traceback.print_exception(outcome.error)
        print(f"rlpad: {outcome.status}: {outcome.reason}", file=sys.stderr, flush=True)
    if code:
        atexit.register(_exit, code)  # as the last one, and so called first, when threads have been waited for


def _stop_if_needed(run: Run, earlier: BaseException | None) -> None:
    error = _last_error()
    if hasattr(sys, "ps1") or sys.flags.interactive:
        run.stop("the session that launched it has ended", "interrupted")
    elif error is not None and error is not earlier:
        if isinstance(error, KeyboardInterrupt):
            run.interrupt()
        else:
            run.stop(f"the script that launched it failed: {type(error).__name__}: {error}".splitlines()[0], "failed")
    elif _child_failed():
        run.stop("the process that launched it failed", "failed")


def _child_failed() -> bool:
    """Whether this is a child of `multiprocessing` whose function has raised; it tells that nobody."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is BaseProcess._bootstrap.__code__:  # type: ignore[attr-defined]
            return frame.f_locals.get("exitcode") not in (0, None)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _check_threads() -> None:
    try:
        threading.Thread(target=int, name="rlpad-check", daemon=True).start()
    except RuntimeError:
        version = sys.version.split()[0]
        print(
            f"rlpad: Python {version} starts no threads after the end of a script, which nodes may need; "
            "end the script with the wait() of what launch() returned, or take 3.12.2 or later",
            file=sys.stderr,
            flush=True,
        )


def _wait(runs: list[Run]) -> None:
    while going := [run for run in runs if not _has_ended(run)]:
        for run in runs:
            ended = run.outcome
            if ended is not None and ended.exit_code > 128:  # a signal is meant for the script, and so for all
                for other in going:
                    other.request_end(ended)


def _has_ended(run: Run) -> bool:
    try:
        return run.ended_within(_PERIOD_SECONDS)
    except KeyboardInterrupt:
        # Without handlers of ours (a launch in another thread, say) Python's own has raised it.
        if not run.interrupt():
            run.kill()
        return False


def _exit(code: int) -> None:
    """Ends the process as Python would, but for the code: that of a script can't be changed any more."""
    atexit.unregister(_exit)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, at either end
            stream.flush()
    os._exit(code)


# Not with `atexit`: by then executors refuse work, and newer Pythons threads.
threading._register_atexit(_leave)  # type: ignore[attr-defined]
# They are the parent's.
os.register_at_fork(after_in_child=_runs.clear)

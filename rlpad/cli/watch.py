"""Runs an experiment under the live view and says in a few lines what came of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rlpad.cli.interrupts import last_act
from rlpad.cli.live import Watcher, make_display
from rlpad.cli.text import count, duration, shown
from rlpad.errors import UserError
from rlpad.experiment.config import ExperimentConfig, Scale
from rlpad.experiment.run import RunResult, run_experiment
from rlpad.launch import NodeFailed, RemoteTraceback, StalledError
from rlpad.tracking.loggers import check_extras
from rlpad.tracking.run_directory import RunDirectory
from rlpad.tracking.snapshots import best_snapshot, list_snapshots

if TYPE_CHECKING:
    from rlpad.experiment.setup import Setup

#: How `rlpad.launch` notes on an exception which node raised it.
_NOTE = "raised in node "

#: Modules that drive nodes; their frames say nothing about what a node raised.
_DRIVING = ("rlpad.cli.", "rlpad.experiment.run", "rlpad.launch.")

KILLED_EXIT = 130


def run_watched(config: ExperimentConfig, scale: Scale, flags: Any) -> RunResult:
    """Runs an experiment, shows how it goes and prints what came of it.

    With `flags.json`, stdout is left to the caller's JSON, and all that is shown goes to stderr.

    Args:
      config: what to run.
      scale: how big.
      flags: has `launcher`, `replay`, `run_dir`, `tensorboard`, `wandb`, `debug`, `debugger` and `json`.

    Returns:
      How the run ended; one that failed has status `failed` and exit code 1, and is explained on stderr.

    Raises:
      UserError: something about the request is wrong; nothing has been started or written.
    """
    check_extras(flags.tensorboard, flags.wandb)
    session = _Session(config, scale, sys.stderr if flags.json else sys.stdout, shows_progress=flags.debug is None)
    with last_act(session.ended_by_signal):
        return _run_watched(session, config, scale, flags)


def _run_watched(session: _Session, config: ExperimentConfig, scale: Scale, flags: Any) -> RunResult:
    try:
        result = run_experiment(
            config,
            scale,
            flags.launcher,
            replay_backend=flags.replay,
            run_dir=flags.run_dir,
            tensorboard=flags.tensorboard,
            wandb=flags.wandb,
            debug=flags.debug,
            debugger=flags.debugger,
            watch=session.watch,
            on_start=session.start,
        )
    except KeyboardInterrupt:
        session.close_view("interrupted")
        if session.directory is None:
            print("rlpad: interrupted before the run started", file=sys.stderr)
            raise SystemExit(KILLED_EXIT) from None
        return session.killed(session.directory)
    except Exception as error:
        session.close_view("failed")
        if session.directory is None or (isinstance(error, UserError) and failed_node(error) is None):
            raise
        return session.failed(session.directory, error)
    session.close_view(result.status, (result.actor_steps, result.learner_steps))
    session.finish(result)
    return result


class _Session:
    """What is said from the start of a run to its end."""

    def __init__(self, config: ExperimentConfig, scale: Scale, out: TextIO, *, shows_progress: bool):
        self._config, self._scale, self._out = config, scale, out
        # Lines between a debugger's prompts would be in the way.
        self._shows_progress = shows_progress
        self._began = time.monotonic()
        self._watcher: Watcher | None = None
        self.directory: RunDirectory | None = None

    def start(self, directory: RunDirectory, setup: Setup, launcher: str) -> None:
        self.directory = directory
        self._say(start_line(self._config, self._scale, launcher, setup.replay_backend, directory.path))
        if setup.replay_backend == "reverb":
            self._say(
                "reverb replay: this run can't be reproduced bit for bit, and its server listens on all "
                "interfaces without authentication"
            )
        self._began = time.monotonic()
        if self._shows_progress:
            self._watcher = Watcher(make_display(self._out), self._config.steps)

    def watch(self, progress: dict[str, Any], nodes: dict[str, Any]) -> None:
        if self._watcher is not None:
            with self._output_may_end():
                self._watcher(progress, nodes)

    def close_view(self, phase: str, counts: tuple[int, int] | None = None) -> None:
        if self._watcher is not None:
            with self._output_may_end():
                self._watcher.close(phase, counts)
            self._watcher = None

    @contextlib.contextmanager
    def _output_may_end(self) -> Iterator[None]:
        """A terminal that is gone, or a `| head` that has seen enough, is no reason to end a run."""
        try:
            yield
        except OSError:
            self._watcher = None
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())

    def ended_by_signal(self, reason: str) -> None:
        """Leaves the truth in run.json if a signal ends the process before the run could be stopped."""
        if self.directory is not None and self.directory.read()["status"] == "running":
            self.directory.update(status="interrupted", reason=reason)

    def finish(self, result: RunResult) -> None:
        directory = RunDirectory(result.run_dir)
        curve = _draw(directory, f"{self._config.agent} on {self._config.env_name}, seed {self._config.seed}")
        seconds = time.monotonic() - self._began
        for line in summary(result, seconds, self._config.final_eval_episodes, curve):
            self._say(line)

    def killed(self, directory: RunDirectory) -> RunResult:
        reason = "killed by Ctrl-C"
        directory.update(status="interrupted", reason=reason)
        # Who presses twice wants it to end now: no picture, no summary.
        self._say(f"{reason}; what was written until then is in {shown(directory.path)}")
        return _result(directory, "interrupted", reason, KILLED_EXIT)

    def failed(self, directory: RunDirectory, error: Exception) -> RunResult:
        _draw(directory, f"{self._config.agent} on {self._config.env_name}, seed {self._config.seed}")
        print(explanation(error), file=sys.stderr)
        reason = failure(error)
        print(f"rlpad: error: {reason}; logs: {shown(directory.path / 'logs')}", file=sys.stderr)
        return _result(directory, "failed", reason, 1)

    def _say(self, line: str) -> None:
        with self._output_may_end():
            print(line, file=self._out, flush=True)


def start_line(config: ExperimentConfig, scale: Scale, launcher: str, replay_backend: str, run_dir: Path) -> str:
    """Says in one line what is run, how big, and where it's kept."""
    return " · ".join(
        [
            f"{config.agent} on {config.env_name}",
            launcher,
            f"{replay_backend} replay",
            f"{count(scale.num_actors, 'actor')} x {count(scale.envs_per_actor, 'env')}",
            f"seed {config.seed}",
            shown(run_dir),
        ]
    )


def summary(result: RunResult, seconds: float, episodes: int, curve: Path | None) -> list[str]:
    """Returns the lines that end a run; the last one is the command that evaluates its policy.

    Args:
      result: how it ended.
      seconds: wall time.
      episodes: episodes of each of the two evaluations at the end.
      curve: the learning curve, or None if there was nothing to draw.
    """
    lines = [
        f"{result.status}: {result.reason}",
        f"{result.actor_steps:,} actor steps, {result.learner_steps:,} learner steps in {duration(seconds)}",
    ]
    if result.status == "completed" and result.learner_steps == 0:
        lines.append("nothing was learnt: replay never held the min-replay-size transitions that learning begins with")
    for name, mean in (("final policy", result.final_mean), ("best policy", result.best_mean)):
        if mean is not None:
            lines.append(f"{name}: mean return {mean:.1f} over {count(episodes, 'fresh episode')}")
    if curve is not None:
        lines.append(f"learning curve: {shown(curve)}")
    snapshots = list_snapshots(result.run_dir)
    if not snapshots:
        return [*lines, "no policy was saved: the learner hadn't taken a step"]
    command = f"rlpad evaluate {shlex.quote(shown(result.run_dir))}"
    best = best_snapshot(result.run_dir)
    if result.status != "completed":
        saved = f"saved: {count(len(snapshots), 'policy snapshot')}, the latest at"
        lines.append(f"{saved} {snapshots[-1].actor_steps:,} actor steps")
    # What was never evaluated has no best.
    return [*lines, command if best is not None else f"{command} --snapshot latest"]


def failed_node(error: BaseException) -> str | None:
    """Returns the node that raised an exception, as the launcher noted on it, or None."""
    if isinstance(error, NodeFailed):
        return error.node
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return next((note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)), None)


def failure(error: BaseException) -> str:
    """Says in one line what failed."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    node = failed_node(error)
    if isinstance(error, NodeFailed | StalledError) or node is None:
        # Their messages name the nodes themselves.
        return text if isinstance(error, NodeFailed) else f"the run failed: {type(error).__name__}: {text}"
    name, comma, when = node.partition(",")
    return f"node {name} failed{comma and when}: {type(error).__name__}: {text}"


def explanation(error: BaseException) -> str:
    """Returns what failed and where: the node's label, and the traceback from its process."""
    node = failed_node(error)
    if isinstance(error, NodeFailed | StalledError):
        # No frames of ours say anything about a node that died or waits, and their messages name the nodes.
        return str(error)
    head = f"node {node}:" if node is not None else "the run failed:"
    if isinstance(error.__cause__, RemoteTraceback):
        return f"{head}\n{error.__cause__.text.strip()}"
    frames = _node_frames(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    # The label is printed above already.
    kept = [line for line in text.splitlines() if not line.startswith(_NOTE)]
    return "\n".join([head, *kept])


def _node_frames(frames: TracebackType | None) -> TracebackType | None:
    """Leaves out the leading frames in which the launching process drove the node."""
    at = frames
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith(_DRIVING):
        at = at.tb_next
    return at or frames


def _draw(directory: RunDirectory, title: str) -> Path | None:
    from rlpad.tracking.plots import plot_learning_curve

    try:
        return plot_learning_curve(directory, title)
    except Exception as error:  # a run is worth more than its picture
        print(f"rlpad: warning: the learning curve wasn't drawn: {error}", file=sys.stderr)
        return None


def _result(directory: RunDirectory, status: str, reason: str, exit_code: int) -> RunResult:
    row = directory.read()
    return RunResult(
        run_dir=directory.path,
        status=status,
        reason=reason,
        exit_code=exit_code,
        actor_steps=row["actor_steps"],
        learner_steps=row["learner_steps"],
        best_mean=None,
        final_mean=None,
    )

"""Runs an experiment under a launcher and keeps its run directory current."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpad import launch as lp
from rlpad.errors import UserError
from rlpad.experiment.config import ExperimentConfig, LauncherName, ReplayBackend, Scale
from rlpad.launch.foreground import check_debug
from rlpad.registry import make_builder
from rlpad.tracking.run_directory import RunDirectory, default_run_path

if TYPE_CHECKING:
    from rlpad.experiment.program import ExperimentProgram
    from rlpad.experiment.setup import Setup

#: Seconds between two looks at a run.
WATCH_PERIOD = 0.25


@dataclasses.dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
      run_dir: the run directory.
      status: `completed` or `interrupted`; a run that failed raises instead.
      reason: why it ended.
      exit_code: 0, or 130 or 143 for a run that a signal interrupted.
      actor_steps: environment steps taken.
      learner_steps: SGD steps taken.
      best_mean: mean return of the best snapshot on fresh episodes, or None.
      final_mean: mean return of the final parameters, or None.
    """

    run_dir: Path
    status: str
    reason: str
    exit_code: int
    actor_steps: int
    learner_steps: int
    best_mean: float | None
    final_mean: float | None


#: Called about four times a second with the coordinator's progress and every node's status.
Watcher = Callable[[dict[str, Any], dict[str, Any]], None]


def resolve_launcher(launcher: LauncherName, scale: Scale, debug: str | None = None) -> str:
    """Names the launcher: `auto` is inline for one actor, and processes for more or if a node is debugged.

    Raises:
      UserError: inline with several evaluators or actors is fine, an unknown name is not.
    """
    known = ("inline", "threads", "processes")
    if launcher == "auto":
        return "processes" if scale.num_actors > 1 or debug is not None else "inline"
    if launcher not in known:
        from rlpad.errors import nearest

        raise UserError(f"unknown launcher {launcher!r}; expected {', '.join(known)}{nearest(launcher, known)}")
    return launcher


def resolve_replay(backend: ReplayBackend, launcher: str) -> str:
    """Names the replay backend: `auto` is embedded for inline, else reverb wherever it's installed.

    Raises:
      UserError: reverb was asked for and isn't installed.
    """
    has_reverb = importlib.util.find_spec("reverb") is not None
    if backend == "auto":
        return "reverb" if launcher != "inline" and has_reverb else "embedded"
    if backend == "reverb" and not has_reverb:
        raise UserError(
            "replay 'reverb' needs the extra: pip install 'rlpad[reverb]' (Python 3.11, Linux x86-64); "
            "or use --replay embedded"
        )
    if backend not in ("reverb", "embedded"):
        raise UserError(f"unknown replay backend {backend!r}; expected auto, reverb or embedded")
    return backend


def prepare(
    config: ExperimentConfig,
    scale: Scale,
    *,
    replay_backend: str,
    run_dir: str | Path,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> Setup:
    """Resolves names and checks everything that can be checked before anything starts.

    Raises:
      UserError: the agent or environment is unknown, or they don't go together.
    """
    builder = make_builder(config.agent, config.agent_config)
    from rlpad.experiment.setup import Setup
    from rlpad.specs import make_environment_spec

    # JSON and every node see the settings that are really used.
    config = dataclasses.replace(config, agent_config=builder.config)
    setup = Setup(
        config=config,
        scale=scale,
        builder=builder,
        spec=None,  # type: ignore[arg-type]  # read from an environment that Setup makes
        replay_backend=replay_backend,
        run_dir=str(Path(run_dir).absolute()),
        tensorboard=tensorboard,
        wandb=wandb,
    )
    try:
        environment = setup.make_environment(config.seed)
    except UserError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        raise UserError(
            f"environment {config.env_name!r} can't be made: {type(error).__name__}: {text} "
            f"(raised at {where.filename}:{where.lineno})"
        ) from error
    try:
        spec = make_environment_spec(environment)
    finally:
        environment.close()
    builder.check(spec)
    return dataclasses.replace(setup, spec=spec)


def run_experiment(
    config: ExperimentConfig,
    scale: Scale | None = None,
    launcher: LauncherName = "auto",
    *,
    replay_backend: ReplayBackend = "auto",
    run_dir: str | Path | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
    debug: str | None = None,
    debugger: str = "pdb",
    watch: Watcher | None = None,
    on_start: Callable[[RunDirectory, Setup, str], None] | None = None,
) -> RunResult:
    """Runs an experiment to its end.

    Args:
      config: what to run.
      scale: how big; one actor and one evaluator by default.
      launcher: `inline`, `threads` or `processes`; `auto` is inline for one actor, else processes.
      replay_backend: `embedded` or `reverb`; `auto` is embedded for inline, else reverb where installed.
      run_dir: a directory that isn't used yet; one under `runs/` with agent, environment and time if None.
      tensorboard: also write TensorBoard events (extra `tensorboard`).
      wandb: also log to this Weights & Biases project (extra `wandb`).
      debug: a node to run in the foreground of this terminal under a debugger; see `rlpad.launch.launch`.
      debugger: `pdb` or `debugpy`.
      watch: called regularly with progress and node status.
      on_start: called once with the run directory, the resolved set-up and the launcher's name.

    Returns:
      How the run ended.

    Raises:
      UserError: something about the request is wrong; nothing has been started or written.
      Exception: what a node raised, with its label and traceback.
    """
    scale = scale or Scale()
    launcher_name = resolve_launcher(launcher, scale, debug)
    backend = resolve_replay(replay_backend, launcher_name)
    path = Path(run_dir) if run_dir is not None else default_run_path(config.agent, config.env_name, config.seed)
    setup = prepare(config, scale, replay_backend=backend, run_dir=path, tensorboard=tensorboard, wandb=wandb)
    from rlpad.acting.device import run_on_calling_thread
    from rlpad.experiment.program import make_program

    if launcher_name != "processes":
        run_on_calling_thread()
    built = make_program(setup)
    if debug is not None:
        check_debug(built.program, launcher_name, debug, debugger)
    directory = RunDirectory.create(
        path,
        {
            "experiment": setup.config,
            "scale": scale,
            "launcher": launcher_name,
            "replay_backend": backend,
            "agent_module": type(setup.builder).__module__,
        },
        sys.argv,
    )
    if on_start is not None:
        on_start(directory, setup, launcher_name)
    launch = functools.partial(lp.launch, launcher=launcher_name, seed=config.seed, debug=debug, debugger=debugger)
    return _Watched(directory, watch).run_program(built, launch)


class _Watched:
    """A run as the launching process sees it."""

    def __init__(self, directory: RunDirectory, watch: Watcher | None):
        self._directory = directory
        self._watch = watch
        self._progress: dict[str, Any] = {"counts": {"actor_steps": 0, "learner_steps": 0}}
        self._restarts = 0

    def run_program(self, built: ExperimentProgram, launch: Callable[..., lp.Run]) -> RunResult:
        """Launches the program, follows it to its end, and records how it ended, whatever happens."""
        run: lp.Run | None = None
        try:
            run = launch(built.program, run_dir=str(self._directory.path), preload=built.preload)
            try:
                self._follow(run, built.coordinator)
            finally:
                run.kill()
        except BaseException as error:
            outcome = run.outcome if run is not None else None
            if outcome is None:
                self._record(status="failed", reason=f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                self._record(status=outcome.status, reason=outcome.reason)
            raise
        outcome = run.outcome
        assert outcome is not None
        self._record(status=outcome.status, reason=outcome.reason)
        return self._result(outcome)

    def _follow(self, run: lp.Run, coordinator: lp.Handle) -> None:
        client = run.client(coordinator)
        written = 0.0
        while True:
            ended = run.wait(timeout=WATCH_PERIOD)
            self._look(run, client)
            if ended:
                return
            if time.monotonic() - written >= 1.0:
                written = time.monotonic()
                self._record(status="running", reason="")

    def _look(self, run: lp.Run, client: Any) -> None:
        nodes = run.status()
        self._restarts = sum(max(0, status.epoch - 1) for status in nodes.values())
        try:
            self._progress = client.progress(timeout=5.0)
        except (lp.PeerGone, lp.CallTimeout):
            return  # the counter starts after and ends before the run; the last known progress stands
        if self._watch is not None:
            self._watch(self._progress, nodes)

    def _counts(self) -> dict[str, int]:
        """The counts that the coordinator left at its end, or the last that were seen."""
        left = self._directory.read_metrics("counter")
        return left[-1] if left else self._progress["counts"]

    def _record(self, *, status: str, reason: str) -> None:
        counts = self._counts()
        self._directory.update(
            status=status,
            reason=reason,
            actor_steps=counts["actor_steps"],
            learner_steps=counts["learner_steps"],
            restarts=self._restarts,
        )

    def _result(self, outcome: lp.Outcome) -> RunResult:
        rows = {
            row["kind"]: row
            for path in sorted((self._directory.path / "metrics").glob("evaluator*.jsonl"))
            for row in self._directory.read_metrics(path.stem)
        }
        counts = self._counts()
        return RunResult(
            run_dir=self._directory.path,
            status=outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            actor_steps=counts["actor_steps"],
            learner_steps=counts["learner_steps"],
            best_mean=rows["best"]["episode_return_mean"] if "best" in rows else None,
            final_mean=rows["final"]["episode_return_mean"] if "final" in rows else None,
        )

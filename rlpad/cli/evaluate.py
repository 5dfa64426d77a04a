"""`rlpad evaluate`: runs the policy that a run saved, and films it if asked to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import dm_env
import numpy as np
import tyro

from rlpad.cli.parse import parse
from rlpad.cli.text import count
from rlpad.errors import UserError, nearest
from rlpad.experiment.config import EVALUATION_STEPS, EVALUATION_STREAMS
from rlpad.types import NestedArray, NestedSpec

#: Frames per second of a video, where the environment doesn't say.
DEFAULT_FPS = 30.0


@dataclasses.dataclass(frozen=True)
class EvaluateFlags:
    """Flags of `rlpad evaluate`."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory, as given to or made by rlpad train."""
    episodes: int = 20
    """Episodes to run, up to ten side by side."""
    max_steps: int = EVALUATION_STEPS
    """Steps after which an episode is cut."""
    snapshot: str = "best"
    """Which policy: best (at evaluation), latest, or the name of a folder under the run's checkpoints."""
    video: str | None = None
    """Write the first episode to this .mp4 file, which must not be there yet (extra video)."""
    seed: int = 0
    """Seed of the environments and of the policy; equal seeds give equal returns."""
    json: bool = False
    """Print one JSON object."""


def main(arguments: Sequence[str]) -> int:
    """Prints the return of a saved policy over fresh episodes."""
    flags = parse(
        EvaluateFlags,
        arguments,
        prog="rlpad evaluate",
        description="Runs the policy that a run saved on fresh episodes, and films the first if asked to.",
    )
    result = evaluate(flags)
    print(json.dumps(result) if flags.json else summary(result))
    return 0


def summary(result: dict[str, Any]) -> str:
    """Returns the result as one line."""
    line = (
        f"{result['env']} · {result['agent']} · snapshot {result['snapshot']} "
        f"({result['actor_steps']:,} actor steps): "
        f"return {result['episode_return_mean']:.1f} ± {result['episode_return_std']:.1f} "
        f"over {count(result['episodes'], 'episode')} "
        f"(min {result['episode_return_min']:.1f}, max {result['episode_return_max']:.1f})"
    )
    return line if result["video"] is None else f"{line}\nvideo of the first episode: {result['video']}"


def evaluate(flags: EvaluateFlags) -> dict[str, Any]:
    """Runs the episodes; returns the numbers, in plain Python.

    Raises:
      UserError: the request can't be carried out; found out before any episode is run.
    """
    if flags.episodes < 1:
        raise UserError(f"--episodes must be at least 1, got {flags.episodes}")
    if flags.max_steps < 1:
        raise UserError(f"--max-steps must be at least 1, got {flags.max_steps}")
    if not 0 <= flags.seed < 2**32:
        raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {flags.seed}")
    _check_run(flags.run)
    if flags.video is not None:
        _check_video(flags.video)
    # Only now, as this takes JAX and its seconds.
    from rlpad.experiment.load import load_policy
    from rlpad.experiment.seeds import Seeds

    seeds = Seeds(flags.seed)
    streams = min(EVALUATION_STREAMS, flags.episodes)
    loaded = load_policy(flags.run, flags.snapshot, seed=seeds.integer("policy"), num_streams=streams)
    with contextlib.ExitStack() as stack:
        environments: list[dm_env.Environment] = []
        for i in range(streams):
            seed = seeds.integer("environment", i)
            if i == 0 and flags.video is not None:
                environment = _filmed(loaded.make_environment, loaded.env, seed)
                film = stack.enter_context(_film(Path(flags.video), environment))
                environment = _FirstEpisode(environment, film)
            else:
                environment = loaded.make_environment(seed)
            stack.callback(environment.close)
            environments.append(environment)
        returns, _ = loaded.policy.run_episodes(environments, flags.episodes, max_steps=flags.max_steps)
    return {
        "env": loaded.env,
        "agent": loaded.agent,
        "snapshot": loaded.snapshot,
        "actor_steps": int(loaded.actor_steps),
        "episodes": len(returns),
        "episode_return_mean": float(np.mean(returns)),
        "episode_return_std": float(np.std(returns)),
        "episode_return_min": float(np.min(returns)),
        "episode_return_max": float(np.max(returns)),
        "episode_returns": [float(value) for value in returns],
        "seed": flags.seed,
        "video": flags.video,
    }


def _check_run(run: str) -> None:
    path = Path(run)
    if path.is_dir():
        return
    if path.exists():
        raise UserError(f"run {run!r} is a file; expected a run directory")
    candidates = [str(sibling) for parent in (path.parent, Path("runs")) for sibling in _folders(parent)]
    raise UserError(f"there is no run directory {run!r}{nearest(run, candidates)}")


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []


def _check_video(video: str) -> None:
    path = Path(video)
    if path.suffix.lower() != ".mp4":
        raise UserError(f"--video must name an .mp4 file, got {video!r}")
    if os.path.lexists(path):
        raise UserError(f"--video {video!r} is there already; choose another name, nothing is overwritten")
    if not path.parent.is_dir():
        raise UserError(f"--video {video!r}: there is no folder {str(path.parent)!r}")
    _video_writer()


def _video_writer() -> Callable[..., Any]:
    try:
        # Frames go to it one by one: an ImageSequenceClip would hold a whole episode, maybe gigabytes.
        from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter
    except ImportError as error:
        raise UserError("--video needs packages that are missing: pip install 'rlpad[video]'") from error
    return FFMPEG_VideoWriter


def _filmed(make_environment: Callable[..., dm_env.Environment], name: str, seed: int) -> dm_env.Environment:
    """Makes an environment that renders; finds out with another one of its kind whether it does.

    Raises:
      UserError: it can't render.
    """
    try:
        probe = make_environment(seed, render_mode="rgb_array")
        try:
            probe.reset()
            frame = _frame(probe)
        finally:
            probe.close()
    except Exception as error:  # environments that can't render, or lack a package for it, raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"environment {name!r} can't render for --video: {reason}") from error
    if frame is None:
        raise UserError(f"environment {name!r} can't render for --video: it gives no RGB array")
    return make_environment(seed, render_mode="rgb_array")


def _frame(environment: Any) -> np.ndarray | None:
    """Returns the environment's picture, uint8 (H, W, 3) with even sides, or None if there is none."""
    frame = environment.render()
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,):
        return None
    height, width = frame.shape[:2]
    # The usual pixel format of mp4 halves both sides.
    return np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


class _Film:
    """Writes frames to a video file; the first one sets the size."""

    def __init__(self, path: Path, fps: float):
        self._path, self._fps = path, fps
        self._writer: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: np.ndarray | None) -> None:
        """Appends a frame.

        Raises:
          UserError: there is none, or it has another size than those before.
        """
        if frame is None or (self._writer is not None and frame.shape != self._shape):
            raise UserError("the environment's pictures change their size or stop, which a video can't show")
        if self._writer is None:
            self._shape = frame.shape
            self._writer = _video_writer()(str(self._path), (frame.shape[1], frame.shape[0]), self._fps)
        self._writer.write_frame(frame)

    def close(self) -> bool:
        """Finishes the file; returns whether it was written in full."""
        if self._writer is None:
            return False
        process = self._writer.proc
        self._writer.close()
        return process is not None and process.returncode == 0


@contextlib.contextmanager
def _film(path: Path, environment: dm_env.Environment) -> Iterator[_Film]:
    """Gives a film that becomes the file at `path` at the end, or nothing at all if anything fails."""
    metadata = getattr(environment, "metadata", None)
    fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    temporary = path.resolve().with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}.tmp.mp4")
    film = _Film(temporary, float(fps or DEFAULT_FPS))
    try:
        try:
            yield film
        finally:
            complete = film.close()
        if not complete:
            raise UserError(f"--video {str(path)!r}: ffmpeg couldn't write it")
        if os.path.lexists(path):
            raise UserError(f"--video {str(path)!r} has come to be meanwhile; nothing is overwritten")
        os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class _FirstEpisode(dm_env.Environment):
    """Films the first episode of an environment, and is otherwise the environment."""

    def __init__(self, environment: dm_env.Environment, film: _Film):
        self._environment, self._film = environment, film
        self._filming = True

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._filmed(self._environment.reset())

    def step(self, action: NestedArray) -> dm_env.TimeStep:
        """Takes one step."""
        return self._filmed(self._environment.step(action))

    def _filmed(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if self._filming:
            self._film.add(_frame(self._environment))
            self._filming = not timestep.last()
        return timestep

    def observation_spec(self) -> NestedSpec:
        """Returns the environment's observation spec."""
        return self._environment.observation_spec()

    def action_spec(self) -> NestedSpec:
        """Returns the environment's action spec."""
        return self._environment.action_spec()

    def reward_spec(self) -> Any:
        """Returns the environment's reward spec."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Any:
        """Returns the environment's discount spec."""
        return self._environment.discount_spec()

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

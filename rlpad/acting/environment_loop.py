"""The loop in which actors meet environments, for one environment or a batch of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from rlpad import core
from rlpad.acting.actors import SingleStreamActor
from rlpad.acting.observers import Observer, ObserverFactory
from rlpad.acting.steps import Steps, UnlimitedSteps
from rlpad.types import NestedArray

#: Batched steps between two words to the policy on how far all actors have come: a new number costs the compiled policy
#: as much as a tenth of its step, and schedules don't move within so few.
PROGRESS_PERIOD = 64


class EnvironmentLoop(core.Worker):
    """Steps environments with the actions of an actor (Acme's EnvironmentLoop, batched).

    One `step` of the loop is one step of every environment, with one batched policy call. An environment
    whose episode ended starts the next one in the following step. Each finished episode gives one row of
    metrics: `episode_length`, `episode_return` (a nest if rewards are one), `steps_per_second`, the mean
    durations of its parts, the counts, the staleness of the policy and what the observers measured.
    """

    def __init__(
        self,
        environments: dm_env.Environment | Sequence[dm_env.Environment],
        actor: core.Actor | core.VectorActor,
        *,
        steps: Steps | None = None,
        counter: Any = None,
        logger: Any = None,
        observers: Sequence[ObserverFactory] = (),
        label: str = "environment_loop",
    ):
        """Takes over the environments and the actor; both are closed with the loop.

        Args:
          environments: one environment, or one for each of the actor's streams.
          actor: acts in one environment (`core.Actor`) or in all of them (`core.VectorActor`).
          steps: supply of environment steps; unlimited by default, and then the counter counts them.
          counter: has `increment(**counts) -> counts`; gets `episodes`, and `actor_steps` if nobody else
            counts those.
          logger: has `write(row)` and `close()`.
          observers: make further metrics; called once per environment.
          label: name in error messages.

        Raises:
          ValueError: the actor has another number of streams than there are environments.
        """
        if isinstance(environments, dm_env.Environment):
            environments = [environments]
        vector_actor = actor if isinstance(actor, core.VectorActor) else SingleStreamActor(actor)
        if len(environments) != vector_actor.num_streams:
            raise ValueError(
                f"{label}: {len(environments)} environments for an actor of {vector_actor.num_streams} streams"
            )
        self._actor = vector_actor
        self._counts_steps = steps is None
        self._steps = steps or UnlimitedSteps()
        self._counter = counter
        self._logger = logger
        self._streams = [_Stream(environment, [make() for make in observers]) for environment in environments]
        self._select_seconds = 0.0
        self._waits_for = "nothing"
        self._closed = False
        self._batches = 0
        self.episodes = 0

    @property
    def finished(self) -> bool:  # type: ignore[override]
        """Whether the supply of steps has ended."""
        return self._steps.finished

    def step(self) -> bool:
        """Takes one step of every environment, or fewer if the supply of steps ends within the batch."""
        if self.finished:
            return False
        if not self._actor.ready():
            self._waits_for = "replay to take more items"
            return False
        granted = self._steps.take(len(self._streams))
        if not granted:
            self._waits_for = "other actors to report the last steps"
            return False
        for index, stream in enumerate(self._streams):
            if stream.needs_reset:
                stream.reset()
                self._actor.observe_first(index, stream.timestep)
        if self._batches % PROGRESS_PERIOD == 0:
            self._actor.set_progress(self._steps.actor_steps)
        self._batches += 1
        started = time.perf_counter()
        actions = self._actor.select_actions([stream.timestep.observation for stream in self._streams])
        self._select_seconds = time.perf_counter() - started
        for index in range(granted):
            stream = self._streams[index]
            stream.step(actions[index], self._select_seconds)
            self._actor.observe(index, actions[index], stream.timestep)
            if stream.timestep.last():
                self._finish_episode(stream)
        self._actor.update()
        return True

    def _finish_episode(self, stream: _Stream) -> None:
        stream.needs_reset = True
        self.episodes += 1
        counts: dict[str, int] = {}
        if self._counter is not None:
            steps = {"actor_steps": stream.length} if self._counts_steps else {}
            counts = self._counter.increment(episodes=1, **steps)
        if self._logger is not None:
            row = {**counts, "actor_steps": self._steps.actor_steps, **stream.metrics()}
            if self._counts_steps:
                row["actor_steps"] = counts.get("actor_steps", row["actor_steps"])
            self._logger.write({**row, **self._actor.staleness()})

    def run_episode(self) -> NestedArray:
        """Runs until one episode ends, in any of the environments, and returns its undiscounted return.

        Raises:
          RuntimeError: the loop can't go on, because its steps have ended or replay takes no more.
        """
        episodes = self.episodes
        while self.episodes == episodes:
            if not self.step():
                raise RuntimeError(f"the loop can't step: it waits for {self._waits_for}")
        return next(s.episode_return for s in reversed(self._streams) if s.needs_reset and s.length)

    def run_for(self, num_steps: int) -> int:
        """Takes up to `num_steps` batched steps while it can; returns how many it took."""
        return next((taken for taken in range(num_steps) if not self.step()), num_steps)

    def flush(self) -> bool:
        """Hands everything that was seen to replay; returns False if replay can't take all of it yet."""
        return self._actor.flush()

    def idle(self, timeout: float) -> None:
        """Waits a little for replay or for steps."""
        time.sleep(min(timeout, 0.002))

    def waiting_on(self) -> str:
        """Says why the last `step` did nothing."""
        return self._waits_for

    def close(self) -> None:
        """Closes actor, environments and logger, once."""
        if self._closed:
            return
        self._closed = True
        # Called in reverse order, and each of them even if another one raises.
        with contextlib.ExitStack() as stack:
            if self._logger is not None:
                stack.callback(self._logger.close)
            for stream in reversed(self._streams):
                stack.callback(stream.environment.close)
            stack.callback(self._actor.close)


class _Stream:
    """One environment and its episode."""

    def __init__(self, environment: dm_env.Environment, observers: Sequence[Observer]):
        self.environment = environment
        self.observers = observers
        self.timestep: dm_env.TimeStep = None
        self.needs_reset = True
        self.length = 0
        self.episode_return: NestedArray = 0.0
        self._zero = tree.map_structure(lambda spec: np.zeros(spec.shape, np.float64), environment.reward_spec())
        self._scalar_reward = not tree.is_nested(self._zero)

    def reset(self) -> None:
        started = time.perf_counter()
        self.timestep = self.environment.reset()
        self._started = started
        self._reset_seconds = time.perf_counter() - started
        self._select_seconds = self._step_seconds = 0.0
        self.needs_reset = False
        self.length = 0
        self.episode_return = tree.map_structure(np.copy, self._zero)
        for observer in self.observers:
            observer.observe_first(self.environment, self.timestep)

    def step(self, action: NestedArray, select_seconds: float) -> None:
        started = time.perf_counter()
        self.timestep = self.environment.step(action)
        self._step_seconds += time.perf_counter() - started
        self._select_seconds += select_seconds
        self.length += 1
        if self._scalar_reward:
            self.episode_return = self.episode_return + self.timestep.reward
        else:
            self.episode_return = tree.map_structure(
                lambda total, reward: total + reward, self.episode_return, self.timestep.reward
            )
        for observer in self.observers:
            observer.observe(self.environment, self.timestep, action)

    def metrics(self) -> dict[str, Any]:
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        row = {
            "episode_length": self.length,
            "episode_return": self.episode_return,
            "steps_per_second": self.length / elapsed,
            "env_reset_duration_sec": self._reset_seconds,
            "select_action_duration_sec": self._select_seconds / self.length,
            "env_step_duration_sec": self._step_seconds / self.length,
        }
        for observer in self.observers:
            row.update(observer.get_metrics())
        return row

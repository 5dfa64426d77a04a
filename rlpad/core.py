"""The nouns of rlpad. Everything that runs, acts, learns or is saved fulfils one of these."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

import dm_env

from rlpad.types import NestedArray, Variables

T = TypeVar("T")


class Actor(abc.ABC):
    """Acts in one environment and hands on what it sees (Acme's actor)."""

    @abc.abstractmethod
    def select_action(self, observation: NestedArray) -> NestedArray:
        """Returns the action for one observation; neither has a batch axis."""

    @abc.abstractmethod
    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Takes the first timestep of an episode."""

    @abc.abstractmethod
    def observe(self, action: NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Takes the action that was sent to the environment and the timestep that followed."""

    @abc.abstractmethod
    def update(self, wait: bool = False) -> None:
        """Refreshes the policy's variables if they are due; `wait` blocks until they have arrived."""

    def ready(self) -> bool:
        """Whether one more step would be taken without waiting (for replay to accept it, say)."""
        return True

    def close(self) -> None:  # noqa: B027 - optional by design
        """Lets go of resources."""


class VectorActor(abc.ABC):
    """Acts in several environments at once; stream `i` is the actor's view of environment `i`."""

    num_streams: int

    @abc.abstractmethod
    def select_actions(self, observations: Sequence[NestedArray]) -> Sequence[NestedArray]:
        """Returns one action per stream for one observation per stream, from one batched policy call."""

    @abc.abstractmethod
    def observe_first(self, stream: int, timestep: dm_env.TimeStep) -> None:
        """Takes the first timestep of an episode of one stream."""

    @abc.abstractmethod
    def observe(self, stream: int, action: NestedArray, next_timestep: dm_env.TimeStep) -> None:
        """Takes one stream's action and the timestep that followed."""

    @abc.abstractmethod
    def update(self, wait: bool = False) -> None:
        """Refreshes the policy's variables if they are due; called once per batched step."""

    def set_progress(self, actor_steps: int) -> None:  # noqa: B027 - optional by design
        """Tells the policy how many environment steps all actors together have taken (for schedules)."""

    def ready(self) -> bool:
        """Whether one more batched step would be taken without waiting."""
        return True

    def staleness(self) -> dict[str, float]:
        """Returns how old the policy's variables are, as log entries; nothing where they never change."""
        return {}

    def flush(self) -> bool:
        """Hands on all that was observed without waiting; returns False while something couldn't be taken."""
        return True

    def close(self) -> None:  # noqa: B027 - optional by design
        """Lets go of resources."""


class VariableSource(abc.ABC):
    """Serves named variables (policy parameters, mostly) to actors and evaluators."""

    @abc.abstractmethod
    def get_variables(self, names: Sequence[str], have_version: int = -1) -> Variables | None:
        """Returns the variables called `names`, or None when the caller's `have_version` is current.

        Raises:
          KeyError: a name is not served; the message lists those that are.
        """


class Adder(abc.ABC):
    """Turns a stream of timesteps into replay items (Acme's adder)."""

    @abc.abstractmethod
    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode with its first timestep."""

    @abc.abstractmethod
    def add(self, action: NestedArray, next_timestep: dm_env.TimeStep, extras: NestedArray = ()) -> None:
        """Adds one step: the action taken after the last timestep, and the timestep it led to."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Drops the unfinished episode, without writing an end that never happened."""

    def ready(self, count: int = 1) -> bool:
        """Whether `count` more steps would be accepted by replay without waiting."""
        return True

    def flush(self) -> bool:
        """Writes out every finished item without waiting; returns False while replay can't take all of them."""
        return True

    def close(self) -> None:  # noqa: B027 - optional by design
        """Lets go of resources; items that `flush` hasn't written out are dropped."""


class Worker(abc.ABC):
    """Anything that runs: one unit of work at a time, so that any launcher can drive it.

    The `inline` launcher calls `step` of every worker in a fixed order until each returns False; the other
    launchers call `run`, which loops the same `step` until the program stops or `finished` is true.
    """

    #: True once the worker has nothing left to do for the rest of the program.
    finished: bool = False

    @abc.abstractmethod
    def step(self) -> bool:
        """Does one unit of work; returns False, having changed nothing, when it can't do one now."""

    def idle(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for work; called by `run` after `step` returned False."""
        import time

        time.sleep(min(timeout, 0.001))

    def waiting_on(self) -> str:
        """Says in one line what the worker waits for, for the error that a stalled program prints."""
        return "no reason given"

    def run(self) -> None:
        """Steps until the program stops or the worker is finished, then closes."""
        from rlpad import launch

        launch.run_worker(self)

    def close(self) -> None:  # noqa: B027 - optional by design
        """Saves or flushes what must survive; called once, after the last step."""


class Saveable(abc.ABC, Generic[T]):
    """Has a state that can be taken out and put back."""

    @abc.abstractmethod
    def save(self) -> T:
        """Returns the state as nests of NumPy arrays and plain Python values."""

    @abc.abstractmethod
    def restore(self, state: T) -> None:
        """Puts back a state that `save` returned."""


class Learner(Worker, VariableSource, Saveable[NestedArray]):
    """Learns from replay or data and serves what it has learned."""

    @property
    @abc.abstractmethod
    def learner_steps(self) -> int:
        """SGD steps taken since the initial state."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """Returns the newest metrics by log key."""

"""What an experiment is, and how big it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from rlpad.errors import UserError
from rlpad.types import EnvironmentFactory

LauncherName = Literal["auto", "inline", "threads", "processes"]
ReplayBackend = Literal["auto", "reverb", "embedded"]

#: Whole numbers are int32 in compiled code.
LARGEST = 2**31 - 1
#: Environments that an evaluation steps side by side, with one policy call for all.
EVALUATION_STREAMS = 10
#: Steps after which an evaluation episode is cut, unless one asks for another limit.
EVALUATION_STEPS = 27_000


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long an experiment runs and how often it's measured."""

    steps: int = 50_000
    """Environment steps that all actors together take; exactly so many."""
    seed: int = 0
    """Seed of everything random. With the inline launcher and embedded replay, equal seeds give equal runs."""
    eval_every: int = 0
    """Actor steps between two evaluations; 0 means a twentieth of the steps."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    final_eval_episodes: int = 20
    """Fresh episodes on which the final and the best snapshot are evaluated at the end."""
    eval_max_steps: int = EVALUATION_STEPS
    """Steps after which an evaluation episode is cut; a greedy policy may never end one by itself."""
    log_every: int = 1_000
    """Learner steps between two rows of the learner's metrics."""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
          UserError: a number is out of range.
        """
        _at_least(self, "steps", 1)
        _at_least(self, "eval_every", 0)
        _at_least(self, "eval_episodes", 1)
        _at_least(self, "final_eval_episodes", 1)
        _at_least(self, "eval_max_steps", 1)
        _at_least(self, "log_every", 1)
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {self.seed}")

    @property
    def eval_period(self) -> int:
        """Actor steps between two evaluations."""
        return self.eval_every or max(self.steps // 20, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Schedule):
    """What is run: an agent on an environment, for so long."""

    agent: str
    """Agent: a registered name, or the path of a module that registers one."""
    env: str | EnvironmentFactory
    """Environment: a Gymnasium id, `gym:ID`, `atari:GAME`, `module:function`, or a factory called with a seed."""
    agent_config: Any = None
    """The agent's settings; its defaults if None."""
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the environment, passed to its factory."""

    @property
    def env_name(self) -> str:
        """The environment's name, for people and for config.json."""
        if isinstance(self.env, str):
            return self.env
        return f"{self.env.__module__}:{getattr(self.env, '__qualname__', type(self.env).__qualname__)}"


@dataclasses.dataclass(frozen=True)
class Scale:
    """How big an experiment runs."""

    num_actors: int = 1
    """Actor nodes; more than one makes `processes` the default launcher."""
    envs_per_actor: int = 1
    """Environments per actor, acted on in one batch."""
    num_evaluators: int = 1
    """Evaluator nodes; 0 turns evaluation off."""
    max_restarts: int = 3
    """Times that an actor or evaluator that dies is started again; learner and replay are not."""
    actor_threads: int = 1
    """CPU threads of each actor."""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
          UserError: a number is out of range.
        """
        for name in ("num_actors", "envs_per_actor", "actor_threads"):
            _at_least(self, name, 1)
        for name in ("num_evaluators", "max_restarts"):
            _at_least(self, name, 0)


def _at_least(config: Any, name: str, least: int) -> None:
    value = getattr(config, name)
    if value > LARGEST:
        raise UserError(f"--{name.replace('_', '-')} must be at most {LARGEST}, got {value}")
    if value < least:
        raise UserError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")

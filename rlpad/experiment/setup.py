"""What every node of an experiment is told."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rlpad.experiment.config import ExperimentConfig, Scale
from rlpad.specs import EnvironmentSpec

if TYPE_CHECKING:
    import dm_env

    from rlpad.experiment.builder import Builder


@dataclasses.dataclass(frozen=True)
class Setup:
    """An experiment with all names resolved; plain data that is sent to every node.

    Attributes:
      config: the experiment.
      scale: its size.
      builder: the agent's builder; it travels itself, so an agent may be registered in a user's own script.
      spec: the environment's specs.
      replay_backend: `embedded` or `reverb`.
      run_dir: the run directory's path.
      tensorboard: whether nodes write TensorBoard events.
      wandb: Weights & Biases project, or None.
    """

    config: ExperimentConfig
    scale: Scale
    builder: Builder[Any, Any]
    spec: EnvironmentSpec
    replay_backend: str
    run_dir: str
    tensorboard: bool = False
    wandb: str | None = None

    @property
    def stall_grace_s(self) -> float:
        """Seconds for which nobody may be able to step before that counts as a stall: Reverb works in threads."""
        return 30.0 if self.replay_backend == "reverb" else 0.0

    def make_environment(self, seed: int, evaluation: bool = False) -> dm_env.Environment:
        """Builds an environment of its own for a node."""
        from rlpad.environment_factory import environment_factory

        env = self.config.env
        if isinstance(env, str):
            return environment_factory(env, **self.config.env_options)(seed, evaluation=evaluation)
        return env(seed)

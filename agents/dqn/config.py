"""Settings of DQN."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlpad.experiment.transitions import TransitionConfig


@dataclasses.dataclass(frozen=True)
class DQNConfig(TransitionConfig):
    """DQN: double Q-learning on n-step transitions from (prioritised) replay."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    adam_epsilon: float = 1e-8
    """Epsilon of Adam, added to the root of the second moment."""
    max_gradient_norm: float = 10.0
    """Gradients are scaled down to this global norm; 0 turns clipping off."""
    double_q: bool = True
    """Choose the bootstrap action with the online network (van Hasselt et al. 2016)."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss on the TD error: Huber with delta 1, or half the square."""
    target_update_period: int = 128
    """Learner steps between two copies of the online into the target network."""

    epsilon_start: float = 1.0
    """Chance of a random action at the first actor step."""
    epsilon_end: float = 0.05
    """Chance of a random action once the decay is over."""
    epsilon_decay_steps: int = 10_000
    """Actor steps (of all actors together) over which epsilon falls linearly."""
    eval_epsilon: float = 0.0
    """Chance of a random action in evaluation."""

    torso: Literal["auto", "mlp", "nature"] = "auto"
    """Network torso: an MLP on the flattened observation or the Nature CNN; auto takes the CNN for images."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the hidden layers after the torso."""
    duelling: bool = False
    """Split the head into value and advantage streams (Wang et al. 2016)."""

    def __post_init__(self) -> None:
        """Checks what the types can't."""
        super().__post_init__()
        self.check_range("learning_rate", above=0.0)
        self.check_range("max_gradient_norm", least=0.0)
        self.check_range("target_update_period", least=1)
        self.check_range("epsilon_decay_steps", least=0)
        for name in ("epsilon_start", "epsilon_end", "eval_epsilon"):
            self.check_range(name, least=0.0, most=1.0)
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise self.error("hidden_sizes", "one or more positive numbers of units")

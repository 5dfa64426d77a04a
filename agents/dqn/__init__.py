"""DQN: deep Q-learning with the parts of Rainbow that matter most; see README.md beside this file."""

from agents.dqn.builder import DQNBuilder
from agents.dqn.config import DQNConfig

__all__ = ["DQNBuilder", "DQNConfig"]

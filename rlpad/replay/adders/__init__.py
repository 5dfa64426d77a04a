"""Adders: from streams of timesteps to replay items."""

from rlpad.replay.adders.transition import NStepTransitionAdder

__all__ = ["NStepTransitionAdder"]

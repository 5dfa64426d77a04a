"""rlpad: reinforcement learning on JAX, from one reproducible process to supervised fleets of actors."""

from __future__ import annotations

__version__ = "0.1.0"

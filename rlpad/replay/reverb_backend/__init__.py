"""Replay over dm-reverb: a C++ server, and tf.data for sampling. Nothing here imports TensorFlow by itself."""

from rlpad.replay.reverb_backend.client import ReverbClient
from rlpad.replay.reverb_backend.server import reverb_tables

__all__ = ["ReverbClient", "reverb_tables"]

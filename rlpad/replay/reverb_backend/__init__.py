"""Replay over dm-reverb: a C++ server, and tf.data for sampling."""

from rlpad.replay.reverb_backend.client import ReverbClient
from rlpad.replay.reverb_backend.server import reverb_tables

__all__ = ["ReverbClient", "reverb_tables"]

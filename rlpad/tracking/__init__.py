"""Counting, logging, run directories, policy snapshots and plots."""

from __future__ import annotations

from rlpad.tracking.counter import Counter
from rlpad.tracking.loggers import Logger, make_logger
from rlpad.tracking.run_directory import RunDirectory, default_run_path

__all__ = ["Counter", "Logger", "RunDirectory", "default_run_path", "make_logger"]

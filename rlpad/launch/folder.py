"""The private folder of a launch: sockets, and temporary files of its nodes."""

from __future__ import annotations

import os
import tempfile

from rlpad.launch.errors import LaunchError


def control_path(folder: str) -> str:
    """Returns the path of the supervisor's socket."""
    return os.path.join(folder, "control")


def make_folder() -> str:
    """Makes the launch's private folder (mode 0700), in a place short enough for socket paths.

    Raises:
      LaunchError: temporary files lie so deep that no socket can be bound there.
    """
    folder = tempfile.mkdtemp(prefix="rlpad-")
    if len(os.fsencode(folder)) > 40:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="rlpad-", dir="/tmp")
    if len(os.fsencode(folder)) > 40:
        raise LaunchError(f"temporary folder {folder!r} is too long for sockets; set TMPDIR to a shorter path")
    return folder

"""Files that a reader sees whole, the old one or the new one, and folders that are known by a file in them."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from rlpad.errors import nearest


def write_atomically(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Writes `data` to the file at `path`, through a temporary file beside it.

    A crash at any moment leaves the old file or the new one; an exception leaves the old one and no litter.

    Args:
      path: the file.
      data: what it's to hold.
      replace: whether it may be there already.

    Raises:
      FileExistsError: it is there, and isn't to be replaced.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        write_synced(temporary, data)
        if replace:
            os.replace(temporary, path)
        else:
            _move_to_new(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _move_to_new(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # this file system has no hard links; then two who come at the same moment aren't told apart
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        os.replace(source, target)
    else:
        os.unlink(source)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file and waits until it's on the disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Waits until what was created and renamed in a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nearest_sibling(folder: Path, marker: str) -> str:
    """Returns a hint at the folder nearest in name to `folder`, beside it and with a file `marker` in it, if any."""
    siblings = folder.parent.iterdir() if folder.parent.is_dir() else ()
    # Unlike Path.is_file this doesn't mind folders that can't be looked into.
    return nearest(folder.name, [child.name for child in siblings if os.path.isfile(child / marker)])

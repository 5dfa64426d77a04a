"""Independent seeds for the parts of a node, all from the node's own."""

from __future__ import annotations

import zlib

import numpy as np


class Seeds:
    """Derives seeds by name, so that adding a part never changes what another part draws."""

    def __init__(self, root: int):
        self._root = root

    def integer(self, name: str, index: int = 0) -> int:
        """Returns a seed from 0 to 2**31 - 1 for the part called `name`, number `index`."""
        sequence = np.random.SeedSequence([self._root, zlib.crc32(name.encode()), index])
        return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF

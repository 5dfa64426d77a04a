"""Errors that are about what the user asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A request that can't be carried out as asked; its message is one line, and the command line prints it bare."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the candidate nearest to `name`, or an empty string if none is near.

    Letter case is ignored when comparing, the candidate is printed as it is spelt.
    """
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
    return f"; did you mean {by_folded[matches[0]]!r}?" if matches else ""

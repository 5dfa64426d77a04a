"""rlpad's tables as dm-reverb's."""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import tree

from rlpad.errors import UserError
from rlpad.launch.errors import PeerGone
from rlpad.replay.tables import Prioritized, Table, by_name

#: Names the side table that carries a prioritised table's highest priority so far.
MAX_PRIORITY_PREFIX = "rlpad/max_priority/"

_CONNECT_SECONDS = 5.0


def reverb_tables(tables: Callable[[], list[Table]]) -> Callable[[], list[Any]]:
    """Returns a function that makes the `reverb.Table`s; it can be pickled if `tables` can.

    Args:
      tables: makes the tables; called where the result is called.

    Raises:
      UserError: dm-reverb isn't installed.
    """
    if importlib.util.find_spec("reverb") is None:
        raise _missing()
    return functools.partial(_make_tables, tables)


def _missing() -> UserError:
    return UserError(
        "the reverb replay backend needs dm-reverb, which isn't installed here; "
        "run pip install 'rlpad[reverb]' (Python 3.11), or choose the embedded backend"
    )


def import_reverb() -> Any:
    """Imports dm-reverb, and with it TensorFlow.

    Raises:
      UserError: it isn't installed.
    """
    # Else every process greets with lines on the instruction sets that this build of TensorFlow uses.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import reverb
    except ModuleNotFoundError as error:
        raise _missing() from error
    return reverb


def check_alive(address: str) -> None:
    """Connects to a server and hangs up.

    dm-reverb's own calls try for ever to reach a server that is gone, or for as long as their timeout.

    Raises:
      PeerGone: nobody listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise PeerGone(f"the reverb server at {address} is gone: {error}") from error


def max_priority_table(name: str) -> str:
    """Names the side table of a prioritised table."""
    return MAX_PRIORITY_PREFIX + name


def _make_tables(tables: Callable[[], list[Table]]) -> list[Any]:
    made = []
    for table in by_name(tables()).values():
        made.append(_make_table(table))
        if isinstance(table.sampler, Prioritized):
            made.append(_make_max_priority_table(table))
    return made


def _make_table(table: Table) -> Any:
    reverb = import_reverb()
    import tensorflow as tf

    limiter = table.rate_limiter
    offset = limiter.samples_per_insert * limiter.min_size
    if isinstance(table.sampler, Prioritized):
        sampler = reverb.selectors.Prioritized(table.sampler.exponent)
    else:
        sampler = reverb.selectors.Uniform()
    # Flat: reverb's own coding of nests loses lists, and samples are given their structure by the client.
    signature = tuple(
        tf.TensorSpec(tuple(spec.shape), tf.as_dtype(np.dtype(spec.dtype)), name="_".join(map(str, path)) or "item")
        for path, spec in tree.flatten_with_path(table.signature)
    )
    return reverb.Table(
        name=table.name,
        sampler=sampler,
        remover=reverb.selectors.Fifo(),
        max_size=table.max_size,
        max_times_sampled=table.max_times_sampled,
        # Reverb's difference is `samples_per_insert * inserts - samples`, and it holds whoever would leave
        # the range: both statements of `tables.RateLimiter`, solved for it.
        rate_limiter=reverb.rate_limiters.RateLimiter(
            samples_per_insert=limiter.samples_per_insert,
            min_size_to_sample=limiter.min_size,
            min_diff=offset - limiter.tolerance,
            max_diff=offset + limiter.tolerance,
        ),
        signature=signature,
    )


def _make_max_priority_table(table: Table) -> Any:
    reverb = import_reverb()
    # An insert into a full table takes the lower one of the two out first, so the highest always stays,
    # in whatever order clients publish.
    return reverb.Table(
        name=max_priority_table(table.name),
        sampler=reverb.selectors.MaxHeap(),
        remover=reverb.selectors.MinHeap(),
        max_size=2,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )

"""Samples batches from a dm-reverb server through tf.data."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import tree

from rlpad.launch.errors import PeerGone
from rlpad.replay import interface
from rlpad.replay.interface import ReplaySample, ReplayStalled, SampleInfo
from rlpad.replay.reverb_backend.server import check_alive, import_reverb
from rlpad.replay.tables import Table

#: Milliseconds that the server waits for its rate limiter before the sampler's thread looks around.
WAIT_MS = 500
#: Batches that lie ready; while they do, one more may be in the thread's hands.
READY_BATCHES = 1
#: Samples that the server sends ahead; more isn't faster, and is further ahead of the learner.
IN_FLIGHT = 256
#: Seconds after which `next` gives up.
SAMPLE_TIMEOUT_SECONDS = 600.0
#: Seconds without a sign of the thread after which it's asked whether the server is still there.
ALIVE_SECONDS = 2.0
#: Seconds that `close` waits for the thread. It takes longer only if the server died just when an iterator asked for
#: its tables, which waits 30 seconds for the answer; then the thread ends by itself.
CLOSE_SECONDS = 2.0

Leaves = list[np.ndarray]


class ReverbSampler(interface.Sampler):
    """A thread that fetches batches ahead, at most `READY_BATCHES` and the one in its hands."""

    def __init__(self, address: str, table: Table, batch_size: int):
        """Starts to sample at once."""
        self._address = address
        self._table = table
        self._batch_size = batch_size
        self._batches: deque[ReplaySample] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._drain_from: float | None = None
        self._held_since: float | None = None
        self._turned_at = time.monotonic()
        self._cancellation: Any = None
        self._thread = threading.Thread(target=self._run, name=f"reverb-sampler-{table.name}", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        """Whether a batch lies ready.

        Raises:
          PeerGone: the server is gone.
        """
        return self.wait_ready(0.0)

    def wait_ready(self, timeout: float) -> bool:
        """Waits until a batch lies ready.

        Raises:
          PeerGone: the server is gone.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                remaining = min(ALIVE_SECONDS, deadline - time.monotonic())
                self._changed.wait_for(lambda: self._batches or self._error or self._closed, remaining)
                if self._batches:
                    return True
                if self._error is not None:
                    raise self._failure(self._error) from self._error
                if self._closed:
                    return False
            self._check_alive()
            if self._error is None and time.monotonic() >= deadline:
                return False

    def _failure(self, error: BaseException) -> Exception:
        where = f"sampling table {self._table.name!r} of the reverb server at {self._address}"
        if isinstance(error, PeerGone) or _is_connection_error(error):
            return PeerGone(f"{where} ended: {error}")
        return RuntimeError(f"{where} failed: {error}")

    def drained(self) -> bool:
        """Whether the server had nothing to give for a whole wait that began after the first call of this."""
        if self._drain_from is None:
            self._drain_from = time.monotonic()
        if self.ready():
            return False
        with self._changed:
            return not self._batches and self._held_since is not None and self._held_since >= self._drain_from

    def __next__(self) -> ReplaySample:
        """Returns the next batch.

        Raises:
          PeerGone: the server is gone.
          ReplayStalled: none came for long.
        """
        if not self.wait_ready(SAMPLE_TIMEOUT_SECONDS):
            raise ReplayStalled(f"no batch of {self._batch_size} from table {self._table.name!r} came")
        with self._changed:
            sample = self._batches.popleft()
            self._changed.notify_all()
        return sample

    def close(self) -> None:
        """Ends the thread; what lies ready is dropped."""
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()
        self._cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            self._fetch()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            # After close it's only the cancellation; its traceback would keep the iterator, and so the server's
            # connection, until the garbage collector comes by.
            if not self._closed:
                self._error = self._error or error
            self._changed.notify_all()

    def _fetch(self) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import cancellation

        dataset = _dataset(self._address, self._table, self._batch_size)
        # Traced for a specification: a mere iterator would already draw samples.
        get_next = tf.function(lambda iterator: iterator.get_next()).get_concrete_function(
            tf.data.IteratorSpec(dataset.element_spec)
        )
        parts: list[Leaves] = []
        while not self._closed:
            self._turned_at = began = time.monotonic()
            # An iterator asks the server for its tables, waits 30 seconds for them, and can't be cancelled.
            check_alive(self._address)
            # Ends each time the rate limiter has held the server for so long; the end is an error, which uses
            # up what cancels calls.
            iterator, empty = iter(dataset), True
            self._cancellation = cancellation.CancellationManager()
            cancellable = self._cancellation.get_cancelable_function(get_next)
            if self._closed:
                return
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    element = cancellable(iterator)
                    self._turned_at = time.monotonic()
                    empty = False
                    # The arrays are the caller's own: `numpy` copies.
                    leaves = [leaf.numpy() for leaf in tree.flatten(tuple(element))]
                    # The wait may end within a batch: its first part is kept for the next round.
                    parts = self._hand_over([*parts, leaves])
                    if self._closed:
                        return
            with self._changed:
                self._held_since = began if empty else None
                self._changed.notify_all()

    def _check_alive(self) -> None:
        # The thread turns twice a second, unless it tries in vain to reach the server.
        if time.monotonic() - self._turned_at > ALIVE_SECONDS and not self._batches:
            try:
                check_alive(self._address)
            except PeerGone as error:
                self._fail(error)
                self._cancel()

    def _cancel(self) -> None:
        if self._cancellation is not None:
            self._cancellation.start_cancel()

    def _hand_over(self, parts: list[Leaves]) -> list[Leaves]:
        if sum(len(part[0]) for part in parts) < self._batch_size:
            return parts
        if len(parts) > 1:
            leaves = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
            rest = [leaf[self._batch_size :].copy() for leaf in leaves]
            leaves = [leaf[: self._batch_size] for leaf in leaves]
        else:
            leaves, rest = parts[0], []
        batch = self._sample(leaves)
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < READY_BATCHES or self._closed)
            if not self._closed:
                self._batches.append(batch)
                self._changed.notify_all()
        return [rest] if rest and len(rest[0]) else []

    def _sample(self, leaves: Leaves) -> ReplaySample:
        keys, probabilities, table_size, priorities, _ = leaves[:5]
        info = SampleInfo(keys, probabilities, table_size, priorities)
        return ReplaySample(info, tree.unflatten_as(self._table.signature, leaves[5:]))


def _dataset(address: str, table: Table, batch_size: int) -> Any:
    reverb = import_reverb()
    import tensorflow as tf

    # One thread's work: what TensorFlow runs here are the few operations of this pipeline. Too late, and so
    # no matter, where the process has used TensorFlow before.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
    specs = tree.flatten(table.signature)
    dataset = reverb.TrajectoryDataset(
        server_address=address,
        table=table.name,
        dtypes=tuple(tf.as_dtype(np.dtype(spec.dtype)) for spec in specs),
        shapes=tuple(tf.TensorShape(spec.shape) for spec in specs),
        max_in_flight_samples_per_worker=min(batch_size, IN_FLIGHT),
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=WAIT_MS,
    ).batch(batch_size)
    options = tf.data.Options()
    # The thread that tunes a dataset is waited for when its iterator goes, now and then for ever.
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def _is_connection_error(error: BaseException) -> bool:
    import tensorflow as tf

    kinds = (
        tf.errors.UnavailableError,
        tf.errors.CancelledError,
        tf.errors.AbortedError,
        tf.errors.DeadlineExceededError,
        tf.errors.InternalError,
        tf.errors.UnknownError,
    )
    return isinstance(error, kinds)

"""Several calls of a method, answered by one call of a handler: for inference, above all."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rlpad.launch import context as context_lib
from rlpad.launch.errors import LaunchError
from rlpad.launch.nests import Nest, signature, stack, unstack


def batched_handler(
    batch_size: int, max_parallelism: int = 1, timeout: float = 0.2, pad_batch: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a method so that calls that come at the same time are handled in one call.

    Decorate a method in its class, or a bound method in `__init__`: `self.act = batched_handler(16)(self.act)`. Each
    caller passes one request and gets the answer to it; the handler gets a batch of them:

    - arrays are stacked along a new first axis, numbers and booleans become an array [B];
    - named tuples, tuples, dicts and dataclasses are batched leaf by leaf;
    - anything else (lists, strings, None) becomes a list of B values.

    It returns one row per request in the same fashion: an array [B, ...], a list of B values, or a nest of those; or
    None. Only requests of equal structure, shapes and dtypes share a batch. A handler that raises for a batch is called
    again for each request alone, and only those callers hear of it for whom it raises again; so it shouldn't leave
    traces before it raises.

    A `CourierNode` answers as many calls at once as its `thread_pool_size` says (16 by default): batches don't get
    larger than that. Under `inline`, where nothing happens at the same time, each request is a batch.

    Args:
      batch_size: most requests in a batch; a full one is handled at once.
      max_parallelism: batches that may be handled at the same time, in as many threads.
      timeout: seconds after the first request after which a batch is handled that isn't full.
      pad_batch: whether to repeat the first request until a batch is full, for handlers that are compiled for one
        batch size; the further answers are dropped.

    Raises:
      LaunchError: a size or time is out of range.
    """
    if batch_size < 1 or max_parallelism < 1:
        raise LaunchError(f"batch_size and max_parallelism must be at least 1, got {batch_size} and {max_parallelism}")
    if timeout < 0:
        raise LaunchError(f"timeout must be at least 0 seconds, got {timeout}")

    def decorate(handler: Callable[..., Any]) -> Any:
        if not callable(handler):
            raise LaunchError(f"batched_handler decorates a function or a bound method, got {handler!r}")
        return BatchedHandler(handler, batch_size, max_parallelism, timeout, pad_batch)

    return decorate


class BatchedHandler:
    """What `batched_handler` makes of a function or method."""

    def __init__(
        self, handler: Callable[..., Any], batch_size: int, max_parallelism: int, timeout: float, pad_batch: bool
    ):
        functools.update_wrapper(self, handler)
        self._handler = handler
        self._options = (batch_size, max_parallelism, timeout, pad_batch)
        self._batch_size, self._timeout, self._pad = batch_size, timeout, pad_batch
        self._slots = threading.Semaphore(max_parallelism)
        self._lock = threading.Lock()
        self._forming: dict[Any, _Batch] = {}
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        """Notes where the handler of an instance is kept."""
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> BatchedHandler:
        """Returns the handler of an instance, which has batches of its own."""
        if instance is None:
            return self
        bound = BatchedHandler(self._handler.__get__(instance, owner), *self._options)
        # As `functools.cached_property` does: next time it's found there. Of two threads that come at once, one wins.
        return vars(instance).setdefault(self._name, bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Adds one request to a batch, and returns the answer to it.

        Raises:
          Exception: what the handler raised for this request.
          ValueError: the handler's answer doesn't have a row per request.
        """
        request = (args, kwargs)
        kind = signature(request)
        with self._lock:
            batch = self._forming.get(kind)
            leads = batch is None
            if batch is None:
                batch = self._forming[kind] = _Batch()
            answer: Future[Any] = Future()
            batch.requests.append(request)
            batch.answers.append(answer)
            if len(batch.requests) == self._batch_size:
                del self._forming[kind]
                batch.full.set()
        if leads:
            batch.full.wait(0.0 if context_lib.single_threaded() else self._timeout)
            with self._slots:  # while it waits for its turn, the batch goes on filling
                with self._lock:
                    if self._forming.get(kind) is batch:
                        del self._forming[kind]
                self._answer(batch)
        return answer.result()

    def _answer(self, batch: _Batch) -> None:
        try:
            for answer, row in zip(batch.answers, self._handle(batch.requests), strict=True):
                answer.set_result(row)
        except Exception as error:
            if len(batch.requests) == 1:
                batch.answers[0].set_exception(error)
                return
            for request, answer in zip(batch.requests, batch.answers, strict=True):
                try:
                    answer.set_result(self._handle([request])[0])
                except Exception as own:
                    answer.set_exception(own)
        except BaseException as error:
            for answer in batch.answers:
                answer.set_exception(error)
            raise

    def _handle(self, requests: Sequence[Any]) -> list[Any]:
        size = self._batch_size if self._pad else len(requests)
        padded = [*requests, *[requests[0]] * (size - len(requests))]
        args, kwargs = stack(padded)
        return unstack(self._handler(*args, **kwargs), size)[: len(requests)]


class _Batch:
    def __init__(self) -> None:
        self.requests: list[Nest] = []
        self.answers: list[Future[Any]] = []
        self.full = threading.Event()

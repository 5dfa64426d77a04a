"""Objects to bytes and back: pickle protocol 5, large buffers apart from the rest."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from rlpad.launch.errors import RemoteError, RemoteTraceback

#: Buffers of at least so many bytes travel as frames of their own, uncopied; smaller ones cost less in line.
OUT_OF_BAND_BYTES = 16 * 1024

# What JAX arrays become at the border is nobody else's business: a private table, not copyreg's.
_jax_reducers: dict[type, Callable[[Any], Any]] = {}


class _Pickler(pickle.Pickler):
    """The C pickler with the private table."""

    dispatch_table: dict[type, Any] = {}


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Serialises a value.

    Functions and classes of `__main__`, lambdas and closures travel by value (cloudpickle), as the other side
    can't import them. JAX arrays arrive as NumPy arrays.

    Returns:
      The pickle, and the buffers that it refers to, each contiguous; they share memory with `value`.

    Raises:
      Exception: the value can't be pickled.
    """
    buffers: list[memoryview] = []

    def keep_in_line(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        if _jax_reducers or _register_jax():
            stream = io.BytesIO()
            _Pickler(stream, protocol=5, buffer_callback=keep_in_line).dump(value)
            payload = stream.getvalue()
        else:
            payload = pickle.dumps(value, protocol=5, buffer_callback=keep_in_line)
        if b"__main__" not in payload:
            return payload, buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        # Not by reference; if it can't be pickled by value either, that raises.
        buffers.clear()
    buffers.clear()
    return dump_by_value(value, keep_in_line), buffers


def dump_by_value(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None) -> bytes:
    """Serialises a value, and by value what of it can't be imported: functions of `__main__`, lambdas, closures.

    Code keeps the name of its file, for tracebacks and debuggers, which cloudpickle by itself leaves out.

    Raises:
      Exception: the value can't be pickled.
    """
    stream = io.BytesIO()
    _ByValuePickler(stream, protocol=5, buffer_callback=buffer_callback).dump(value)
    return stream.getvalue()


class _ByValuePickler(cloudpickle.Pickler):
    """cloudpickle's pickler with reducers of our own."""

    @property
    def dispatch_table(self) -> Any:
        """The reducers; asked for once, when a pickler is made."""
        return cloudpickle.Pickler.dispatch_table.new_child({**_jax_reducers, types.CodeType: _reduce_code})


def _reduce_code(code: types.CodeType) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _make_code, (make, arguments, code.co_filename)


def _make_code(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], filename: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


def loads(payload: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """Rebuilds what `dumps` serialised; its large arrays share memory with `buffers`."""
    return pickle.loads(payload, buffers=buffers)


def dump_exception(error: BaseException) -> bytes:
    """Serialises an exception with its traceback as text.

    One that can't be pickled or rebuilt, or that isn't an `Exception` (it would end the caller's process), is
    sent as text alone.
    """
    text = "".join(traceback.format_exception(error))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        message = str(error)
    except Exception as failure:  # a foreign class's own __str__
        message = f"(its text can't be had: {failure!r})"
    return pickle.dumps((name, message, text, _pickled(error)), protocol=5)


def _pickled(error: BaseException) -> bytes:
    """Returns the exception pickled without buffers, or nothing if it can't be rebuilt from that."""
    if not isinstance(error, Exception):
        return b""
    try:
        payload, buffers = dumps(error)
        if buffers:
            payload = dump_by_value(error)
        rebuilt = loads(payload)
        faithful = type(rebuilt).__qualname__ == type(error).__qualname__
    except Exception:  # whatever a foreign class raises, the caller must still hear of the error
        return b""
    return payload if faithful else b""


def load_exception(payload: bytes | memoryview) -> BaseException:
    """Rebuilds an exception, or a `RemoteError` in its stead; its cause prints as the remote traceback."""
    name, message, text, pickled = pickle.loads(payload)
    error: BaseException
    if pickled:
        try:
            error = loads(pickled)
        except Exception as failure:  # its class can't be imported here, for instance
            error = RemoteError(f"{name}: {message} (can't be rebuilt here: {failure!r})", name, text)
    else:
        error = RemoteError(f"{name}: {message}", name, text)
    error.__cause__ = RemoteTraceback(text)
    return error


def _register_jax() -> bool:
    array_module = sys.modules.get("jax._src.array")
    array_class = getattr(array_module, "ArrayImpl", None)
    if array_class is None:
        return False  # JAX isn't loaded, or is just being
    _Pickler.dispatch_table = _Table({array_class: _jax_to_numpy})
    _jax_reducers[array_class] = _jax_to_numpy
    return True


class _Table(dict[type, Any]):
    """The private reducers before the public ones, which may grow at any time."""

    def __missing__(self, kind: type) -> Any:
        return copyreg.dispatch_table[kind]


def _jax_to_numpy(array: Any) -> tuple[Callable[[Any], Any], tuple[Any]]:
    import numpy as np

    return _itself, (np.array(array),)  # a copy, as the view that JAX gives can't be written to


def _itself(value: Any) -> Any:
    return value

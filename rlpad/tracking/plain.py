"""Turns what a program holds (arrays, dataclasses, functions) into what JSON can hold."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any


def to_plain(value: Any, name: str = "value") -> Any:
    """Converts one value of a metrics row to plain Python: numbers, strings, None, lists and dicts.

    NumPy and JAX scalars and arrays lose nothing: narrow floats become the Python float of equal value. Paths
    become strings.

    Raises:
      TypeError: the value is none of these; `name` says which.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Enum):
        return to_plain(value.value, name)
    if hasattr(value, "__array__"):
        return _array_to_plain(value, name)
    # Subclasses of the plain types, such as an IntFlag or a str with methods of its own.
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"can't log {name!r}: {type(value).__qualname__} is not a number, string, array, list or dict")


def _array_to_plain(value: Any, name: str) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "biufSUV" or array.dtype.names is not None:
        raise TypeError(f"can't log {name!r}: an array of {array.dtype} has no JSON form")
    if array.dtype.kind == "V":
        # bfloat16 and its like are foreign to NumPy; float32 holds each of their values exactly.
        array = array.astype(np.float32)
    if array.dtype.kind == "S":
        array = array.astype(str)
    return array.tolist()


def split_nonfinite(value: Any) -> tuple[Any, Any]:
    """Splits a plain value into its valid-JSON form and a note of what was lost.

    Returns:
      The value with None for every NaN and infinity, and the value with `"nan"`, `"inf"` or `"-inf"` in their
      places; the note is None if all is finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None, str(value)
    if isinstance(value, list):
        parts = [split_nonfinite(item) for item in value]
        notes = [note for _, note in parts]
        return [kept for kept, _ in parts], notes if any(note is not None for note in notes) else None
    if isinstance(value, dict):
        split = {key: split_nonfinite(item) for key, item in value.items()}
        found = {key: note for key, (_, note) in split.items() if note is not None}
        return {key: kept for key, (kept, _) in split.items()}, found or None
    return value, None


def join_nonfinite(value: Any, note: Any) -> Any:
    """Puts back what `split_nonfinite` took out."""
    if isinstance(note, str):
        return float(note)
    if isinstance(note, list):
        return [join_nonfinite(item, part) for item, part in zip(value, note, strict=True)]
    if isinstance(note, dict):
        return {**value, **{key: join_nonfinite(value[key], part) for key, part in note.items()}}
    return value


def describe(value: Any) -> Any:
    """Converts a configuration to JSON: nested dataclasses to dicts, what JSON can't hold to its name.

    Functions and classes become `module:qualname`, a `functools.partial` a dict of its function and
    arguments, any other object the `module:qualname` of its class. Infinities and NaN become strings.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return [describe(item) for item in sorted(value, key=repr)]
    if isinstance(value, functools.partial):
        return {
            "partial": describe(value.func),
            "args": describe(value.args),
            "kwargs": describe(value.keywords),
        }
    if isinstance(value, os.PathLike | Enum) or (hasattr(value, "__array__") and not isinstance(value, type)):
        return describe(to_plain(value))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"

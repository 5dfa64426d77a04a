"""Stacks nests of equal structure into a nest of batches, and takes one apart; NumPy is loaded by the first number."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

Nest = Any


def signature(value: Nest) -> Hashable:
    """Says what must be equal for two nests to be stacked: structure, shapes, dtypes, and the kinds of leaves."""
    parts = _parts(value)
    if parts is not None:
        names, children, _ = parts
        return type(value), names, tuple(signature(child) for child in children)
    if _is_array(value):
        return "array", tuple(value.shape), str(value.dtype)
    return ("number", type(value)) if isinstance(value, numbers.Number) else "value"


def stack(values: Sequence[Nest]) -> Nest:
    """Stacks nests of one `signature`: arrays along a new first axis, numbers to an array [B], others to a list."""
    first = values[0]
    parts = _parts(first)
    if parts is not None:
        columns = zip(*[_children(value) for value in values], strict=True)
        return parts[2]([stack(column) for column in columns])
    if _is_array(first) or isinstance(first, numbers.Number):
        import numpy as np

        return np.stack([np.asarray(value) for value in values])
    return list(values)


def unstack(value: Nest, size: int) -> list[Nest]:
    """Takes a nest of batches apart: row `i` of each array and list makes nest `i`; None stays None.

    Raises:
      ValueError: something in it doesn't have `size` rows.
    """
    if value is None:
        return [None] * size
    parts = _parts(value)
    if parts is not None:
        columns = [unstack(child, size) for child in parts[1]]
        return [parts[2](list(row)) for row in zip(*columns, strict=True)] if columns else [value] * size
    if isinstance(value, list) or (_is_array(value) and value.shape):
        if len(value) == size:
            return list(value if isinstance(value, list) else value.__array__())
        raise ValueError(f"the handler of a batch of {size} requests returned {len(value)} rows")
    raise ValueError(
        f"the handler of a batch of {size} requests returned {type(value).__name__}; "
        "expected an array or list with a row per request, or a tuple, dict or dataclass of those"
    )


def _parts(value: Nest) -> tuple[tuple[Hashable, ...], list[Any], Callable[[list[Any]], Nest]] | None:
    """The names and values of a nest's children and how to make one of others; None for a leaf."""
    if isinstance(value, Mapping):
        keys = tuple(sorted(value, key=lambda key: (type(key).__name__, str(key))))
        return keys, [value[key] for key in keys], lambda children: dict(zip(keys, children, strict=True))
    if isinstance(value, tuple):
        kind = type(value)
        make = (lambda children: kind(*children)) if hasattr(value, "_fields") else kind
        return tuple(range(len(value))), list(value), make
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        owner: Any = type(value)
        children = [getattr(value, name) for name in names]
        return names, children, lambda new: owner(**dict(zip(names, new, strict=True)))
    return None


def _children(value: Nest) -> list[Any]:
    parts = _parts(value)
    assert parts is not None  # of the same signature as a nest
    return parts[1]


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__array__")

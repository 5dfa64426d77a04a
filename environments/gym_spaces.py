"""Gymnasium spaces as dm_env specs, with the conversion of values in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from dm_env import specs
from gymnasium import spaces

from rlpad.errors import UserError
from rlpad.types import NestedArray, NestedSpec

SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple"


class Converter(NamedTuple):
    """A space seen from dm_env.

    Attributes:
      spec: the nest of specs: a dict for Dict, a tuple for Tuple, one spec otherwise.
      from_gym: turns a value of the space into one of the spec; the result is always a fresh copy, since
        environments may reuse their buffers while replay still holds earlier values.
      to_gym: turns a value of the spec into one of the space.
    """

    spec: NestedSpec
    from_gym: Callable[[Any], NestedArray]
    to_gym: Callable[[NestedArray], Any]


def convert(space: spaces.Space, name: str) -> Converter:
    """Returns the converter of a space, which is called `name` in specs and errors.

    A Discrete space that starts at s becomes 0..n-1, shifted by s both ways, because a `DiscreteArray` starts
    at 0. Dtypes and bounds are kept. A Box without any bound is a plain `Array`.

    Raises:
      UserError: the space, or one inside it, has no spec (Text, Graph, Sequence, OneOf).
    """
    if isinstance(space, spaces.Dict):
        return _convert_dict(space, name)
    if isinstance(space, spaces.Tuple):
        return _convert_tuple(space, name)
    if isinstance(space, spaces.Discrete):
        return _convert_discrete(space, name)
    if isinstance(space, spaces.Box):
        return _convert_array(_box_spec(space, name))
    if isinstance(space, spaces.MultiBinary):
        return _convert_array(specs.BoundedArray(space.shape, space.dtype, 0, 1, name))
    if isinstance(space, spaces.MultiDiscrete):
        last = space.start + space.nvec - 1
        return _convert_array(specs.BoundedArray(space.shape, space.dtype, space.start, last, name))
    described = " ".join(str(space).split())  # the bounds of a Box may span lines
    raise UserError(f"the {name} space {described} is not supported: expected {SUPPORTED}")


def _box_spec(space: spaces.Box, name: str) -> specs.Array:
    if np.any(space.bounded_below) or np.any(space.bounded_above):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)
    return specs.Array(space.shape, space.dtype, name)


def _convert_array(spec: specs.Array) -> Converter:
    shape, dtype, name = spec.shape, spec.dtype, spec.name

    def from_gym(value: Any) -> np.ndarray:
        array = np.array(value, dtype)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but its space says {shape}")
        return array

    def to_gym(value: NestedArray) -> np.ndarray:
        return np.asarray(value, dtype)

    return Converter(spec, from_gym, to_gym)


def _convert_discrete(space: spaces.Discrete, name: str) -> Converter:
    start, scalar = int(space.start), space.dtype.type
    spec = specs.DiscreteArray(int(space.n), space.dtype, name)
    return Converter(spec, lambda value: scalar(value - start), lambda value: scalar(int(value) + start))


def _convert_dict(space: spaces.Dict, name: str) -> Converter:
    inner = {key: convert(child, f"{name}/{key}") for key, child in space.items()}
    return Converter(
        {key: child.spec for key, child in inner.items()},
        lambda value: {key: child.from_gym(value[key]) for key, child in inner.items()},
        lambda value: {key: child.to_gym(value[key]) for key, child in inner.items()},
    )


def _convert_tuple(space: spaces.Tuple, name: str) -> Converter:
    inner = [convert(child, f"{name}/{index}") for index, child in enumerate(space)]
    return Converter(
        tuple(child.spec for child in inner),
        lambda value: tuple(child.from_gym(v) for child, v in zip(inner, value, strict=True)),
        lambda value: tuple(child.to_gym(v) for child, v in zip(inner, value, strict=True)),
    )

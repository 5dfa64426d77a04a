"""Types that every part of rlpad shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np

# A nest (dict, list, tuple, named tuple) with arrays, scalars or specs as its leaves. Python's type
# system can't say "the same structure as", so docstrings state structures and shapes instead.
Nest = Any
NestedArray = Any
NestedSpec = Any

#: Makes an environment from a seed; equal seeds give equal environments.
EnvironmentFactory = Callable[[int], dm_env.Environment]

#: One row of metrics: names to numbers or strings.
Metrics = Mapping[str, Any]


class Transition(NamedTuple):
    """One n-step transition, or a batch of them with a leading axis on every leaf.

    Attributes:
      observation: observation at time t; the environment's observation structure.
      action: action taken at time t; the environment's action structure.
      reward: n-step return `r_t + g d_t r_{t+1} + ...`; float, the shape of the reward spec.
      discount: product of the n discounts without the learner's last factor of gamma, so that a learner
        bootstraps with `reward + gamma * discount * v(next_observation)`; the shape of the discount spec.
      next_observation: observation at time t + n.
      extras: whatever the actor stored beside the step at time t; `()` when nothing.
    """

    observation: NestedArray
    action: NestedArray
    reward: NestedArray
    discount: NestedArray
    next_observation: NestedArray
    extras: NestedArray = ()


class Variables(NamedTuple):
    """What a variable source answers.

    Attributes:
      version: the source's learner steps when these values were current; grows, never repeats.
      values: one nest of NumPy arrays per requested name, in the order of the request.
    """

    version: int
    values: Sequence[NestedArray]


Array = np.ndarray

"""What else to measure in an environment loop (Acme's observers)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np

from rlpad.types import NestedArray


class Observer(abc.ABC):
    """Watches the episodes of one environment and yields metrics for each."""

    @abc.abstractmethod
    def observe_first(self, environment: dm_env.Environment, timestep: dm_env.TimeStep) -> None:
        """Sees the first timestep of an episode."""

    @abc.abstractmethod
    def observe(self, environment: dm_env.Environment, timestep: dm_env.TimeStep, action: NestedArray) -> None:
        """Sees an action and the timestep that followed."""

    @abc.abstractmethod
    def get_metrics(self) -> Mapping[str, Any]:
        """Returns the metrics of the episode so far; they join its row in the log."""


#: Makes an observer; a loop makes one for each of its environments.
ObserverFactory = Callable[[], Observer]


class InfoObserver(Observer):
    """Logs entries of the info dict of environments that have one (`get_info()`), such as Gymnasium's.

    Each entry `name` becomes `info_<name>`: its last value in the episode, or the sum over the steps.
    """

    def __init__(self, last: Sequence[str] = (), total: Sequence[str] = ()):
        """Names the entries of which the last value is logged, and those that are added up."""
        self._last = tuple(last)
        self._total = tuple(total)
        self._metrics: dict[str, Any] = {}

    def observe_first(self, environment: dm_env.Environment, timestep: dm_env.TimeStep) -> None:
        """Starts anew."""
        del timestep
        self._metrics = {f"info_{name}": 0.0 for name in self._total}
        self._take_last(get_info(environment))

    def observe(self, environment: dm_env.Environment, timestep: dm_env.TimeStep, action: NestedArray) -> None:
        """Takes in one step's info."""
        del timestep, action
        info = get_info(environment)
        self._take_last(info)
        for name in self._total:
            if name in info:
                self._metrics[f"info_{name}"] += np.asarray(info[name])

    def _take_last(self, info: Mapping[str, Any]) -> None:
        self._metrics.update({f"info_{name}": info[name] for name in self._last if name in info})

    def get_metrics(self) -> Mapping[str, Any]:
        """Returns the entries that were seen."""
        return self._metrics


def get_info(environment: dm_env.Environment) -> Mapping[str, Any]:
    """Returns the environment's info dict of its last step, empty if it has none."""
    get = getattr(environment, "get_info", None)
    return get() if get is not None else {}

"""Finds agents by name: registered in this process, by entry point, or by module path."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from rlpad.errors import UserError, nearest

#: Entry-point group in which packages name their agents: `name = "package.module"`.
ENTRY_POINT_GROUP = "rlpad.agents"

BuilderT = TypeVar("BuilderT", bound=type)


@dataclasses.dataclass(frozen=True)
class AgentEntry:
    """A registered agent.

    Attributes:
      name: what users call it.
      builder: class that is called with a config and gives an `experiment.Builder`.
      config: dataclass of the agent's settings; every field must have a default.
      module: module that registered it, imported again wherever the agent is needed.
    """

    name: str
    builder: type
    config: type
    module: str

    @property
    def summary(self) -> str:
        """First line of the config's docstring, else of the builder's."""
        text = self.config.__doc__ or self.builder.__doc__ or ""
        return text.strip().splitlines()[0] if text.strip() else ""


_registered: dict[str, AgentEntry] = {}


def register_agent(name: str, *, config: type) -> Callable[[BuilderT], BuilderT]:
    """Class decorator that registers a builder as the agent called `name`.

    Args:
      name: name for the command line; letters, digits, `-` and `_`.
      config: dataclass of the agent's settings, each field with a default.

    Raises:
      UserError: the name is malformed or another module has taken it, or `config` is no dataclass that can be built
        without arguments.
    """
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise UserError(f"agent name {name!r} is malformed; expected letters, digits, '-' and '_'")
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise UserError(f"agent {name!r}: config must be a dataclass, got {config!r}")
    for field in dataclasses.fields(config):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and field.init:
            raise UserError(f"agent {name!r}: field {field.name!r} of {config.__name__} needs a default")

    def register(builder: BuilderT) -> BuilderT:
        taken = _registered.get(name)
        if taken is not None and (taken.module, taken.builder.__qualname__) != (
            builder.__module__,
            builder.__qualname__,
        ):
            raise UserError(
                f"agent name {name!r} is taken by {taken.module}.{taken.builder.__qualname__}; choose another"
            )
        _registered[name] = AgentEntry(name, builder, config, builder.__module__)
        return builder

    return register


def agent_names() -> list[str]:
    """Names of all agents that can be found without naming a module, sorted."""
    return sorted({*_registered, *_entry_points()})


def get_agent(name: str) -> AgentEntry:
    """Finds an agent by its name or by the module that registers it.

    Args:
      name: a registered name, an entry point's name, or the path of a module (`my_package.my_agent`).

    Raises:
      UserError: there is no such agent, the module can't be imported, or it registers none or several.
    """
    if name in _registered:
        return _registered[name]
    points = _entry_points()
    if name in points:
        module = points[name]
        _import(module, name)
        if name in _registered:
            return _registered[name]
        raise UserError(f"entry point {name!r} names module {module!r}, which registers no agent {name!r}")
    if _is_module(name):
        _import(name, name)
        # What it imports may register agents too; only its own count.
        found = [e for e in _registered.values() if e.module == name or e.module.startswith(f"{name}.")]
        if len(found) == 1:
            return found[0]
        what = "none" if not found else " and ".join(sorted(entry.name for entry in found))
        raise UserError(f"module {name!r} must register exactly one agent with @register_agent, found {what}")
    names = agent_names()
    raise UserError(
        f"unknown agent {name!r}{nearest(name, names)} (known: {', '.join(names)}; or name a module that registers one)"
    )


def make_builder(name: str, config: Any = None) -> Any:
    """Builds the builder of an agent, with its default settings if none are given.

    Raises:
      UserError: there is no such agent, or the config is of another agent.
    """
    entry = get_agent(name)
    if config is None:
        config = entry.config()
    if not isinstance(config, entry.config):
        raise UserError(f"agent {name!r} takes settings of type {entry.config.__name__}, got {type(config).__name__}")
    return entry.builder(config)


def _entry_points() -> dict[str, str]:
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point.value.partition(":")[0] for point in points}


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _import(module: str, agent: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"agent {agent!r}: can't import module {module!r}: {error}") from error

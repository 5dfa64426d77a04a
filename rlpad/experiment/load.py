"""Loads the policy that a run left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dm_env

from rlpad.errors import UserError, nearest
from rlpad.experiment.policy import EvaluationPolicy
from rlpad.registry import AgentEntry, get_agent
from rlpad.specs import make_environment_spec
from rlpad.tracking.run_directory import RunDirectory
from rlpad.tracking.snapshots import best_snapshot, list_snapshots, read_snapshot
from rlpad.types import NestedArray


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy and the environment it was trained on.

    Attributes:
      policy: the agent's evaluation policy with the snapshot's parameters.
      make_environment: `make_environment(seed, **options)` builds its environment as evaluation does.
      snapshot: name of the snapshot.
      actor_steps: actor steps when the snapshot was taken.
      agent: the agent's name.
      env: the environment's name.
    """

    policy: EvaluationPolicy
    make_environment: Callable[..., dm_env.Environment]
    snapshot: str
    actor_steps: int
    agent: str
    env: str

    def __call__(self, observation: NestedArray) -> NestedArray:
        """Returns the action for one observation."""
        return self.policy(observation)


def load_policy(run_dir: str | Path, snapshot: str = "best", *, seed: int = 0, num_streams: int = 1) -> LoadedPolicy:
    """Loads a policy from a run directory; no learner or replay is built.

    Args:
      run_dir: the run directory.
      snapshot: `best`, `latest`, or the name of a folder under the run's `checkpoints/`.
      seed: seed of the policy's own randomness.
      num_streams: environments that the policy acts for at once.

    Raises:
      UserError: it's no run directory, it holds no such snapshot, or its agent can't be found.
    """
    from rlpad.environment_factory import environment_factory

    directory = RunDirectory.open(run_dir)
    with _damage_named(directory.path / "config.json"):
        config = directory.config
        experiment = config["experiment"]
        entry = _find_agent(experiment["agent"], config.get("agent_module"))
        builder = entry.builder(config_from_json(entry.config, experiment["agent_config"]))
    factory = environment_factory(experiment["env"], **experiment["env_options"])

    def make_environment(seed: int, **options: Any) -> dm_env.Environment:
        if not options:
            return factory(seed, evaluation=True)
        return environment_factory(experiment["env"], **{**experiment["env_options"], **options})(seed, evaluation=True)

    with _damage_named(directory.path / "checkpoints"):
        path = _find_snapshot(directory, snapshot)
        variables, meta = read_snapshot(path)
    environment = make_environment(seed)
    try:
        spec = make_environment_spec(environment)
    finally:
        environment.close()
    policy = EvaluationPolicy(builder, spec, seed, num_streams)
    policy.set_variables(variables)
    return LoadedPolicy(
        policy, make_environment, path.name, meta["actor_steps"], experiment["agent"], experiment["env"]
    )


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turns what reading a damaged file raises into one line that names it."""
    try:
        yield
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{str(path)!r} can't be read: {type(error).__name__}: {error}") from error


def _find_agent(name: str, module: str | None) -> AgentEntry:
    """Finds an agent by its name, or by the module that registered it when the run was made."""
    try:
        return get_agent(name)
    except UserError as error:
        if module is None:
            raise
        if module == "__main__":
            raise UserError(
                f"agent {name!r} was registered in a script; register it in a module that can be imported"
            ) from error
        return get_agent(module)


def _find_snapshot(directory: RunDirectory, name: str) -> Path:
    snapshots = list_snapshots(directory.path)
    if not snapshots:
        raise UserError(f"run {str(directory.path)!r} holds no policy snapshot yet")
    if name == "latest":
        return snapshots[-1].path
    if name == "best":
        best = best_snapshot(directory.path)
        if best is None:
            raise UserError(
                f"run {str(directory.path)!r} has no evaluated snapshot yet; expected --snapshot latest or a name"
            )
        return best.path
    names = {snapshot.path.name: snapshot.path for snapshot in snapshots}
    if name not in names:
        raise UserError(
            f"run {str(directory.path)!r} has no snapshot {name!r}; expected best, latest or a folder "
            f"under checkpoints/{nearest(name, [*names, 'best', 'latest'])}"
        )
    return names[name]


def config_from_json(config_type: type, values: dict[str, Any]) -> Any:
    """Rebuilds a config dataclass, and those nested in it, from JSON; lists become tuples, as configs are immutable.

    Raises:
      UserError: the JSON has a field that the config doesn't have.
    """
    known = {field.name for field in dataclasses.fields(config_type)}
    for name in values:
        if name not in known:
            raise UserError(f"{config_type.__name__} has no setting {name!r}{nearest(name, known)}")
    hints = typing.get_type_hints(config_type)

    def rebuild(name: str, value: Any) -> Any:
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, dict):
            return config_from_json(hints[name], value)
        return tuple(value) if isinstance(value, list) else value

    return config_type(**{name: rebuild(name, value) for name, value in values.items()})

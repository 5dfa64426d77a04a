"""`gym:`: any registered Gymnasium environment, as a dm_env one."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium.envs.registration import EnvSpec, load_env_creator

from environments.gym_spaces import Converter, convert
from rlpad.environment_factory import check_options, keyword_names
from rlpad.errors import UserError, nearest
from rlpad.types import NestedArray, NestedSpec

#: What to install for Gymnasium's own families, by the module that their entry points name.
_REQUIREMENTS = {
    "gymnasium.envs.box2d": "rlpad[box2d]",
    "gymnasium.envs.mujoco": "gymnasium[mujoco]",
    "gymnasium.envs.tabular": "gymnasium[jax]",
    "gymnasium.envs.phys2d": "gymnasium[jax]",
}

_NO_DISCOUNT = np.float32(1.0)
_ZERO_DISCOUNT = np.float32(0.0)


class GymEnvironment(dm_env.Environment):
    """A Gymnasium environment seen as a dm_env one.

    Termination is a LAST timestep of discount 0; truncation is one of discount 1, so that learners go on to
    bootstrap; an episode that ends both ways has terminated. `step` after LAST resets and ignores its action.

    The seed goes to the first `reset(seed=)` only; later resets go on from there. Rewards are float32
    scalars, or float32 arrays where the environment declares a Box `reward_space`.
    """

    def __init__(self, environment: gymnasium.Env, seed: int | None = None, name: str | None = None) -> None:
        """Wraps an environment and seeds its action space, from a stream independent of its `reset(seed=)`.

        Raises:
          UserError: a space that has no spec.
        """
        self._environment = environment
        self._observation: Converter = convert(environment.observation_space, "observation")
        self._action: Converter = convert(environment.action_space, "action")
        self._reward_spec = _reward_spec(environment)
        self._reward_shape = self._reward_spec.shape
        self.name = name or (environment.spec.id if environment.spec else type(environment.unwrapped).__name__)
        self.seed = seed
        self._next_seed = seed
        if seed is not None:
            (sequence,) = np.random.SeedSequence(seed).spawn(1)
            environment.action_space.seed(int(sequence.generate_state(1)[0]))
        self._info: Mapping[str, Any] = {}
        self._needs_reset = True

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode; the first one from the seed."""
        observation, self._info = self._environment.reset(seed=self._next_seed)
        self._next_seed = None
        self._needs_reset = False
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, self._observation.from_gym(observation))

    def step(self, action: NestedArray) -> dm_env.TimeStep:
        """Takes one step, or starts an episode if none is under way.

        Raises:
          ValueError: the observation or the reward has another shape than its spec.
        """
        if self._needs_reset:
            return self.reset()
        observation, reward, terminated, truncated, self._info = self._environment.step(self._action.to_gym(action))
        # np.float32(array) may be the array itself, which the environment may go on to reuse.
        reward = np.array(reward, np.float32) if self._reward_shape else np.float32(reward)
        if reward.shape != self._reward_shape:
            raise ValueError(
                f"reward has shape {reward.shape}, expected {self._reward_shape}; an environment declares an "
                "array reward by a Box `reward_space`"
            )
        observation = self._observation.from_gym(observation)
        if not (terminated or truncated):
            return dm_env.TimeStep(dm_env.StepType.MID, reward, _NO_DISCOUNT, observation)
        self._needs_reset = True
        discount = _ZERO_DISCOUNT if terminated else _NO_DISCOUNT
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, discount, observation)

    def observation_spec(self) -> NestedSpec:
        """Returns the spec of the observation space, nested as it is."""
        return self._observation.spec

    def action_spec(self) -> NestedSpec:
        """Returns the spec of the action space, nested as it is."""
        return self._action.spec

    def reward_spec(self) -> specs.Array:
        """Returns a float32 spec: a scalar unless the environment has a `reward_space`."""
        return self._reward_spec

    def discount_spec(self) -> specs.BoundedArray:
        """Returns the spec of a float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def get_info(self) -> Mapping[str, Any]:
        """Returns the info dict of the last reset or step."""
        return self._info

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The environment's metadata, such as `render_fps`."""
        return self._environment.metadata

    def render(self) -> Any:
        """Returns what the environment renders: an RGB array (H, W, 3) under `render_mode="rgb_array"`."""
        return self._environment.render()

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


@dataclasses.dataclass(frozen=True)
class GymFactory:
    """Makes `gymnasium.make(id, **options)` as a dm_env environment."""

    id: str
    options: Mapping[str, Any]

    def __call__(self, seed: int, evaluation: bool = False) -> GymEnvironment:
        del evaluation  # a Gymnasium environment is the same in training and evaluation
        try:
            environment = gymnasium.make(self.id, disable_env_checker=True, **self.options)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise _missing(self.id, gymnasium.spec(self.id), error) from error
        return GymEnvironment(environment, seed, name=f"gym:{self.id}")


@dataclasses.dataclass(frozen=True)
class InstanceFactory:
    """Adapts one Gymnasium environment that somebody else has made."""

    environment: gymnasium.Env

    def __call__(self, seed: int, evaluation: bool = False) -> GymEnvironment:
        del evaluation
        return GymEnvironment(self.environment, seed)


def make(what: str | gymnasium.Env, **options: Any) -> GymFactory | InstanceFactory:
    """Returns a factory for a Gymnasium id (`CartPole-v1`, `module:Env-v0`) or for a ready environment.

    Options are `max_episode_steps`, `render_mode` and the arguments of the environment's constructor.

    Raises:
      UserError: no such id or option (names the nearest), or a package is missing (names what to install).
    """
    if isinstance(what, gymnasium.Env):
        check_options(str(what), options, ())
        return InstanceFactory(what)
    spec = _find(what)
    check_options(f"gym:{what}", options, _option_names(what, spec))
    return GymFactory(what, options)


def _find(name: str) -> EnvSpec:
    module, _, plain_id = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(f"environment 'gym:{name}': importing {module} failed: {error}") from error
    if plain_id in gymnasium.registry:
        return gymnasium.registry[plain_id]
    if plain_id.startswith("ALE/"):
        hint = f"; did you mean 'atari:{plain_id.removeprefix('ALE/').partition('-')[0]}'?"
    else:
        hint = nearest(plain_id, gymnasium.registry)
    raise UserError(f"unknown Gymnasium environment {plain_id!r}{hint}")


def _option_names(name: str, spec: EnvSpec) -> list[str] | None:
    """Imports the environment's code, which also finds out whether its packages are installed."""
    entry_point = spec.entry_point
    if entry_point is None:
        raise UserError(f"environment 'gym:{name}' is registered without an entry point")
    try:
        creator = entry_point if callable(entry_point) else load_env_creator(entry_point)
    except ImportError as error:  # DependencyNotInstalled isn't one; ModuleNotFoundError is
        raise _missing(name, spec, error) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(name, spec, error) from error
    names = keyword_names(creator)
    return None if names is None else [*names, "max_episode_steps", "render_mode"]


def _missing(name: str, spec: EnvSpec, error: Exception) -> UserError:
    family = str(spec.entry_point).partition(":")[0]
    for module, requirement in _REQUIREMENTS.items():
        if family == module or family.startswith(f"{module}."):
            return UserError(f"environment 'gym:{name}' needs packages that are missing: pip install '{requirement}'")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(f"environment 'gym:{name}' needs packages that are missing: {reason}")


def _reward_spec(environment: gymnasium.Env) -> specs.Array:
    space = getattr(environment.unwrapped, "reward_space", None)
    shape = space.shape if isinstance(space, gymnasium.spaces.Box) else ()
    return specs.Array(shape, np.float32, "reward")

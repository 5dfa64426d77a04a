"""`atari:`: Atari 2600 games from the Arcade Learning Environment, with the standard preprocessing.

Mnih et al., "Human-level control through deep reinforcement learning" (Nature, 2015), with the evaluation
protocol of Machado et al., "Revisiting the Arcade Learning Environment" (JAIR, 2018; arXiv:1709.06009).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from rlpad.environment_factory import check_options
from rlpad.errors import UserError, nearest
from rlpad.types import NestedArray

#: ROMs without a single-player mode.
_MULTI_PLAYER = frozenset({"combat", "joust", "maze_craze", "warlords"})


#: What errors call the type of an option.
_EXPECTED: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True)
class AtariOptions:
    """How a game is presented.

    Attributes:
      sticky_actions: probability that the emulator repeats the last action, each frame (Machado et al., 5.2).
      full_action_space: all 18 actions instead of those that the game uses.
      terminal_on_life_loss: a lost life gives discount 0 while the episode goes on.
      clip_rewards: training rewards are clipped to [-1, 1]; evaluation rewards never are.
      noop_max: an episode starts with 1 to `noop_max` frames without action; 0 for none.
      frame_skip: frames per step; the observation is the maximum of the last two.
      screen_size: width and height of an observation, in pixels.
      stack: frames in an observation.
      max_frames: frames after which an episode is truncated (108,000 are 30 minutes, or 27,000 steps of 4).
      render_mode: None or "rgb_array"; `render` works under both.
    """

    sticky_actions: float = 0.25
    full_action_space: bool = False
    terminal_on_life_loss: bool = False
    clip_rewards: bool = True
    noop_max: int = 30
    frame_skip: int = 4
    screen_size: int = 84
    stack: int = 4
    max_frames: int = 108_000
    render_mode: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is type(None):
                continue
            # A bool is an int to Python, but no number of frames.
            if not isinstance(value, (int, float) if kind is float else kind) or (
                isinstance(value, bool) and kind is not bool
            ):
                raise UserError(f"{field.name} is {value!r}, expected {_EXPECTED[kind]}")
        if not 0.0 <= self.sticky_actions < 1.0:
            raise UserError(f"sticky_actions is {self.sticky_actions}, expected a probability in [0, 1)")
        if self.noop_max < 0:
            raise UserError(f"noop_max is {self.noop_max}, expected 0 or more")
        for name in ("frame_skip", "screen_size", "stack", "max_frames"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if self.render_mode not in (None, "rgb_array"):
            raise UserError(f"render_mode is {self.render_mode!r}, expected None or 'rgb_array'")


class AtariEnvironment(dm_env.Environment):
    """One game; observations are uint8 of shape (screen_size, screen_size, stack), the newest frame last.

    Before an episode has `stack` frames the older ones are zeros. Every observation is an array of its own.
    The end of the game gives discount 0, the frame cap discount 1, and a lost life under
    `terminal_on_life_loss` a MID timestep of discount 0. Equal seeds and actions give equal timesteps.
    """

    def __init__(self, rom: str, seed: int, options: AtariOptions, name: str) -> None:
        """Loads the game `rom` (ale-py's id, in snake case); `name` is what errors call it."""
        import ale_py
        from ale_py import roms

        self.name, self.seed = name, seed
        self._options = options
        no_op_sequence, emulator_sequence = np.random.SeedSequence(seed).spawn(2)
        self._random = np.random.default_rng(no_op_sequence)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", options.sticky_actions)
        ale.setInt("max_num_frames_per_episode", options.max_frames)
        ale.setInt("random_seed", int(emulator_sequence.generate_state(1)[0] >> 1))
        path = roms.get_rom_path(rom)
        if path is None:
            raise UserError(f"environment {name!r}: ale-py has no ROM {rom!r}; reinstall 'rlpad[atari]'")
        ale.loadROM(path)
        self._actions = ale.getLegalActionSet() if options.full_action_space else ale.getMinimalActionSet()
        self._no_op = ale_py.Action.NOOP
        self._screens = np.zeros((2, *ale.getScreenDims()), np.uint8)
        self._frames: collections.deque[np.ndarray] = collections.deque(maxlen=options.stack)
        self._lives = 0
        self._needs_reset = True

    def reset(self) -> dm_env.TimeStep:
        """Starts a game, with its frames without action."""
        self._ale.reset_game()
        if self._options.noop_max:
            for _ in range(self._random.integers(1, self._options.noop_max + 1)):
                self._ale.act(self._no_op)
                if self._ale.game_over():
                    self._ale.reset_game()
        self._lives = self._ale.lives()
        self._needs_reset = False
        size = self._options.screen_size
        self._frames.extend([np.zeros((size, size), np.uint8)] * (self._options.stack - 1))
        self._ale.getScreenGrayscale(self._screens[1])
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, self._observe(self._screens[1]))

    def step(self, action: NestedArray) -> dm_env.TimeStep:
        """Takes one step of `frame_skip` frames, or starts a game if none is under way."""
        if self._needs_reset:
            return self.reset()
        reward = np.float32(self._advance(self._actions[int(action)]))
        if self._options.clip_rewards:
            reward = min(max(reward, np.float32(-1.0)), np.float32(1.0))
        screen = self._screens[1] if self._options.frame_skip == 1 else np.maximum(*self._screens)
        observation = self._observe(screen)
        lives = self._ale.lives()
        lost_life, self._lives = lives < self._lives, lives
        # A life lost on the very frame of the cap still counts as lost.
        terminal = self._ale.game_over(with_truncation=False) or (lost_life and self._options.terminal_on_life_loss)
        discount = np.float32(not terminal)
        if self._ale.game_over():
            self._needs_reset = True
            return dm_env.TimeStep(dm_env.StepType.LAST, reward, discount, observation)
        return dm_env.TimeStep(dm_env.StepType.MID, reward, discount, observation)

    def _advance(self, action: Any) -> float:
        """Plays `frame_skip` frames, fewer at the end of the game; keeps the last two screens."""
        ale, skip, reward = self._ale, self._options.frame_skip, 0.0
        for frame in range(skip):
            reward += ale.act(action)
            if ale.game_over():
                ale.getScreenGrayscale(self._screens[0])
                ale.getScreenGrayscale(self._screens[1])
                break
            if frame == skip - 2:
                ale.getScreenGrayscale(self._screens[0])
            elif frame == skip - 1:
                ale.getScreenGrayscale(self._screens[1])
        return reward

    def _observe(self, screen: np.ndarray) -> np.ndarray:
        import cv2

        size = self._options.screen_size
        self._frames.append(cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA))
        return np.stack(self._frames, axis=-1)

    def observation_spec(self) -> specs.BoundedArray:
        """Returns the spec of the stacked grey frames, uint8 (screen_size, screen_size, stack)."""
        shape = (self._options.screen_size, self._options.screen_size, self._options.stack)
        return specs.BoundedArray(shape, np.uint8, 0, 255, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        """Returns the spec of an index into the game's actions, or into all 18."""
        return specs.DiscreteArray(len(self._actions), np.int64, "action")

    def reward_spec(self) -> specs.Array:
        """Returns the spec of a float32 scalar, bounded when rewards are clipped."""
        if self._options.clip_rewards:
            return specs.BoundedArray((), np.float32, -1.0, 1.0, "reward")
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Returns the spec of a float32 scalar in [0, 1]."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def get_info(self) -> Mapping[str, int]:
        """Returns the lives left and the frames played, in this episode and in all."""
        return {
            "lives": self._ale.lives(),
            "episode_frame_number": self._ale.getEpisodeFrameNumber(),
            "frame_number": self._ale.getFrameNumber(),
        }

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How to show what `render` returns: a step is `frame_skip` of the console's 60 frames per second."""
        return {"render_modes": ["rgb_array"], "render_fps": 60.0 / self._options.frame_skip}

    def render(self) -> np.ndarray:
        """Returns the screen in colour, uint8 (210, 160, 3)."""
        return self._ale.getScreenRGB()


@dataclasses.dataclass(frozen=True)
class AtariFactory:
    """Makes one game with the same options each time."""

    game: str
    rom: str
    options: AtariOptions

    def __call__(self, seed: int, evaluation: bool = False) -> AtariEnvironment:
        options = dataclasses.replace(self.options, clip_rewards=False) if evaluation else self.options
        return AtariEnvironment(self.rom, seed, options, name=f"atari:{self.game}")


def make(game: str, **options: Any) -> AtariFactory:
    """Returns a factory for a game by its name in Pascal case (`Pong`, `SpaceInvaders`).

    Raises:
      UserError: no such game or option (names the nearest), a bad value, or the `atari` extra is missing.
    """
    try:
        import cv2  # noqa: F401 - only to know that it is there
        from ale_py import roms
    except ImportError as error:
        raise UserError(
            f"environment 'atari:{game}' needs packages that are missing: pip install 'rlpad[atari]'"
        ) from error
    games = {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids() if rom not in _MULTI_PLAYER}
    if game not in games:
        raise UserError(f"unknown Atari game 'atari:{game}'{nearest(f'atari:{game}', [f'atari:{g}' for g in games])}")
    check_options(f"atari:{game}", options, [field.name for field in dataclasses.fields(AtariOptions)])
    return AtariFactory(game, games[game], AtariOptions(**options))

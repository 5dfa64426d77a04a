"""The Atari preprocessing against a raw emulator that plays the same frames."""

import pickle

import dm_env
import numpy as np
import pytest
from dm_env import specs

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

from environments.atari import make  # noqa: E402 - needs what is tested for above
from rlpad.environment_factory import environment_factory  # noqa: E402
from rlpad.errors import UserError  # noqa: E402

FIRE = 1


class Raw:
    """The emulator alone, without stickiness; the same game as an environment with `noop_max=0`."""

    def __init__(self, rom, stickiness=0.0):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", stickiness)
        self.ale.setInt("random_seed", 1)
        self.ale.loadROM(ale_py.roms.get_rom_path(rom))
        self.ale.reset_game()
        self.actions = self.ale.getMinimalActionSet()

    def frames(self, action, count):
        """Plays frames; returns the reward of all and the grey screen after each."""
        reward, screens = 0, []
        for _ in range(count):
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale())
        return reward, screens


def shrink(screen, size=84):
    return cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA)


def play(environment, steps, seed=0):
    """Plays random actions; returns all timesteps."""
    random, actions = np.random.default_rng(seed), environment.action_spec().num_values
    timesteps = [environment.reset()]
    for _ in range(steps):
        timesteps.append(environment.step(int(random.integers(actions))))
    return timesteps


def test_first_observation_is_zeros_but_for_the_newest_frame():
    environment = make("Pong")(0)
    timestep = environment.reset()
    assert timestep.first()
    assert timestep.observation.shape == (84, 84, 4) and timestep.observation.dtype == np.uint8
    environment.observation_spec().validate(timestep.observation)
    assert not timestep.observation[..., :3].any()
    assert timestep.observation[..., 3].any()


def test_a_new_episode_keeps_no_frame_of_the_last():
    environment = make("Pong", stack=3)(0)
    play(environment, 10)
    observation = environment.reset().observation
    assert not observation[..., :2].any() and observation[..., 2].any()


def test_observations_are_the_pooled_frames_of_the_emulator():
    raw = Raw("breakout")
    environment = make("Breakout", noop_max=0, sticky_actions=0.0, stack=2)(0)
    expected = [np.zeros((84, 84), np.uint8), shrink(raw.ale.getScreenGrayscale())]
    observed = environment.reset().observation
    np.testing.assert_array_equal(observed, np.stack(expected, -1))
    pooled = False
    for step in range(60):
        action = FIRE if step % 8 == 0 else step % 4
        _, screens = raw.frames(action, 4)
        pooled |= not np.array_equal(screens[-1], screens[-2])
        expected = [expected[1], shrink(np.maximum(screens[-1], screens[-2]))]
        observed = environment.step(action).observation
        np.testing.assert_array_equal(observed, np.stack(expected, -1))
    assert pooled  # the last two frames differ somewhere, else the maximum would prove nothing


def test_without_frame_skip_nothing_is_pooled():
    raw = Raw("breakout")
    environment = make("Breakout", noop_max=0, sticky_actions=0.0, stack=1, frame_skip=1, screen_size=40)(0)
    environment.reset()
    for step in range(40):
        _, screens = raw.frames(step % 2, 1)
        np.testing.assert_array_equal(environment.step(step % 2).observation[..., 0], shrink(screens[0], 40))


def test_observations_are_arrays_of_their_own():
    timesteps = play(make("Breakout")(0), 5)
    kept = [timestep.observation.copy() for timestep in timesteps]
    timesteps[-1].observation[:] = 7
    for timestep, copy in zip(timesteps[:-1], kept[:-1], strict=True):
        np.testing.assert_array_equal(timestep.observation, copy)
    for before, after in zip(kept, kept[1:], strict=False):
        np.testing.assert_array_equal(before[..., 1:], after[..., :-1])


def test_rewards_are_clipped_in_training_only():
    factory = make("SpaceInvaders", sticky_actions=0.0, noop_max=0)
    raw = Raw("space_invaders")
    training, evaluation = factory(0), factory(0, evaluation=True)
    assert training.reward_spec() == specs.BoundedArray((), np.float32, -1.0, 1.0, "reward")
    assert evaluation.reward_spec() == specs.Array((), np.float32, "reward")
    training.reset(), evaluation.reset()
    true_rewards = []
    for _ in range(150):
        true, _ = raw.frames(FIRE, 4)
        clipped = training.step(FIRE).reward
        assert clipped == min(true, 1) and clipped.dtype == np.float32
        assert evaluation.step(FIRE).reward == true
        true_rewards.append(true)
    assert max(true_rewards) > 1


def test_negative_rewards_are_clipped_to_minus_one():
    timesteps = play(make("Pong")(0), 150)
    assert min(timestep.reward for timestep in timesteps[1:]) == -1.0


def test_unclipped_training_rewards_on_request():
    environment = make("SpaceInvaders", clip_rewards=False, sticky_actions=0.0, noop_max=0)(0)
    environment.reset()
    assert max(environment.step(FIRE).reward for _ in range(150)) > 1


def lose_lives(terminal_on_life_loss, **options):
    """Serves and never moves, until the game is over; returns (timestep, lives) of each step."""
    environment = make("Breakout", sticky_actions=0.0, terminal_on_life_loss=terminal_on_life_loss, **options)(0)
    environment.reset()
    rows = []
    for step in range(1000):
        timestep = environment.step(FIRE if step % 4 == 0 else 0)
        rows.append((timestep, environment.get_info()["lives"]))
        if timestep.last():
            break
    return environment, rows


def test_a_lost_life_gives_discount_zero_in_the_middle():
    _, rows = lose_lives(True)
    losses = [timestep for (_, before), (timestep, lives) in zip(rows, rows[1:], strict=False) if lives < before]
    assert len(losses) == 5
    assert [timestep.step_type.name for timestep in losses] == ["MID"] * 4 + ["LAST"]
    assert all(timestep.discount == 0.0 for timestep in losses)
    assert sum(timestep.discount == 0.0 for timestep, _ in rows) == 5


def test_without_the_option_only_the_end_of_the_game_gives_discount_zero():
    environment, rows = lose_lives(False)
    assert [timestep.discount for timestep, _ in rows] == [1.0] * (len(rows) - 1) + [0.0]
    assert rows[-1][0].last()
    assert environment.step(0).first()
    assert environment.get_info()["lives"] == 5


def test_the_frame_cap_truncates_with_discount_one():
    environment = make("Pong", max_frames=100, noop_max=0)(0)
    timesteps = play(environment, 25)
    assert [timestep.last() for timestep in timesteps] == [False] * 25 + [True]
    assert timesteps[-1].discount == 1.0
    assert environment.get_info()["episode_frame_number"] == 100
    assert environment.step(0).first()


def test_a_life_lost_on_the_frame_of_the_cap_still_counts():
    environment, rows = lose_lives(True, noop_max=0)
    first_loss = next(i for i, (timestep, _) in enumerate(rows) if timestep.discount == 0.0)
    _, capped = lose_lives(True, noop_max=0, max_frames=4 * (first_loss + 1))
    timestep, lives = capped[-1]
    assert len(capped) == first_loss + 1 and timestep.last() and lives == 4
    assert timestep.discount == 0.0
    _, ignoring = lose_lives(False, noop_max=0, max_frames=4 * (first_loss + 1))
    assert ignoring[-1][0].last() and ignoring[-1][0].discount == 1.0


def same(first, second):
    return all(
        np.array_equal(a.observation, b.observation) and a.reward == b.reward and a.discount == b.discount
        for a, b in zip(first, second, strict=True)
    )


def test_equal_seeds_and_actions_give_equal_timesteps():
    factory = make("Breakout")
    assert same(play(factory(5), 150), play(factory(5), 150))
    assert not same(play(factory(5), 150), play(factory(6), 150))


def test_without_sticky_actions_the_seed_changes_the_start_only():
    factory = make("Breakout", sticky_actions=0.0, noop_max=0)
    assert same(play(factory(5), 150), play(factory(6), 150))
    sticky = make("Breakout", sticky_actions=0.5, noop_max=0)
    assert not same(play(sticky(5), 150), play(sticky(6), 150))


def test_episodes_start_with_one_to_noop_max_frames():
    environment = make("Pong", noop_max=5)(0)
    starts = set()
    for _ in range(40):
        environment.reset()
        starts.add(environment.get_info()["episode_frame_number"])
    assert starts == {1, 2, 3, 4, 5}


def test_actions():
    assert make("Breakout")(0).action_spec() == specs.DiscreteArray(4, np.int64, "action")
    assert make("Breakout", full_action_space=True)(0).action_spec().num_values == 18


def test_step_before_reset_resets():
    assert make("Pong")(0).step(0).step_type is dm_env.StepType.FIRST


def test_render_is_the_colour_screen():
    environment = make("Breakout", render_mode="rgb_array")(0)
    environment.reset()
    screen = environment.render()
    assert screen.shape == (210, 160, 3) and screen.dtype == np.uint8
    assert environment.metadata["render_fps"] == 15.0


def test_the_name_and_the_factory():
    factory = environment_factory("atari:Breakout", noop_max=0)
    assert factory.name == "atari:Breakout" and factory(0).name == "atari:Breakout"
    copy = pickle.loads(pickle.dumps(factory))
    assert copy == factory
    assert same(play(copy(1), 20), play(factory(1), 20))


@pytest.mark.parametrize(
    ("name", "nearest"), [("atari:Pongg", "atari:Pong"), ("atari:spaceinvaders", "atari:SpaceInvaders")]
)
def test_an_unknown_game_names_the_nearest(name, nearest):
    with pytest.raises(UserError) as caught:
        environment_factory(name)
    assert str(caught.value) == f"unknown Atari game {name!r}; did you mean {nearest!r}?"


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(UserError, match=r"'atari:Pong' has no option 'sticky_action'; did you mean 'sticky_actions'"):
        environment_factory("atari:Pong", sticky_action=0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("sticky_actions", 1.0, "sticky_actions is 1.0, expected a probability in [0, 1)"),
        ("sticky_actions", "often", "sticky_actions is 'often', expected a number"),
        ("noop_max", -1, "noop_max is -1, expected 0 or more"),
        ("frame_skip", 0, "frame_skip is 0, expected 1 or more"),
        ("frame_skip", 2.5, "frame_skip is 2.5, expected a whole number"),
        ("stack", True, "stack is True, expected a whole number"),
        ("clip_rewards", "no", "clip_rewards is 'no', expected true or false"),
        ("render_mode", "human", "render_mode is 'human', expected None or 'rgb_array'"),
    ],
)
def test_a_bad_value_is_one_line(option, value, message):
    with pytest.raises(UserError) as caught:
        make("Pong", **{option: value})
    assert str(caught.value) == message


def test_numbers_without_a_fraction_will_do():
    assert make("Pong", sticky_actions=0).options.sticky_actions == 0

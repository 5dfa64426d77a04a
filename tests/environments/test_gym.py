"""The Gymnasium adapter against tiny environments whose values are known by hand."""

import sys

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from environments.gym import GymEnvironment, make
from environments.gym_spaces import convert
from rlpad.errors import UserError


class Scripted(gymnasium.Env):
    """Plays a script of (reward, terminated, truncated); observations count steps in one reused buffer."""

    observation_space = spaces.Box(-1.0, 100.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, script, reward_space=None):
        self.script = script
        if reward_space is not None:
            self.reward_space = reward_space
        self.buffer = np.zeros(2, np.float32)
        self.seeds, self.actions, self.closed = [], [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.at = 0
        self.buffer[:] = 0
        return self.buffer, {"at": 0}

    def step(self, action):
        self.actions.append(action)
        reward, terminated, truncated = self.script[self.at]
        self.at += 1
        self.buffer[:] = self.at
        return self.buffer, reward, terminated, truncated, {"at": self.at}

    def render(self):
        return np.full((2, 2, 3), self.at, np.uint8)

    def close(self):
        self.closed = True


CONTINUE = (1.0, False, False)


@pytest.mark.parametrize(
    ("terminated", "truncated", "discount"), [(True, False, 0.0), (False, True, 1.0), (True, True, 0.0)]
)
def test_termination_discounts_to_zero_and_truncation_to_one(terminated, truncated, discount):
    environment = GymEnvironment(Scripted([CONTINUE, (2.5, terminated, truncated)]))
    environment.reset()
    middle = environment.step(0)
    assert (middle.step_type, middle.reward, middle.discount) == (dm_env.StepType.MID, 1.0, 1.0)
    last = environment.step(0)
    assert (last.step_type, last.reward, last.discount) == (dm_env.StepType.LAST, 2.5, discount)
    assert last.reward.dtype == np.float32 and last.discount.dtype == np.float32
    environment.reward_spec().validate(last.reward)
    environment.discount_spec().validate(last.discount)


def test_step_before_reset_and_after_last_resets_and_ignores_its_action():
    inner = Scripted([(1.0, True, False)])
    environment = GymEnvironment(inner)
    first = environment.step(2)
    assert first.first() and first.reward is None and first.discount is None
    assert inner.actions == []
    assert environment.step(1).last()
    again = environment.step(2)
    assert again.first()
    np.testing.assert_array_equal(again.observation, [0, 0])
    assert inner.actions == [1]


def test_reset_in_the_middle_starts_over():
    environment = GymEnvironment(Scripted([CONTINUE] * 3))
    environment.reset()
    environment.step(0)
    environment.step(0)
    assert environment.reset().first()
    np.testing.assert_array_equal(environment.step(0).observation, [1, 1])


def test_the_seed_goes_to_the_first_reset_only():
    inner = Scripted([CONTINUE])
    environment = GymEnvironment(inner, seed=7)
    for _ in range(3):
        environment.reset()
    assert inner.seeds == [7, None, None]


def test_the_seed_also_seeds_the_action_space():
    draws = []
    for seed in (1, 1, 2):
        inner = Scripted([CONTINUE])
        inner.action_space = spaces.Discrete(1000)
        GymEnvironment(inner, seed=seed)
        draws.append([int(inner.action_space.sample()) for _ in range(5)])
    assert draws[0] == draws[1] != draws[2]


def test_observations_are_fresh_copies():
    environment = GymEnvironment(Scripted([CONTINUE] * 2))
    timesteps = [environment.reset(), environment.step(0), environment.step(0)]
    assert [timestep.observation.tolist() for timestep in timesteps] == [[0, 0], [1, 1], [2, 2]]


def test_get_info_render_and_close_reach_the_environment():
    inner = Scripted([CONTINUE])
    environment = GymEnvironment(inner)
    assert environment.get_info() == {}
    environment.reset()
    assert environment.get_info() == {"at": 0}
    environment.step(0)
    assert environment.get_info() == {"at": 1}
    np.testing.assert_array_equal(environment.render(), np.ones((2, 2, 3)))
    environment.close()
    assert inner.closed


def test_a_box_reward_space_gives_array_rewards_that_are_fresh_copies():
    reward = np.array([1.0, -2.0], np.float32)
    environment = GymEnvironment(Scripted([(reward, False, False)] * 2, spaces.Box(-9, 9, (2,), np.float64)))
    assert environment.reward_spec() == specs.Array((2,), np.float32, "reward")
    environment.reset()
    timestep = environment.step(0)
    environment.reward_spec().validate(timestep.reward)
    reward[:] = 5.0
    np.testing.assert_array_equal(timestep.reward, [1.0, -2.0])


def test_an_undeclared_array_reward_is_refused():
    environment = GymEnvironment(Scripted([(np.ones(2), False, False)]))
    environment.reset()
    with pytest.raises(ValueError, match=r"reward has shape \(2,\), expected \(\).*reward_space"):
        environment.step(0)


def test_an_observation_of_another_shape_than_its_space_is_refused():
    inner = Scripted([CONTINUE])
    inner.observation_space = spaces.Box(0, 1, (3,), np.float32)
    with pytest.raises(ValueError, match=r"observation has shape \(2,\), but its space says \(3,\)"):
        GymEnvironment(inner).reset()


def test_bounded_box():
    spec, from_gym, to_gym = convert(spaces.Box(np.array([0, -1]), np.array([2, 1]), dtype=np.float64), "box")
    assert spec == specs.BoundedArray((2,), np.float64, [0, -1], [2, 1], "box")
    value = np.array([0.5, 0.25])
    np.testing.assert_array_equal(to_gym(from_gym(value)), value)
    assert from_gym(value) is not value and from_gym(value).dtype == np.float64


def test_box_without_bounds_is_a_plain_array():
    spec = convert(spaces.Box(-np.inf, np.inf, (2, 3), np.float32), "box").spec
    assert type(spec) is specs.Array and spec == specs.Array((2, 3), np.float32, "box")


def test_half_bounded_box_keeps_its_bound():
    spec = convert(spaces.Box(0, np.inf, (2,), np.float32), "box").spec
    np.testing.assert_array_equal(spec.minimum, [0, 0])
    np.testing.assert_array_equal(spec.maximum, [np.inf, np.inf])


def test_discrete_is_shifted_by_its_start():
    space = spaces.Discrete(3, start=5)
    spec, from_gym, to_gym = convert(space, "d")
    assert spec == specs.DiscreteArray(3, np.int64, "d")
    assert [int(from_gym(np.int64(x))) for x in (5, 6, 7)] == [0, 1, 2]
    assert [int(to_gym(np.array(x))) for x in (0, 1, 2)] == [5, 6, 7]
    spec.validate(from_gym(np.int64(7)))
    assert space.contains(to_gym(2))


def test_discrete_below_zero():
    _, from_gym, to_gym = convert(spaces.Discrete(3, start=-1), "d")
    assert [int(from_gym(x)) for x in (-1, 0, 1)] == [0, 1, 2]
    assert [int(to_gym(x)) for x in (0, 1, 2)] == [-1, 0, 1]


def test_multi_binary():
    space = spaces.MultiBinary((2, 2))
    spec, from_gym, to_gym = convert(space, "m")
    assert spec == specs.BoundedArray((2, 2), np.int8, 0, 1, "m")
    value = np.array([[0, 1], [1, 1]], np.int8)
    spec.validate(from_gym(value))
    np.testing.assert_array_equal(to_gym(from_gym(value)), value)
    assert space.contains(to_gym(value.astype(np.int64)))


def test_multi_discrete_keeps_its_starts():
    space = spaces.MultiDiscrete([3, 2], start=[0, 10])
    spec, from_gym, to_gym = convert(space, "m")
    assert spec == specs.BoundedArray((2,), np.int64, [0, 10], [2, 11], "m")
    spec.validate(from_gym(np.array([2, 11])))
    with pytest.raises(ValueError):
        spec.validate(from_gym(np.array([3, 11])))
    assert space.contains(to_gym(np.array([1, 10], np.int32)))


def test_nested_spaces_round_trip():
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(2, start=1), spaces.MultiBinary(3)]),
        }
    )
    spec, from_gym, to_gym = convert(space, "o")
    assert set(spec) == {"image", "pair"} and isinstance(spec["pair"], tuple)
    assert spec["pair"][0] == specs.DiscreteArray(2, np.int64, "o/pair/0")
    assert spec["image"].dtype == np.uint8 and spec["image"].maximum.max() == 255
    space.seed(3)
    for _ in range(10):
        value = space.sample()
        seen = from_gym(value)
        spec["pair"][0].validate(seen["pair"][0])
        spec["pair"][1].validate(seen["pair"][1])
        spec["image"].validate(seen["image"])
        back = to_gym(seen)
        assert space.contains(back)
        np.testing.assert_array_equal(back["image"], value["image"])
        assert back["pair"][0] == value["pair"][0]
        np.testing.assert_array_equal(back["pair"][1], value["pair"][1])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Box(np.arange(60.0), np.arange(60.0) + 1, dtype=np.float64)),
        spaces.Dict({"fine": spaces.Discrete(2), "text": spaces.Text(3)}),
    ],
)
def test_a_space_without_spec_is_one_line(space):
    with pytest.raises(UserError, match=r"^the observation\S* space .* is not supported: expected Box, ") as caught:
        convert(space, "observation")
    assert "\n" not in str(caught.value)


def test_the_unsupported_part_of_a_nest_is_named():
    with pytest.raises(UserError, match="^the observation/text space"):
        convert(spaces.Dict({"fine": spaces.Discrete(2), "text": spaces.Text(3)}), "observation")


def trajectory(seed):
    environment = make("CartPole-v1")(seed)
    rows, timestep = [], environment.reset()
    for step in range(120):
        rows.append(timestep.observation.tolist())
        timestep = environment.step(step % 2)
    return rows


def test_equal_seeds_give_equal_trajectories_and_others_differ():
    assert trajectory(3) == trajectory(3)
    assert trajectory(3) != trajectory(4)


def test_specs_of_cartpole():
    environment = make("CartPole-v1")(0)
    assert environment.observation_spec().shape == (4,) and environment.observation_spec().dtype == np.float32
    assert environment.action_spec() == specs.DiscreteArray(2, np.int64, "action")
    assert environment.reward_spec() == specs.Array((), np.float32, "reward")
    assert environment.name == "gym:CartPole-v1"


def test_max_episode_steps_truncates():
    environment = make("CartPole-v1", max_episode_steps=3)(0)
    timesteps = [environment.reset()] + [environment.step(i % 2) for i in range(3)]
    assert [timestep.step_type.name for timestep in timesteps] == ["FIRST", "MID", "MID", "LAST"]
    assert timesteps[-1].discount == 1.0


def test_constructor_options_and_rendering():
    environment = make("CartPole-v1", render_mode="rgb_array", sutton_barto_reward=True)(0)
    environment.reset()
    assert environment.render().shape == (400, 600, 3)
    assert environment.step(0).reward == 0.0


def test_metadata_is_the_environments_own():
    assert make("CartPole-v1")(0).metadata["render_fps"] == 50


def test_a_ready_environment_is_adapted():
    inner = Scripted([CONTINUE])
    environment = make(inner)(5)
    environment.reset()
    assert inner.seeds == [5] and environment.name == "Scripted"
    with pytest.raises(UserError, match="has no option 'x'"):
        make(inner, x=1)


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(UserError, match=r"^unknown Gymnasium environment 'CartPol-v1'; did you mean 'CartPole-v\d'\?$"):
        make("CartPol-v1")


def test_an_atari_id_points_to_the_atari_kind(monkeypatch):
    for name in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, name)  # there once ale-py has been imported
    with pytest.raises(UserError, match=r"did you mean 'atari:Pong'\?"):
        make("ALE/Pong-v5")


def test_a_module_that_registers_environments(tmp_path, monkeypatch):
    (tmp_path / "registers_one.py").write_text(
        "import gymnasium\ngymnasium.register('RlpadTest-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert make("registers_one:RlpadTest-v0")(0).reset().first()
    finally:
        gymnasium.registry.pop("RlpadTest-v0", None)
    with pytest.raises(UserError, match="importing no_such_module failed"):
        make("no_such_module:X-v0")


def forget_box2d(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    import gymnasium.envs

    monkeypatch.delattr(gymnasium.envs, "box2d", raising=False)


@pytest.mark.parametrize("missing", ["Box2D", "gymnasium.envs.box2d.lunar_lander"])
def test_missing_box2d_names_the_extra(monkeypatch, missing):
    forget_box2d(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError) as caught:
        make("LunarLander-v3")
    assert str(caught.value) == (
        "environment 'gym:LunarLander-v3' needs packages that are missing: pip install 'rlpad[box2d]'"
    )


def test_a_missing_package_without_a_message_is_still_one_line(tmp_path, monkeypatch):
    (tmp_path / "fails_silently.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("RlpadBroken-v0", "fails_silently:Env")
    try:
        with pytest.raises(UserError, match="RlpadBroken-v0' needs packages that are missing"):
            make("RlpadBroken-v0")
    finally:
        gymnasium.registry.pop("RlpadBroken-v0")


def test_a_package_that_is_missed_only_when_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "fails_late.py").write_text("def make():\n    raise ImportError('get it\\nfrom there')\n")
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("RlpadLate-v0", "fails_late:make")
    try:
        with pytest.raises(UserError) as caught:
            make("RlpadLate-v0")(0)
    finally:
        gymnasium.registry.pop("RlpadLate-v0")
    assert str(caught.value) == "environment 'gym:RlpadLate-v0' needs packages that are missing: get it"

"""Environments by name: kinds, options, and functions of a module of one's own."""

import pickle
import sys

import dm_env
import gymnasium
import numpy as np
import pytest

from rlpad.environment_factory import check_options, environment_factory, keyword_names
from rlpad.errors import UserError

MODULE = """
import dm_env, gymnasium, numpy as np
from dm_env import specs


class Counting(dm_env.Environment):
    def __init__(self, seed, evaluation, size):
        self.seed, self.evaluation, self.size = seed, evaluation, size

    def reset(self):
        return dm_env.restart(np.full(self.size, self.seed, np.float32))

    def step(self, action):
        return dm_env.termination(1.0, np.zeros(self.size, np.float32))

    def observation_spec(self):
        return specs.Array((self.size,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


def make_dm(seed, evaluation=False, size=2):
    return Counting(seed, evaluation, size)


def make_plain(seed):
    return Counting(seed, None, 1)


def make_loose(seed, evaluation=False, **options):
    return Counting(seed, evaluation, options.get("size", 1))


def make_gym(seed):
    return gymnasium.make("CartPole-v1")


def make_text(seed):
    return "not an environment"


def without_seed(size=2):
    return Counting(0, False, size)


not_a_function = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_envs.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_envs"
    sys.modules.pop("own_envs", None)


@pytest.mark.parametrize("name", ["CartPole-v1", "gym:CartPole-v1"])
def test_a_name_without_kind_is_a_gymnasium_one(name):
    factory = environment_factory(name)
    assert factory.name == "gym:CartPole-v1"
    assert factory == environment_factory("gym:CartPole-v1")
    environment = factory(0)
    assert isinstance(environment, dm_env.Environment)
    assert environment.reset().observation.shape == (4,)


@pytest.mark.parametrize("name", ["CartPol-v1", "gym:CartPol-v1", "cartpole-v1"])
def test_an_unknown_name_names_the_nearest(name):
    with pytest.raises(UserError, match=r"unknown Gymnasium environment .*; did you mean 'CartPole-v\d'\?$"):
        environment_factory(name)


def test_an_unknown_option_names_the_nearest_or_all():
    with pytest.raises(UserError) as caught:
        environment_factory("CartPole-v1", max_episode_step=5)
    assert str(caught.value) == (
        "environment 'gym:CartPole-v1' has no option 'max_episode_step'; did you mean 'max_episode_steps'?"
    )
    with pytest.raises(UserError, match="has no option 'zzz'; it has max_episode_steps, render_mode, sutton"):
        environment_factory("CartPole-v1", zzz=5)


@pytest.mark.parametrize("name", ["", ":", "gym:", ":CartPole-v1", "own_envs:"])
def test_a_malformed_name_says_what_a_name_looks_like(name):
    with pytest.raises(UserError, match="expected a name such as CartPole-v1, atari:Pong or module:function"):
        environment_factory(name)


@pytest.mark.parametrize("name", ["gymm:CartPole-v1", "./own_envs:make_dm", "own_envs.py:make_dm", "no way:x"])
def test_a_prefix_that_is_neither_kind_nor_module(module, name):
    with pytest.raises(UserError, match=r"is neither a kind \(atari, gym\) nor a module") as caught:
        environment_factory(name)
    assert "\n" not in str(caught.value)


def test_a_mistyped_kind_names_the_nearest():
    with pytest.raises(UserError, match=r"did you mean 'gym'\?$"):
        environment_factory("gymm:CartPole-v1")


def test_a_function_that_returns_a_dm_env(module):
    factory = environment_factory("own_envs:make_dm", size=3)
    assert factory.name == "own_envs:make_dm"
    environment = factory(7)
    np.testing.assert_array_equal(environment.reset().observation, [7, 7, 7])
    assert environment.evaluation is False
    assert factory(7, evaluation=True).evaluation is True


def test_a_function_without_evaluation_is_not_told(module):
    assert environment_factory("own_envs:make_plain")(1, evaluation=True).evaluation is None


def test_a_function_of_any_options_is_told_evaluation_too(module):
    environment = environment_factory("own_envs:make_loose", size=4, anything=1)(1, evaluation=True)
    assert environment.evaluation is True and environment.size == 4


def test_a_function_that_returns_a_gymnasium_environment(module):
    factory = environment_factory("own_envs:make_gym")
    first, second, other = (factory(seed).reset().observation for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    assert factory(5).name == "CartPole-v1"


def test_a_function_that_returns_something_else(module):
    with pytest.raises(UserError) as caught:
        environment_factory("own_envs:make_text")(0)
    assert str(caught.value) == "own_envs:make_text returned str, expected a dm_env.Environment or a gymnasium.Env"


def test_a_function_without_seed(module):
    with pytest.raises(UserError) as caught:
        environment_factory("own_envs:without_seed")
    assert str(caught.value) == ("own_envs:without_seed takes no argument 'seed': expected def without_seed(seed, ...)")


@pytest.mark.parametrize("option", ["seed", "evaluation"])
def test_what_rlpad_gives_is_no_option(module, option):
    with pytest.raises(UserError, match=f"has no option '{option}'"):
        environment_factory("own_envs:make_dm", **{option: 1})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("make_dmm", "module 'own_envs' has no function 'make_dmm'; did you mean 'make_dm'?"),
        ("not_a_function", "module 'own_envs' has no function 'not_a_function'"),
        ("Thing-v0", "a Gymnasium id that this module registers is spelt 'gym:own_envs:Thing-v0'"),
    ],
)
def test_an_unknown_function(module, function, message):
    with pytest.raises(UserError) as caught:
        environment_factory(f"own_envs:{function}")
    assert message in str(caught.value)


def test_a_module_whose_import_fails_is_not_called_missing(module):
    with pytest.raises(UserError, match="importing needs_more failed: No module named 'surely_not_installed'"):
        environment_factory("needs_more:make")


@pytest.mark.parametrize("name", ["CartPole-v1", "own_envs:make_dm"])
def test_factories_survive_pickling(module, name):
    factory = environment_factory(name)
    copy = pickle.loads(pickle.dumps(factory))
    assert copy == factory
    np.testing.assert_array_equal(copy(3).reset().observation, factory(3).reset().observation)


def test_missing_extras_are_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UserError) as caught:
        environment_factory("atari:Pong")
    assert str(caught.value) == "environment 'atari:Pong' needs packages that are missing: pip install 'rlpad[atari]'"
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(gymnasium.envs, "box2d", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium.envs.box2d", None)
    with pytest.raises(UserError) as caught:
        environment_factory("LunarLander-v3")
    assert str(caught.value) == (
        "environment 'gym:LunarLander-v3' needs packages that are missing: pip install 'rlpad[box2d]'"
    )


def test_keyword_names():
    class Example:
        def __init__(self, a, /, b, *, c=1):
            pass

    assert keyword_names(Example) == ["b", "c"]
    assert keyword_names(lambda a, b, **c: None) is None
    assert keyword_names(lambda a, b: None, skip=1) == ["b"]


def test_check_options_without_any():
    check_options("x", {"anything": 1}, None)
    with pytest.raises(UserError, match="environment 'x' has no option 'a'; it has none"):
        check_options("x", ["a"], ())

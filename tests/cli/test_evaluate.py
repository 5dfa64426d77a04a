"""`rlpad evaluate` with a hand-made policy and environment, and with a real policy on CartPole."""

import importlib.util
import json
import sys
import types

import dm_env
import numpy as np
import pytest
from dm_env import specs

from rlpad.cli import evaluate as module
from rlpad.cli.evaluate import main
from rlpad.cli.main import main as rlpad
from rlpad.errors import UserError

# The reader of videos below starts ffmpeg by a fork in a process of many threads, JAX's; it execs at once.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork")

HAS_VIDEO = importlib.util.find_spec("moviepy") is not None and importlib.util.find_spec("imageio") is not None
needs_video = pytest.mark.skipif(not HAS_VIDEO, reason="needs the extra video")


class Counting(dm_env.Environment):
    """Episodes of three steps whose rewards are the seed's last digit; each frame is one grey."""

    made = []

    def __init__(self, seed, render_mode=None, size=(16, 20), metadata=None):
        self.seed, self.render_mode, self.size, self.metadata = seed, render_mode, size, metadata
        self.episodes = self.rendered = self.at = 0
        self.closed = False
        Counting.made.append(self)

    def reset(self):
        self.at = 0
        self.episodes += 1
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        self.at += 1
        make = dm_env.termination if self.at == 3 else dm_env.transition
        return make(float(self.seed % 10), np.zeros(1, np.float32))

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def render(self):
        self.rendered += 1
        return np.full((*self.size, 3), 60 * self.at, np.uint8)

    def close(self):
        self.closed = True


class FakePolicy:
    """Runs episodes one after the other, each environment its share."""

    def run_episodes(self, environments, episodes, max_steps):
        returns = []
        for i, environment in enumerate(environments):
            for _ in range(episodes // len(environments) + (i < episodes % len(environments))):
                timestep, total = environment.reset(), 0.0
                while not timestep.last():
                    timestep = environment.step(0)
                    total += timestep.reward
                returns.append(total)
        return returns, [3] * len(returns)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory whose policy and environment are made up; `calls` holds those of load_policy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole").mkdir()
    Counting.made = []
    state = types.SimpleNamespace(path="cartpole", calls=[], make_environment=Counting)

    def load_policy(run_dir, snapshot="best", *, seed=0, num_streams=1):
        state.calls.append({"run_dir": run_dir, "snapshot": snapshot, "seed": seed, "num_streams": num_streams})
        return types.SimpleNamespace(
            policy=FakePolicy(),
            make_environment=state.make_environment,
            snapshot="policy-000000048000",
            actor_steps=48_000,
            agent="dqn",
            env="CartPole-v1",
        )

    fake = types.ModuleType("rlpad.experiment.load")
    fake.load_policy = load_policy
    monkeypatch.setitem(sys.modules, "rlpad.experiment.load", fake)
    return state


def numbers(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error(*arguments):
    with pytest.raises(UserError) as caught:
        main(list(arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_line_says_it_all(run, capsys):
    assert main([run.path]) == 0
    returns = [3.0 * (environment.seed % 10) for environment in Counting.made for _ in range(2)]
    assert capsys.readouterr().out == (
        "CartPole-v1 · dqn · snapshot policy-000000048000 (48,000 actor steps): "
        f"return {np.mean(returns):.1f} ± {np.std(returns):.1f} over 20 episodes "
        f"(min {min(returns):.1f}, max {max(returns):.1f})\n"
    )


def test_summary_of_known_numbers():
    result = {
        "env": "CartPole-v1",
        "agent": "dqn",
        "snapshot": "policy-000000048000",
        "actor_steps": 48_000,
        "episodes": 20,
        "episode_return_mean": 500.0,
        "episode_return_std": 0.0,
        "episode_return_min": 500.0,
        "episode_return_max": 500.0,
        "video": None,
    }
    assert module.summary(result) == (
        "CartPole-v1 · dqn · snapshot policy-000000048000 (48,000 actor steps): "
        "return 500.0 ± 0.0 over 20 episodes (min 500.0, max 500.0)"
    )
    assert "over 1 episode (" in module.summary({**result, "episodes": 1})


def test_json(run, capsys):
    result = numbers(capsys, run.path, "--episodes", "3", "--snapshot", "latest")
    returns = [3.0 * (environment.seed % 10) for environment in Counting.made]
    assert result == {
        "env": "CartPole-v1",
        "agent": "dqn",
        "snapshot": "policy-000000048000",
        "actor_steps": 48_000,
        "episodes": 3,
        "episode_return_mean": pytest.approx(np.mean(returns)),
        "episode_return_std": pytest.approx(np.std(returns)),
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_returns": returns,
        "seed": 0,
        "video": None,
    }
    assert run.calls[0]["snapshot"] == "latest" and run.calls[0]["run_dir"] == run.path


@pytest.mark.parametrize(("episodes", "streams"), [(1, 1), (4, 4), (10, 10), (25, 10)])
def test_episodes_are_spread_over_at_most_ten_environments(run, capsys, episodes, streams):
    assert numbers(capsys, run.path, "--episodes", str(episodes))["episodes"] == episodes
    assert run.calls[0]["num_streams"] == streams == len(Counting.made)
    assert sum(environment.episodes for environment in Counting.made) == episodes
    assert all(environment.closed for environment in Counting.made)


def test_equal_seeds_give_equal_environments_and_others_differ(run, capsys):
    seeds = []
    for seed in ("1", "1", "2"):
        Counting.made = []
        numbers(capsys, run.path, "--seed", seed)
        seeds.append([environment.seed for environment in Counting.made] + [run.calls[-1]["seed"]])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0]) | set(seeds[2])) == 22


def test_environments_are_closed_when_an_episode_fails(run, monkeypatch):
    monkeypatch.setattr(Counting, "step", lambda self, action: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([run.path])
    assert all(environment.closed for environment in Counting.made)


def test_a_missing_run_names_its_nearest_sibling(run, tmp_path):
    assert error("cartpol") == "there is no run directory 'cartpol'; did you mean 'cartpole'?"
    (tmp_path / "runs" / "dqn-pong-1").mkdir(parents=True)
    assert error("runs/dqn-pong-2") == ("there is no run directory 'runs/dqn-pong-2'; did you mean 'runs/dqn-pong-1'?")
    assert error("dqn-pong-1") == "there is no run directory 'dqn-pong-1'; did you mean 'runs/dqn-pong-1'?"
    assert error("/nowhere/at/all/zzz") == "there is no run directory '/nowhere/at/all/zzz'"
    (tmp_path / "file").write_text("")
    assert error("file") == "run 'file' is a file; expected a run directory"
    assert run.calls == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be from 0 to 4294967295, got -1"),
        (["--video", "video.avi"], "--video must name an .mp4 file, got 'video.avi'"),
        (["--video", "no/such/video.mp4"], "--video 'no/such/video.mp4': there is no folder 'no/such'"),
        (
            ["--episode", "3"],
            "unknown flag '--episode'; did you mean '--episodes'? (see rlpad evaluate --help)",
        ),
    ],
)
def test_bad_flags_are_one_line(run, arguments, message):
    assert error(run.path, *arguments) == message
    assert run.calls == []


def test_without_a_run_it_says_what_is_missing(run, capsys):
    assert rlpad(["evaluate"]) == 2
    assert capsys.readouterr().err.strip().lower() == "rlpad: error: missing run (see rlpad evaluate --help)"


@pytest.mark.parametrize("missing", ["moviepy", "imageio"])
def test_video_without_the_extra(run, monkeypatch, missing):
    for name in [name for name in sys.modules if name.partition(".")[0] == "moviepy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert error(run.path, "--video", "out.mp4") == (
        "--video needs packages that are missing: pip install 'rlpad[video]'"
    )


@pytest.mark.parametrize("existing", ["file", "dangling link"])
def test_a_video_that_is_there_is_never_overwritten(run, tmp_path, existing):
    path = tmp_path / "out.mp4"
    path.write_text("precious") if existing == "file" else path.symlink_to(tmp_path / "elsewhere")
    assert error(run.path, "--video", "out.mp4") == (
        "--video 'out.mp4' is there already; choose another name, nothing is overwritten"
    )
    assert run.calls == []
    assert existing != "file" or path.read_text() == "precious"


def read_video(path):
    """Returns the frames as an array, and the frames per second."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return np.array([np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in reader]), meta["fps"]


@needs_video
def test_the_video_holds_the_first_episode(run, capsys, tmp_path):
    run.make_environment = lambda seed, **options: Counting(seed, metadata={"render_fps": 12}, **options)
    assert main([run.path, "--episodes", "4", "--video", "out.mp4"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "video of the first episode: out.mp4"
    frames, fps = read_video(tmp_path / "out.mp4")
    assert fps == 12
    assert frames.shape == (4, 16, 20, 3)  # the first timestep and three steps
    np.testing.assert_allclose(frames.mean((1, 2, 3)), [0, 60, 120, 180], atol=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cartpole", "out.mp4"]
    assert [environment.render_mode for environment in Counting.made] == ["rgb_array"] * 2 + [None] * 3
    assert all(environment.closed for environment in Counting.made)


@needs_video
def test_filming_changes_no_return(run, capsys):
    plain = numbers(capsys, run.path, "--episodes", "12")
    filmed = numbers(capsys, run.path, "--episodes", "12", "--video", "out.mp4")
    assert filmed["episode_returns"] == plain["episode_returns"]
    assert filmed["video"] == "out.mp4"


@needs_video
def test_later_episodes_are_not_filmed(run, capsys, tmp_path):
    numbers(capsys, run.path, "--episodes", "25", "--video", "out.mp4")
    assert [environment.rendered for environment in Counting.made[:3]] == [
        1,
        4,
        0,
    ]  # the probe, the star, the rest
    assert len(read_video(tmp_path / "out.mp4")[0]) == 4


@needs_video
def test_without_metadata_and_with_odd_sides(run, capsys, tmp_path):
    run.make_environment = lambda seed, **options: Counting(seed, size=(15, 21), **options)
    numbers(capsys, run.path, "--episodes", "1", "--video", "out.mp4")
    frames, fps = read_video(tmp_path / "out.mp4")
    assert fps == 30 and frames.shape == (4, 16, 22, 3)


@needs_video
@pytest.mark.parametrize(
    ("render", "reason"),
    [
        (lambda self: None, "it gives no RGB array"),
        (lambda self: np.zeros((4, 4), np.uint8), "it gives no RGB array"),
        (lambda self: (_ for _ in ()).throw(ImportError("no\npygame")), "no pygame"),
    ],
)
def test_an_environment_that_can_not_render(run, monkeypatch, tmp_path, render, reason):
    monkeypatch.setattr(Counting, "render", render)
    assert error(run.path, "--video", "out.mp4") == f"environment 'CartPole-v1' can't render for --video: {reason}"
    assert [path.name for path in tmp_path.iterdir()] == ["cartpole"]
    assert all(environment.closed for environment in Counting.made)


@needs_video
def test_an_environment_without_render_modes(run):
    def make_environment(seed, **options):
        if options:
            raise UserError("environment 'mine' has no option 'render_mode'")
        return Counting(seed)

    run.make_environment = make_environment
    assert error(run.path, "--video", "out.mp4") == (
        "environment 'CartPole-v1' can't render for --video: environment 'mine' has no option 'render_mode'"
    )


@needs_video
def test_a_failing_episode_leaves_no_video_and_no_litter(run, monkeypatch, tmp_path):
    step = Counting.step

    def fail(self, action):
        if self.at == 2:
            raise RuntimeError("broke")
        return step(self, action)

    monkeypatch.setattr(Counting, "step", fail)
    with pytest.raises(RuntimeError, match="broke"):
        main([run.path, "--video", "out.mp4"])
    assert [path.name for path in tmp_path.iterdir()] == ["cartpole"]


@needs_video
def test_a_file_that_appears_meanwhile_is_kept(run, monkeypatch, tmp_path):
    monkeypatch.setattr(Counting, "close", lambda self: (tmp_path / "out.mp4").write_text("precious"))
    assert "nothing is overwritten" in error(run.path, "--video", "out.mp4")
    assert (tmp_path / "out.mp4").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cartpole", "out.mp4"]


@needs_video
def test_an_encoder_that_fails_leaves_nothing(run, monkeypatch, tmp_path):
    class Failing:
        def __init__(self, path, size, fps):
            with open(path, "wb") as file:
                file.write(b"half a video")
            self.proc = types.SimpleNamespace(returncode=1)

        def write_frame(self, frame):
            pass

        def close(self):
            pass

    monkeypatch.setattr(module, "_video_writer", lambda: Failing)
    assert error(run.path, "--video", "out.mp4") == "--video 'out.mp4': ffmpeg couldn't write it"
    assert [path.name for path in tmp_path.iterdir()] == ["cartpole"]


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    """A run directory with two snapshots of untrained DQN networks on CartPole; the first is the best."""
    pytest.importorskip("rlpad.tracking.run_directory")
    import jax

    from agents.dqn import DQNBuilder, DQNConfig
    from rlpad.environment_factory import environment_factory
    from rlpad.experiment import ExperimentConfig
    from rlpad.specs import make_environment_spec
    from rlpad.tracking.run_directory import RunDirectory
    from rlpad.tracking.snapshots import mark_best, write_snapshot

    config = DQNConfig(hidden_sizes=(16,))
    spec = make_environment_spec(environment_factory("CartPole-v1")(0))
    network = DQNBuilder(config).make_networks(spec)
    experiment = ExperimentConfig(
        agent="dqn", env="CartPole-v1", agent_config=config, env_options={"max_episode_steps": 40}
    )
    path = tmp_path_factory.mktemp("runs") / "dqn-cartpole"
    RunDirectory.create(path, {"experiment": experiment}, ["rlpad", "train", "dqn"])
    parameters = [network.init(jax.random.PRNGKey(key)) for key in (0, 1)]
    for steps, params in zip((1000, 2000), parameters, strict=True):
        write_snapshot(path, {"policy": params}, actor_steps=steps, learner_steps=steps)
    mark_best(path, "policy-000000001000", 30.0, 10)
    return types.SimpleNamespace(path=path, network=network, parameters=parameters)


def returns_by_hand(run, params, episodes, seed):
    """Plays one episode per environment, greedily, with the network alone."""
    from rlpad.environment_factory import environment_factory
    from rlpad.experiment.seeds import Seeds

    returns = []
    for i in range(episodes):
        environment = environment_factory("CartPole-v1", max_episode_steps=40)(Seeds(seed).integer("environment", i))
        timestep, total = environment.reset(), 0.0
        while not timestep.last():
            timestep = environment.step(int(np.argmax(run.network.apply(params, timestep.observation[None])[0])))
            total += timestep.reward
        returns.append(total)
    return returns


def test_a_real_policy_plays_as_its_network_says(real_run, capsys):
    result = numbers(capsys, str(real_run.path), "--episodes", "5", "--seed", "3")
    assert (result["env"], result["agent"]) == ("CartPole-v1", "dqn")
    assert (result["snapshot"], result["actor_steps"]) == ("policy-000000001000", 1000)
    assert result["episode_returns"] == returns_by_hand(real_run, real_run.parameters[0], 5, seed=3)
    latest = numbers(capsys, str(real_run.path), "--episodes", "5", "--seed", "3", "--snapshot", "latest")
    assert (latest["snapshot"], latest["actor_steps"]) == ("policy-000000002000", 2000)
    assert latest["episode_returns"] == returns_by_hand(real_run, real_run.parameters[1], 5, seed=3)
    named = numbers(capsys, str(real_run.path), "--episodes", "5", "--seed", "3", "--snapshot", "policy-000000002000")
    assert named == latest


def test_real_runs_with_equal_seeds_are_equal(real_run, capsys):
    first, again, other = (
        numbers(capsys, str(real_run.path), "--episodes", "12", "--seed", seed) for seed in ("0", "0", "1")
    )
    assert first == again
    assert first["episode_returns"] != other["episode_returns"]


def test_an_unknown_snapshot_names_the_nearest(real_run):
    assert "has no snapshot 'policy-000000003000'" in error(str(real_run.path), "--snapshot", "policy-000000003000")
    assert "did you mean 'latest'?" in error(str(real_run.path), "--snapshot", "lates")


def test_a_folder_that_is_no_run(real_run, tmp_path):
    (tmp_path / "other").mkdir()
    assert "no run directory" in error(str(tmp_path / "other"))


def test_a_run_without_snapshots(real_run, tmp_path):
    import shutil

    shutil.copytree(real_run.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "best.json").unlink()
    assert "has no evaluated snapshot yet" in error(str(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert "holds no policy snapshot yet" in error(str(tmp_path / "run"))


@needs_video
def test_a_real_video(real_run, capsys, tmp_path):
    pytest.importorskip("pygame")
    path = tmp_path / "cartpole.mp4"
    plain = numbers(capsys, str(real_run.path), "--episodes", "2")
    filmed = numbers(capsys, str(real_run.path), "--episodes", "2", "--video", str(path))
    assert filmed["episode_returns"] == plain["episode_returns"]
    frames, fps = read_video(path)
    assert fps == 50  # CartPole's own
    assert frames.shape == (int(filmed["episode_returns"][0]) + 1, 400, 600, 3)

"""Every bad request ends with code 2 and one line that says what was wrong; nothing starts or is written."""

import importlib.util
import multiprocessing
import os
import sys

import pytest

from rlpad.cli.main import main

TRAIN = ["train", "dqn"]
CARTPOLE = [*TRAIN, "--env", "CartPole-v1"]


@pytest.fixture(autouse=True)
def nothing_is_made(tmp_path, monkeypatch):
    """Runs in an empty folder, which stays empty but for what the test itself put there."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # main() puts the working directory on the path; that is undone here.
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    assert not multiprocessing.active_children()


def refuse(capsys, arguments):
    before = set(os.listdir())
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("rlpad: error: ")
    assert set(os.listdir()) == before
    return lines[0].removeprefix("rlpad: error: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], ["'trian'", "did you mean 'train'", "train, evaluate, agents, doctor"]),
        (["train"], ["missing AGENT", "rlpad train AGENT --env ENV", "dqn"]),
        (["train", "--env", "CartPole-v1"], ["the agent comes first", "dqn"]),
        (["train", "dqm", "--env", "CartPole-v1"], ["unknown agent 'dqm'", "did you mean 'dqn'"]),
        (TRAIN, ["missing --env", "rlpad train dqn --help"]),
        ([*TRAIN, "--env"], ["--env expects a value", "got none"]),
        ([*TRAIN, "--env", "CartPol-v1"], ["'CartPol-v1'", "did you mean 'CartPole-v1'"]),
        ([*TRAIN, "--env", "no_module:make"], ["'no_module'", "neither a kind", "atari, gym"]),
        ([*TRAIN, "--env", "Pendulum-v1"], ["dqn", "discrete action", "shape=(1,)"]),
        ([*CARTPOLE, "--num-actors", "0"], ["--num-actors must be at least 1, got 0"]),
        ([*CARTPOLE, "--envs-per-actor", "0"], ["--envs-per-actor must be at least 1, got 0"]),
        ([*CARTPOLE, "--steps", "-5"], ["--steps must be at least 1, got -5"]),
        ([*CARTPOLE, "--steps", "many"], ["--steps expects an integer, got 'many'"]),
        ([*CARTPOLE, "--steps", "1.5"], ["--steps expects an integer, got '1.5'"]),
        ([*CARTPOLE, "--steps"], ["--steps expects an integer, got none"]),
        ([*CARTPOLE, "--seed", "-1"], ["--seed must be from 0 to 4294967295, got -1"]),
        ([*CARTPOLE, "--num-actor", "2"], ["unknown flag '--num-actor'", "did you mean '--num-actors'"]),
        ([*TRAIN, "--num-actor", "2"], ["unknown flag '--num-actor'", "did you mean '--num-actors'"]),
        ([*CARTPOLE, "more"], ["unknown argument 'more'"]),
        ([*CARTPOLE, "--launcher", "proceses"], ["--launcher", "'proceses'", "did you mean 'processes'"]),
        ([*CARTPOLE, "--replay", "embeded"], ["--replay", "'embeded'", "did you mean 'embedded'"]),
        ([*CARTPOLE, "--agent.n-step", "0"], ["n-step must be at least 1, got 0"]),
        ([*CARTPOLE, "--agent.n-stp", "2"], ["'--agent.n-stp'", "did you mean '--agent.n-step'"]),
        ([*CARTPOLE, "--agent.learning-rate", "x"], ["--agent.learning-rate expects a number, got 'x'"]),
        ([*CARTPOLE, "--agent.loss", "hubr"], ["--agent.loss", "did you mean 'huber'"]),
        ([*CARTPOLE, "--env-options", "a"], ["environment option 'a'", "expected name=value"]),
        ([*CARTPOLE, "--env-options", "max_step=3"], ["no option 'max_step'"]),
        ([*CARTPOLE, "--wandb", ""], ["--wandb expects the name of a project"]),
        (["evaluate"], ["missing RUN"]),
        (["evaluate", "--run", "x"], ["unknown flag '--run'", "RUN is given without a flag"]),
        (["evaluate", "x", "y"], ["unknown argument 'y'"]),
        (["evaluate", "x", "--episods", "3"], ["'--episods'", "did you mean '--episodes'"]),
        (["evaluate", "x", "--episodes", "few"], ["--episodes expects an integer, got 'few'"]),
        (["ps", "nowhere"], ["no launched run 'nowhere'", "it has no launch.json"]),
        (["ps", "--root", "nowhere"], ["--root expects a folder, got 'nowhere'"]),
        (["stop"], ["missing RUN"]),
        (["stop", "nowhere"], ["no launched run 'nowhere'"]),
        (["stop", "nowhere", "--timeout", "0"], ["--timeout must be above 0, got 0"]),
        (["stop", "nowhere", "--timout", "1"], ["unknown flag '--timout'", "did you mean '--timeout'"]),
        (["logs"], ["missing RUN"]),
        (["logs", "nowhere", "--lines", "few"], ["--lines expects an integer, got 'few'"]),
        (["agents", "--jsn"], ["unknown flag '--jsn'", "did you mean '--json'"]),
    ],
)
def test_one_line_names_what_was_wrong(capsys, arguments, says):
    line = refuse(capsys, arguments)
    for part in says:
        assert part in line


def test_used_run_directory(capsys, nothing_is_made):
    folder = nothing_is_made / "used"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    line = refuse(capsys, [*CARTPOLE, "--run-dir", "used"])
    assert "already used" in line and str(folder) in line and "--run-dir" in line
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_run_directory_at_or_under_a_file(capsys, nothing_is_made, name):
    (nothing_is_made / "file").write_text("mine")
    line = refuse(capsys, [*CARTPOLE, "--run-dir", name])
    assert f"run directory '{nothing_is_made / name}'" in line or f"run directory '{name}'" in line
    assert (nothing_is_made / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "module", "says"),
    [
        (["--replay", "reverb"], "reverb", "pip install 'rlpad[reverb]'"),
        (["--tensorboard"], "tensorboardX", "pip install 'rlpad[tensorboard]'"),
        (["--wandb", "project"], "wandb", "pip install 'rlpad[wandb]'"),
    ],
)
def test_missing_extra(capsys, monkeypatch, flags, module, says):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == module else find_spec(name, *rest)
    )
    line = refuse(capsys, [*CARTPOLE, *flags])
    assert says in line


def test_missing_atari_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    line = refuse(capsys, [*TRAIN, "--env", "atari:Pong"])
    assert "pip install 'rlpad[atari]'" in line

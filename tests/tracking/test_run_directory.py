"""Run directories: never shared, always readable, and found again by name."""

import json
import os
import threading

import pytest

from rlpad.errors import UserError
from rlpad.tracking import RunDirectory, default_run_path, run_directory


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", {"steps": 3}, ["rlpad", "train"])


def test_a_new_directory(directory, tmp_path):
    assert sorted(path.name for path in directory.path.iterdir()) == [
        "checkpoints",
        "config.json",
        "logs",
        "metrics",
        "run.json",
    ]
    assert directory.config == {"steps": 3}
    row = directory.read()
    assert (row["status"], row["reason"], row["actor_steps"]) == ("running", "", 0)
    assert row["command"] == ["rlpad", "train"]
    assert row["pid"] == os.getpid()
    for package in ("python", "jax", "numpy", "dm-haiku"):
        assert row["versions"][package][0].isdigit()
    assert RunDirectory.open(tmp_path / "run").read() == row


def test_an_empty_folder_is_unused(tmp_path):
    (tmp_path / "run").mkdir()
    RunDirectory.create(tmp_path / "run", {}, [])


def test_a_new_directory_is_the_users_own(directory):
    assert directory.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("used", ["run.json", ".hidden", "notes.txt"])
def test_a_used_folder_is_left_alone(tmp_path, used):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / used).write_text("mine")
    with pytest.raises(UserError, match="already used") as refused:
        RunDirectory.create(folder, {}, [])
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {used: "mine"}


def test_places_where_no_directory_can_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="already used"):
        RunDirectory.create(tmp_path / "file", {}, [])
    with pytest.raises(UserError, match="can't be made: Not a directory"):
        RunDirectory.create(tmp_path / "file" / "run", {}, [])
    with pytest.raises(UserError, match="can't be made"):
        RunDirectory.create(tmp_path / ("x" * 300), {}, [])


def test_only_one_of_many_gets_a_directory(tmp_path):
    outcomes = []
    barrier = threading.Barrier(8)

    def create():
        barrier.wait()
        try:
            RunDirectory.create(tmp_path / "run", {}, [])
            outcomes.append("made")
        except UserError:
            outcomes.append("refused")

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7


def test_ids_without_a_name(tmp_path, monkeypatch):
    def getuser():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(run_directory.getpass, "getuser", getuser)
    assert RunDirectory.create(tmp_path / "run", {}, []).read()["user"] is None


def test_opening_what_is_none_names_the_nearest(directory, tmp_path):
    with pytest.raises(UserError, match="did you mean 'run'"):
        RunDirectory.open(tmp_path / "rum")
    with pytest.raises(UserError, match="no run directory"):
        RunDirectory.open(tmp_path / "nowhere" / "run")


def test_updates_keep_the_rest(directory):
    before = directory.read()
    directory.update(status="completed", actor_steps=5)
    after = directory.read()
    assert (after.pop("status"), after.pop("actor_steps")) == ("completed", 5)
    assert after.pop("updated") >= before.pop("updated")
    assert after == {key: value for key, value in before.items() if key in after}


def test_a_reader_never_sees_half_an_update(directory):
    done = threading.Event()
    torn = []

    def read():
        while not done.is_set():
            try:
                row = directory.read()
                assert len(row["reason"]) in (0, 100_000)
            except Exception as error:
                torn.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(60):
        directory.update(reason="x" * 100_000 if i % 2 else "")
    done.set()
    reader.join()
    assert not torn


def test_metrics_are_read_up_to_the_last_whole_line(directory):
    path = directory.path / "metrics" / "a.jsonl"
    assert directory.read_metrics("a") == []
    path.write_text('{"x": 1}\n{"x": 2}\n{"x": 3')
    assert directory.read_metrics("a") == [{"x": 1}, {"x": 2}]
    path.write_text('{"x": "a\\u2028b"}\n')  # a line separator of Unicode, but none of JSON lines
    assert directory.read_metrics("a") == [{"x": "a\u2028b"}]


def test_default_paths_are_free_and_plain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = []
    for _ in range(3):
        path = default_run_path("my.agent", "atari:Pong v5/x", 7)
        path.mkdir(parents=True)
        paths.append(path)
    assert len(set(paths)) == 3
    assert all(path.parent.name == "runs" for path in paths)
    assert all(path.name.startswith("my.agent-atari-Pong-v5-x-seed7-") for path in paths)


def test_config_holds_dataclasses(tmp_path):
    from rlpad.experiment.config import ExperimentConfig

    config = {"experiment": ExperimentConfig(agent="dqn", env="CartPole-v1")}
    directory = RunDirectory.create(tmp_path / "run", config, [])
    stored = json.loads((directory.path / "config.json").read_text())
    assert (stored["experiment"]["agent"], stored["experiment"]["steps"]) == ("dqn", 50_000)

"""Learning curves: a PNG of the right size whenever there is anything to draw."""

import struct

import numpy as np
import pytest

from rlpad.tracking import RunDirectory, make_logger
from rlpad.tracking.plots import episode_points, evaluation_rows, plot_learning_curve, smooth


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", {}, [])


def write(directory, label, rows):
    logger = make_logger(label, directory.path)
    for row in rows:
        logger.write(row)
    logger.close()


def evaluation(steps, mean, kind="periodic"):
    return {
        "kind": kind,
        "actor_steps": steps,
        "episodes": 10,
        "episode_return_mean": mean,
        "episode_return_std": 1.0,
    }


def size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


def test_nothing_to_draw(directory):
    assert plot_learning_curve(directory, "title") is None
    assert not (directory.path / "learning_curve.png").exists()


@pytest.mark.parametrize(
    ("episodes", "evaluations"),
    [
        ([], [evaluation(10, 1.0), evaluation(20, 2.0, "final"), evaluation(10, 1.5, "best")]),
        ([{"actor_steps": 5, "episode_return": 1.0}], []),
        ([{"actor_steps": i, "episode_return": float(i)} for i in range(300)], [evaluation(10, 1.0)]),
        ([], [evaluation(10, 1.5, "best")]),
        ([], [evaluation(10, float("nan"))]),
    ],
)
def test_a_png_of_960_by_540(directory, episodes, evaluations):
    write(directory, "actor-0", episodes)
    write(directory, "evaluator", evaluations)
    path = plot_learning_curve(directory, "dqn on CartPole-v1")
    assert path == directory.path / "learning_curve.png"
    assert size(path) == (960, 540)
    # Drawn again, it's replaced.
    assert plot_learning_curve(directory, "again") == path


def test_rows_of_all_evaluators_in_order(directory):
    write(directory, "evaluator-0", [evaluation(10, 1.0), evaluation(30, 3.0)])
    write(directory, "evaluator-1", [evaluation(20, 2.0)])
    assert [row["episode_return_mean"] for row in evaluation_rows(directory)] == [1.0, 2.0, 3.0]


def test_points_of_all_actors_in_order(directory):
    write(directory, "actor-0", [{"actor_steps": 10, "episode_return": 1.0}])
    write(
        directory,
        "actor-1",
        [
            {"actor_steps": 5, "episode_return": [1.0, 2.0]},  # rewards that are arrays are added up
            {"actor_steps": 6, "episode_return": {"a": 1.0}},  # nests have no one number
        ],
    )
    np.testing.assert_array_equal(episode_points(directory), [[5.0, 3.0], [10.0, 1.0]])


def test_smoothing_by_hand():
    points = np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0], [3.0, 7.0]])
    x, y = smooth(points, parts=2)
    np.testing.assert_array_equal(x, [0.5, 2.5])
    np.testing.assert_array_equal(y, [2.0, 6.0])
    x, y = smooth(points, parts=100)
    np.testing.assert_array_equal(np.stack([x, y], 1), points)

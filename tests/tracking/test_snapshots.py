"""Snapshots: any nest comes back as it was, names are never reused, and none is ever half there."""

import json
import os
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlpad.errors import UserError
from rlpad.tracking import snapshots
from rlpad.tracking.snapshots import (
    best_snapshot,
    list_snapshots,
    mark_best,
    read_snapshot,
    write_snapshot,
)


class Pair(NamedTuple):
    first: Any
    second: Any


def write(run, variables=None, steps=10, **options):
    return write_snapshot(run, variables or {"policy": np.ones(2)}, actor_steps=steps, learner_steps=3, **options)


def assert_same(left, right):
    assert type(left) is type(right), (left, right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif left is not None:
        assert left.dtype == right.dtype and left.shape == right.shape
        assert left.tobytes() == right.tobytes()


DTYPES = st.sampled_from(
    [np.float32, np.float64, np.int32, np.uint8, np.bool_, np.float16, np.complex64, ml_dtypes.bfloat16]
)


@st.composite
def arrays(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    dtype = np.dtype(draw(DTYPES))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == np.bool_:
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


NESTS = st.recursive(
    arrays() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), NESTS, max_size=2))
def test_nests_come_back_bit_for_bit(tmp_path_factory, variables):
    run = tmp_path_factory.mktemp("run")
    snapshot = write_snapshot(run, variables, actor_steps=10, learner_steps=3)
    read, meta = read_snapshot(snapshot.path)
    assert_same(read, variables)
    assert (meta["actor_steps"], meta["learner_steps"], meta["final"]) == (10, 3, False)


def test_scalars_and_jax_arrays_become_numpy(tmp_path):
    variables = {"a": 1.5, "b": {"n": 3, "flag": True}, "c": jnp.asarray([1.0, 2.5], jnp.bfloat16)}
    read, _ = read_snapshot(write(tmp_path, variables).path)
    assert read["a"].shape == () and read["a"] == 1.5
    assert read["b"] == {"n": 3, "flag": True}
    assert read["c"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read["c"].astype(np.float32), [1.0, 2.5])


@pytest.mark.parametrize("variables", [{"a": object()}, {"a": {1: np.ones(1)}}, {"a": [lambda: 0]}])
def test_what_no_snapshot_can_hold(tmp_path, variables):
    with pytest.raises(TypeError):
        write(tmp_path, variables)
    assert list_snapshots(tmp_path) == []
    assert not (tmp_path / "checkpoints").exists() or not any((tmp_path / "checkpoints").iterdir())


def test_names_are_never_reused(tmp_path):
    paths = [write(tmp_path, {"policy": np.full(1, i)}).path for i in range(3)]
    paths.append(write(tmp_path, final=True).path)
    assert [path.name for path in paths] == [
        "policy-000000000010",
        "policy-000000000010-2",
        "policy-000000000010-3",
        "policy-000000000010-final",
    ]
    assert [read_snapshot(path)[0]["policy"].tolist() for path in paths[:3]] == [[0], [1], [2]]


def test_a_name_taken_between_look_and_rename_is_left_alone(tmp_path, monkeypatch):
    first = write(tmp_path, {"policy": np.zeros(1)}).path
    exists = os.path.exists
    looks = []

    def blind(path):
        looks.append(path)
        return len(looks) > 1 and exists(path)

    monkeypatch.setattr(type(first), "exists", lambda path: blind(path))
    second = write(tmp_path, {"policy": np.ones(1)}).path
    assert first != second
    assert read_snapshot(first)[0]["policy"].tolist() == [0]


@pytest.mark.parametrize("step", ["variables.npz", "snapshot.json", "rename"])
def test_a_crash_leaves_no_half_snapshot(tmp_path, monkeypatch, step):
    def crash(path, data):
        if path.name == step:
            path.write_bytes(data[: len(data) // 2])
            raise OSError("no space left")
        return write_synced(path, data)

    def rename(source, target):
        raise OSError("no space left")

    write_synced = snapshots.write_synced
    monkeypatch.setattr(snapshots, "write_synced", crash)
    if step == "rename":
        monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path)
    monkeypatch.undo()
    assert list_snapshots(tmp_path) == []
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_what_a_killed_writer_leaves_isnt_listed(tmp_path):
    kept = write(tmp_path)
    litter = tmp_path / "checkpoints" / ".policy-0123.tmp"
    litter.mkdir()
    (litter / "snapshot.json").write_text("{")
    (tmp_path / "checkpoints" / "policy-notes").mkdir()
    (tmp_path / "checkpoints" / "policy-000000000099").mkdir()
    assert list_snapshots(tmp_path) == [kept]


def test_snapshots_are_listed_in_order(tmp_path):
    for steps in (200, 5, 1_000, 200):
        write(tmp_path, steps=steps)
    write(tmp_path, steps=1_000, final=True)
    assert [snapshot.path.name for snapshot in list_snapshots(tmp_path)] == [
        "policy-000000000005",
        "policy-000000000200",
        "policy-000000000200-2",
        "policy-000000001000",
        "policy-000000001000-final",
    ]
    assert list_snapshots(tmp_path / "none") == []


def test_the_best_is_the_best_evaluated(tmp_path):
    assert best_snapshot(tmp_path) is None
    names = [write(tmp_path, steps=steps).path.name for steps in (1, 2, 3, 4)]
    assert best_snapshot(tmp_path) is None
    for name, mean, best in zip(names, [5.0, 4.0, 5.0, -1.0], [0, 0, 2, 2], strict=True):
        mark_best(tmp_path, name, mean, 10)
        assert best_snapshot(tmp_path).path.name == names[best]
    stored = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert stored == {"snapshot": names[2], "episode_return_mean": 5.0, "episodes": 10}


def test_unreadable_snapshots(tmp_path):
    with pytest.raises(UserError, match="no policy snapshot"):
        read_snapshot(tmp_path / "nothing")
    path = write(tmp_path).path
    meta = json.loads((path / "snapshot.json").read_text())
    (path / "snapshot.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(UserError, match="format 99, this version reads 1"):
        read_snapshot(path)


def test_snapshots_hold_no_pickles(tmp_path):
    path = write(tmp_path, {"policy": Pair(np.ones(2, ml_dtypes.bfloat16), None)}).path
    with np.load(path / "variables.npz", allow_pickle=False) as stored:
        assert [stored[name].dtype.kind for name in stored.files] == ["V"]

"""Tables on both backends: how items are drawn, removed and given priorities, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
from dm_env import specs
from scipy import stats

from rlpad import replay
from rlpad.errors import UserError

NUMBER = {"number": specs.Array((), np.int64)}


def write(client, flush, numbers, priorities=None, table="items"):
    writer = client.writer(num_keep_alive=1)
    for i, number in enumerate(numbers):
        cells = writer.append({"number": np.int64(number)})
        writer.create_item(table, cells, None if priorities is None else priorities[i])
    flush(writer)
    writer.close()


def keys_by_number(draw, client, batch_size=256):
    sample = draw(client, "items", batch_size)
    return dict(zip(sample.data["number"].tolist(), sample.info.keys.tolist(), strict=True))


def p_value(numbers, expected):
    counts = np.bincount(numbers, minlength=len(expected))
    assert not counts[np.asarray(expected) == 0].any()
    drawn = np.asarray(expected) > 0
    return stats.chisquare(counts[drawn], len(numbers) * np.asarray(expected)[drawn]).pvalue


def test_uniform_draws_every_item_equally_often(connect, table_of, flush, draw):
    client = connect(table_of(NUMBER), seed=1)
    write(client, flush, range(10))
    sample = draw(client, "items", 8000)
    assert p_value(sample.data["number"], np.full(10, 0.1)) > 1e-4
    np.testing.assert_allclose(sample.info.probabilities, 0.1)
    np.testing.assert_array_equal(sample.info.table_size, 10)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_prioritised_draws_in_proportion(exponent, connect, table_of, flush, draw):
    client = connect(table_of(NUMBER, sampler=replay.Prioritized(exponent)), seed=2)
    priorities = np.array([1.0, 2.0, 4.0, 0.5, 10.0])
    write(client, flush, range(5), priorities)
    sample = draw(client, "items", 8000)
    expected = priorities**exponent / (priorities**exponent).sum()
    assert p_value(sample.data["number"], expected) > 1e-4
    np.testing.assert_allclose(sample.info.probabilities, expected[sample.data["number"]])
    np.testing.assert_allclose(sample.info.priorities, priorities[sample.data["number"]])
    np.testing.assert_array_equal(sample.info.table_size, 5)


def test_samples_are_the_callers_own_and_of_the_signatures_types(connect, table_of, flush, draw):
    signature = {
        "a": specs.Array((2, 3), np.uint8),
        "b": [specs.Array((), bool), specs.Array((1,), np.float64)],
    }
    client = connect(table_of(signature))
    writer = client.writer(num_keep_alive=1)
    cells = writer.append({"a": np.ones((2, 3), np.uint8), "b": [np.bool_(True), np.array([0.1])]})
    writer.create_item("items", cells)
    flush(writer)
    sample = draw(client, "items", 7)
    assert sample.data["a"].dtype == np.uint8 and sample.data["a"].shape == (7, 2, 3)
    assert isinstance(sample.data["b"], list)
    assert sample.data["b"][0].dtype == bool and sample.data["b"][0].all()
    np.testing.assert_array_equal(sample.data["b"][1], np.full((7, 1), 0.1))
    sample.data["a"][:] = 0
    assert [field.dtype for field in sample.info] == [np.uint64, np.float64, np.int64, np.float64]
    writer.close()


def test_the_oldest_go_first(connect, table_of, flush, draw):
    client = connect(table_of(NUMBER, max_size=4))
    write(client, flush, range(11))
    info = client.info()["items"]
    assert (info.size, info.inserts, info.max_size) == (4, 11, 4)
    assert set(draw(client, "items", 200).data["number"]) == {7, 8, 9, 10}


def test_items_go_after_they_were_drawn_so_often(connect, table_of, flush):
    client = connect(table_of(NUMBER, max_times_sampled=2))
    write(client, flush, range(5))
    sampler = client.sampler("items", 2)
    drawn = []
    for _ in range(5):
        assert sampler.wait_ready(20.0)
        drawn += next(sampler).data["number"].tolist()
    np.testing.assert_array_equal(np.bincount(drawn), np.full(5, 2))
    assert client.info()["items"].size == 0
    assert not sampler.wait_ready(0.2)
    write(client, flush, [7])
    assert sampler.wait_ready(20.0)
    assert next(sampler).data["number"].tolist() == [7, 7]
    sampler.close()


def test_priorities_can_be_changed(connect, table_of, flush, draw):
    client = connect(table_of(NUMBER, sampler=replay.Prioritized(1.0)), seed=3)
    write(client, flush, range(4), [1.0] * 4)
    keys = keys_by_number(draw, client)
    client.update_priorities("items", np.array([keys[0], keys[2]], np.uint64), np.array([0.0, 6.0]))
    sample = draw(client, "items", 8000)
    assert p_value(sample.data["number"], [0.0, 0.125, 0.75, 0.125]) > 1e-4
    np.testing.assert_allclose(sample.info.probabilities[sample.data["number"] == 2], 0.75)


def test_items_that_are_gone_keep_no_priority(connect, table_of, flush, draw):
    client = connect(table_of(NUMBER, max_size=2, sampler=replay.Prioritized(1.0)), seed=4)
    write(client, flush, [0, 1], [1.0, 1.0])
    keys = keys_by_number(draw, client)
    write(client, flush, [2, 3], [1.0, 3.0])
    gone = np.array([keys[0], keys[1], 2**63 + 5], np.uint64)
    client.update_priorities("items", gone, np.array([100.0, 100.0, 100.0]))
    client.update_priorities("items", np.array([], np.uint64), np.array([]))
    sample = draw(client, "items", 2000)
    assert set(sample.info.priorities) == {1.0, 3.0} and set(sample.data["number"]) == {2, 3}


def test_new_items_get_the_highest_priority_of_all_clients(serve, table_of, flush, draw):
    service = serve(table_of(NUMBER, sampler=replay.Prioritized(1.0)))
    actor, learner = service.client(), service.client()
    write(actor, flush, [0])
    keys = keys_by_number(draw, learner, 1)
    learner.update_priorities("items", np.array([keys[0]], np.uint64), np.array([8.0]))
    learner.update_priorities("items", np.array([keys[0]], np.uint64), np.array([2.0]))
    # Clients of reverb tell each other within half a second.
    time.sleep(0.6 if service.backend == "reverb" else 0.0)
    write(actor, flush, [1])
    sample = draw(learner, "items", 200)
    assert dict(zip(sample.data["number"].tolist(), sample.info.priorities.tolist(), strict=True)) == {
        0: 2.0,
        1: 8.0,
    }
    assert set(learner.info()) == {"items"}


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_priorities_are_refused(bad, connect, table_of, flush):
    client = connect(table_of(NUMBER, sampler=replay.Prioritized(1.0)))
    writer = client.writer(num_keep_alive=1)
    cells = writer.append({"number": np.int64(0)})
    with pytest.raises(ValueError, match="finite and at least 0"):
        writer.create_item("items", cells, bad)
    with pytest.raises(ValueError, match="finite and at least 0"):
        client.update_priorities("items", np.array([1], np.uint64), np.array([bad]))
    writer.close()


def test_unknown_tables_are_named_with_the_nearest(connect, table_of):
    client = connect(table_of(NUMBER))
    writer = client.writer(num_keep_alive=1)
    cells = writer.append({"number": np.int64(0)})
    for call in (
        lambda: writer.create_item("itms", cells),
        lambda: client.sampler("itms", 1),
        lambda: client.update_priorities("itms", np.array([1], np.uint64), np.array([1.0])),
    ):
        with pytest.raises(KeyError, match="did you mean 'items'"):
            call()
    writer.close()


def test_items_that_dont_fit_the_signature_are_refused(connect, table_of):
    client = connect(table_of({"a": specs.Array((2,), np.float32), "b": specs.Array((), np.int32)}))
    writer = client.writer(num_keep_alive=4)
    good = writer.append({"a": np.zeros(2, np.float32), "b": np.int32(0)})
    wrong = writer.append({"shape": np.zeros(3, np.float32), "dtype": np.int64(0)})
    with pytest.raises(ValueError, match=r"a is float32\[3\], its signature says float32\[2\]"):
        writer.create_item("items", {"a": wrong["shape"], "b": good["b"]})
    with pytest.raises(ValueError, match=r"b is int64\[\], its signature says int32\[\]"):
        writer.create_item("items", {"a": good["a"], "b": wrong["dtype"]})
    with pytest.raises(ValueError, match="structure"):
        writer.create_item("items", {"a": good["a"]})
    with pytest.raises(ValueError, match=r"column 'a' was float32\[2\] so far, this step has float32\[3\]"):
        writer.append({"a": np.zeros(3, np.float32)})
    writer.create_item("items", good)
    writer.close()


def test_batches_that_never_could_come_are_refused(connect, table_of):
    client = connect(table_of(NUMBER, rate_limiter=replay.RateLimiter(1.0, 1, 8.0)))
    with pytest.raises(ValueError, match="at least 1"):
        client.sampler("items", 0)
    with pytest.raises(ValueError, match="tolerance of at least 9"):
        client.sampler("items", 9)


def test_num_keep_alive_is_checked(connect, table_of):
    with pytest.raises(ValueError, match="num_keep_alive"):
        connect(table_of(NUMBER)).writer(0)


def test_a_closed_writer_drops_its_steps_not_its_items(connect, table_of, flush, draw):
    client = connect(table_of(NUMBER))
    write(client, flush, [1, 2, 3])
    assert set(draw(client, "items", 100).data["number"]) == {1, 2, 3}


@pytest.mark.parametrize("backend", ["embedded", "served"], indirect=True)
@pytest.mark.parametrize("sampler", [replay.Uniform(), replay.Prioritized(0.6)])
def test_equal_seeds_draw_equally(sampler, serve, table_of, flush):
    def numbers(seed):
        client = serve(table_of(NUMBER, sampler=sampler), seed=seed).client()
        write(client, flush, range(100), np.arange(1.0, 101.0))
        batches = client.sampler("items", 64)
        drawn = np.concatenate([next(batches).data["number"] for _ in range(3)])
        batches.close()
        return drawn

    np.testing.assert_array_equal(numbers(7), numbers(7))
    assert (numbers(7) != numbers(8)).any()


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
def test_more_items_at_once_than_a_table_holds(serve, table_of, flush, draw):
    service = serve(table_of(NUMBER, max_size=3))
    write(service.client(), flush, range(16))
    assert set(draw(service.client(), "items", 100).data["number"]) == {13, 14, 15}
    assert service.local.memory() == {"number": 3}


def test_importing_replay_imports_no_tensorflow():
    code = "import sys, rlpad.replay.reverb_backend; print({'tensorflow', 'reverb'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_reverb_that_is_missing_is_said_in_one_line(monkeypatch):
    from rlpad.replay import reverb_backend

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'rlpad\[reverb\]'"):
        reverb_backend.reverb_tables(list)


def _some_tables():
    return [replay.Table("items", NUMBER, 10, replay.Prioritized(0.6), replay.RateLimiter(1.0, 1, 4.0))]


def test_reverb_tables_can_be_pickled():
    pytest.importorskip("reverb")
    from rlpad.replay.reverb_backend import reverb_tables

    # By importlib's mode of pytest this module can't be imported by name; only what rlpad adds is pickled.
    made = reverb_tables(_some_tables)
    assert pickle.loads(pickle.dumps(made.func))(_some_tables)[0].name == "items"

"""The rate limiter's two statements: by hand, for random interleavings, and on both backends."""

from __future__ import annotations

import time

import numpy as np
import pytest
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpad import replay
from rlpad.replay.embedded.client import EmbeddedClient
from rlpad.replay.embedded.service import ReplayService
from rlpad.replay.tables import by_name

NUMBER = {"number": specs.Array((), np.int64)}


def holds(limiter, inserts, samples):
    """Both statements, as the docstring of `RateLimiter` has them."""
    spi, least, slack = limiter.samples_per_insert, limiter.min_size, limiter.tolerance
    learner = samples <= spi * (inserts - least) + slack if samples else True
    actors = spi * (inserts - least) <= samples + slack or inserts <= least
    return learner and actors


def test_by_hand():
    limiter = replay.RateLimiter(samples_per_insert=4.0, min_size=10, tolerance=16.0)
    # Nothing is sampled before min_size inserts, and until then nothing holds the actors.
    assert not limiter.can_sample(1, inserts=9, samples=0)
    assert limiter.can_insert(10, inserts=0, samples=0)
    # At min_size: 16 samples ahead; 4 inserts ahead.
    assert limiter.can_sample(16, inserts=10, samples=0)
    assert not limiter.can_sample(17, inserts=10, samples=0)
    assert limiter.can_insert(4, inserts=10, samples=0)
    assert not limiter.can_insert(5, inserts=10, samples=0)
    assert not limiter.can_insert(15, inserts=0, samples=0)
    # Later: 4 samples per insert.
    assert limiter.can_sample(4, inserts=11, samples=16)
    assert not limiter.can_sample(5, inserts=11, samples=16)
    assert limiter.can_insert(1, inserts=14, samples=4)
    assert not limiter.can_insert(1, inserts=14, samples=3)
    assert limiter.max_batch == 4


@pytest.mark.parametrize("settings_", [(0.0, 1, 1.0), (-1.0, 1, 1.0), (1.0, 0, 1.0), (4.0, 1, 3.0)])
def test_limiters_that_make_no_sense_are_refused(settings_):
    with pytest.raises(ValueError):
        replay.RateLimiter(*settings_)


@settings(max_examples=50, deadline=None)
@given(
    spi=st.floats(0.25, 16),
    least=st.integers(1, 20),
    batch=st.integers(1, 16),
    extra=st.floats(0, 20),
    moves=st.lists(st.integers(-4, 4), min_size=10, max_size=120),
)
def test_random_interleavings_never_break_it_and_never_stall(spi, least, batch, extra, moves):
    limiter = replay.RateLimiter(spi, least, max(float(batch), spi) + extra)
    table = replay.Table("items", NUMBER, 1000, replay.Uniform(), limiter)
    client = EmbeddedClient(ReplayService(lambda: [table]), by_name([table]))
    writer, sampler = client.writer(1), client.sampler("items", batch)

    def insert():
        """Writes one more, at once."""
        if writer.flush():
            writer.create_item("items", writer.append({"number": np.int64(0)}))
            return writer.flush()
        return False

    for move in moves:
        before = client.info()["items"]
        if move < 0:
            if sampler.ready():
                next(sampler)
        else:
            for _ in range(move):
                insert()
        info = client.info()["items"]
        assert holds(limiter, info.inserts, info.samples)
        assert info.samples == before.samples or info.inserts >= least
        assert client.can_insert("items") or client.can_sample("items", batch)


def make_table(table_of):
    return table_of(NUMBER, rate_limiter=replay.RateLimiter(4.0, 10, 16.0))


def write_until_held(writer):
    """Creates and flushes items one by one until one isn't taken, and returns how many were created."""
    for count in range(1, 1000):
        writer.create_item("items", writer.append({"number": np.int64(count)}))
        deadline = time.monotonic() + 0.3
        while not writer.flush():
            if time.monotonic() > deadline:
                return count
    raise AssertionError("nothing ever held the writer")


def sample_until_held(sampler):
    for count in range(1000):
        if not sampler.wait_ready(0.8):
            return count
        next(sampler)
    raise AssertionError("nothing ever held the sampler")


def test_actors_and_learner_are_held_at_the_same_counts(connect, table_of, flush):
    client = connect(make_table(table_of))
    assert client.can_insert("items", 14) and not client.can_insert("items", 15)
    assert not client.can_sample("items")
    writer = client.writer(1)
    # 14 go in, the 15th is pending.
    assert write_until_held(writer) == 15
    assert client.info()["items"][:3] == (14, 14, 0)
    assert not client.can_insert("items") and client.can_sample("items", 32)
    assert not client.can_sample("items", 33)
    sampler = client.sampler("items", 4)
    # 14 inserts allow 32 samples; the pending item then goes in and allows 4 more.
    held_at = sample_until_held(sampler)
    flush(writer)
    held_at += sample_until_held(sampler)
    assert held_at == 9
    assert client.info()["items"][1:3] == (15, 36)
    assert not client.can_sample("items") and client.can_insert("items", 8)
    assert not client.can_insert("items", 9)
    assert "15 inserts and 36 samples" in client.describe("items")
    sampler.close()
    writer.close()


def test_drained_once_the_learner_has_had_what_it_is_owed(connect, table_of, flush):
    client = connect(make_table(table_of))
    writer = client.writer(1)
    for number in range(12):
        writer.create_item("items", writer.append({"number": np.int64(number)}))
    flush(writer)
    sampler = client.sampler("items", 5)
    deadline, count = time.monotonic() + 15.0, 0
    while not sampler.drained():
        if sampler.ready():
            next(sampler)
            count += 1
        assert time.monotonic() < deadline
        time.sleep(0.002)
    # 4 * (12 - 10) + 16 samples, 24, are four batches of 5.
    assert count == 4
    # More inserts end that state, and nothing that was sampled is lost: 4 * 2 more samples, 32 in all.
    for number in range(2):
        writer.create_item("items", writer.append({"number": np.int64(number)}))
    flush(writer)
    for _ in range(2):
        assert sampler.wait_ready(10.0)
        next(sampler)
    sampler.close()
    writer.close()


def test_a_writer_that_is_held_waits_for_no_one(connect, table_of):
    client = connect(make_table(table_of))
    writer, created, slowest = client.writer(1), 0, 0.0
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and created < 100:
        began = time.monotonic()
        ready = writer.ready()
        slowest = max(slowest, time.monotonic() - began)
        if ready:
            writer.create_item("items", writer.append({"number": np.int64(created)}))
            created += 1
    # What the limiter lets in, and what may be pending.
    assert 14 <= created <= 14 + 64
    assert slowest < 0.5
    began = time.monotonic()
    assert not writer.flush()
    assert time.monotonic() - began < 0.5
    assert client.info()["items"].inserts <= 14
    began = time.monotonic()
    writer.close()
    assert time.monotonic() - began < 5.0


def test_a_sampler_that_waits_can_be_closed(connect, table_of):
    client = connect(make_table(table_of))
    sampler = client.sampler("items", 4)
    assert not sampler.ready() and not sampler.wait_ready(0.05)
    began = time.monotonic()
    sampler.close()
    assert time.monotonic() - began < 2.0

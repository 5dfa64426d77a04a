"""dm-reverb in forked processes, and when its server is gone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("reverb") is None, reason="needs dm-reverb")

PRELUDE = """
import os, signal, threading, time
import numpy as np
from dm_env import specs
import reverb
from rlpad import replay
from rlpad.launch.errors import PeerGone
from rlpad.replay.reverb_backend import reverb_tables

def make_tables():
    limiter = replay.RateLimiter(4.0, 10, 64.0)
    signature = {"number": specs.Array((), np.int64)}
    return [replay.Table("items", signature, 100, replay.Prioritized(0.6), limiter)]

read, write = os.pipe()
server_pid = os.fork()
if not server_pid:
    server = reverb.Server(reverb_tables(make_tables)())
    os.write(write, str(server.port).encode())
    time.sleep(120)
    os._exit(0)
port = int(os.read(read, 100))

def work():
    client = replay.make_client("reverb", reverb.Client(f"localhost:{port}"), make_tables())
    writer = client.writer(1)
    for number in range(12):
        writer.create_item("items", writer.append({"number": np.int64(number)}))
    while not writer.flush():
        pass
    sampler = client.sampler("items", 32)
    sample = next(sampler)
    assert set(sample.data["number"]) <= set(range(12)), sample
    client.update_priorities("items", sample.info.keys, np.full(32, 2.0))
    return client, writer, sampler, sample

def wait_for_threads():
    # One that was making an iterator when the server died takes half a minute.
    deadline = time.monotonic() + 45
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == 1
"""


def run(body: str) -> str:
    code = PRELUDE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_works_in_a_process_that_was_forked_with_reverb_imported():
    out = run("""
        child = os.fork()
        if not child:
            client, writer, sampler, _ = work()
            sampler.close()
            writer.close()
            assert threading.active_count() == 1
            print("fine", flush=True)
            os._exit(0)
        try:
            assert os.waitpid(child, 0)[1] == 0
        finally:
            os.kill(server_pid, signal.SIGKILL)
            os.waitpid(server_pid, 0)
    """)
    assert out.strip() == "fine"


def test_a_server_that_is_gone_is_noticed_by_everyone_and_holds_no_one():
    out = run("""
        client, writer, sampler, sample = work()
        waiting = client.sampler("items", 64)
        os.kill(server_pid, signal.SIGKILL)
        os.waitpid(server_pid, 0)

        def until_gone(call):
            began = time.monotonic()
            while time.monotonic() - began < 15:
                try:
                    call()
                except PeerGone as error:
                    assert "reverb server at localhost" in str(error)
                    print("gone")
                    return
                time.sleep(0.01)
            print("not noticed")

        until_gone(lambda: sampler.ready() and next(sampler))
        until_gone(lambda: next(waiting))
        until_gone(client.info)
        until_gone(lambda: client.update_priorities("items", sample.info.keys, np.ones(32)))
        number = iter(range(10**9))
        def add():
            if writer.ready():
                writer.create_item("items", writer.append({"number": np.int64(next(number))}), 1.0)
        until_gone(add)
        began = time.monotonic()
        sampler.close(), waiting.close(), writer.close()
        assert time.monotonic() - began < 5
        wait_for_threads()
    """)
    assert out.split() == ["gone"] * 5


def test_a_sampler_whose_server_is_gone_closes_soon():
    run("""
        client, writer, sampler, _ = work()
        os.kill(server_pid, signal.SIGKILL)
        os.waitpid(server_pid, 0)
        time.sleep(0.7)
        began = time.monotonic()
        sampler.close()
        writer.close()
        assert time.monotonic() - began < 4
        wait_for_threads()
    """)

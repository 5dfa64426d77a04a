"""What becomes of a program when the script that launched it ends."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from .scripts import STOPPING, running

#: Before that, Python starts no threads once a script has ended.
THREADS_TO_THE_END = sys.version_info < (3, 12) or sys.version_info >= (3, 12, 2)

#: A node that stops when it's told to, and one that doesn't.
WAITS = """
        def wait():
            touch("up")
            lp.wait_for_stop()
            touch("stopped")
        def ignore():
            touch("up")
            time.sleep(20)
"""


@pytest.mark.parametrize("last", ["pass", "sys.exit()"])
def test_it_runs_on_to_its_end(concurrent: str, tmp_path: Path, last: str) -> None:
    body = f"""
        def work():
            wait_for("go")
            touch("done")
        lp.launch(program(lp.PyNode(work)), LAUNCHER)
        touch("over")
        {last}
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("over")
        assert script.goes_on()
        script.touch("go")
        code, _, errors = script.end()
        assert (tmp_path / "done").exists()
        assert (code, "Traceback" in errors) == (0, False)


def test_nodes_lack_nothing_meanwhile(concurrent: str, tmp_path: Path) -> None:
    pools = THREADS_TO_THE_END or concurrent == "processes"
    body = f"""
        import concurrent.futures
        class Service:
            def add(self, x, y):
                return x + y
            def close(self):
                touch("closed")
        def work(service):
            wait_for("go")
            assert service.add(1, 2, timeout=5) == 3
            assert service.futures.add(3, 4).result(5) == 7
            if {pools}:
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    assert pool.submit(int, "5").result() == 5
            touch("done")
        made = lp.Program("script")
        service = made.add_node(lp.CourierNode(Service), label="service")
        made.add_node(lp.PyNode(work, service), label="work")
        lp.launch(made, LAUNCHER)
        touch("over")
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("over")
        assert script.goes_on()
        script.touch("go")
        code, _, errors = script.end()
        assert (code, (tmp_path / "done").exists(), (tmp_path / "closed").exists()) == (0, True, True), errors
        assert ("starts no threads after the end of a script" in errors) == (not pools)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_that_nobody_waits_for_is_told(concurrent: str, tmp_path: Path, when: str) -> None:
    body = f"""
        def work():
            wait_for("go")
            raise KeyError("lost")
        run = lp.launch(program(lp.PyNode(work)), LAUNCHER)
        touch("over")
        if {when == "before"}:
            while run.status()["n/0"].state != "failed":
                time.sleep(0.01)
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("over")
        assert when == "before" or script.goes_on()
        script.touch("go")
        code, _, errors = script.end()
        assert code == 1
        assert "KeyError: 'lost'\nraised in node n/0\n" in errors
        assert errors.splitlines()[-1] == "rlpad: failed: node n/0 failed: KeyError: 'lost'"


def test_one_that_was_waited_for_is_not_told_again(concurrent: str, tmp_path: Path) -> None:
    body = """
        run = lp.launch(program(lp.PyNode(int, "x")), LAUNCHER)
        try:
            run.wait(20)
        except ValueError as error:
            print(error)
    """
    with running(tmp_path, concurrent, body) as script:
        code, output, errors = script.end()
        assert (code, output) == (0, "invalid literal for int() with base 10: 'x'\n")
        assert "rlpad: failed" not in errors


def test_a_script_that_fails_stops_it(concurrent: str, tmp_path: Path) -> None:
    body = f"""
        {WAITS}
        lp.launch(program(lp.PyNode(wait)), LAUNCHER)
        wait_for("up")
        raise LookupError("of the script")
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("up")
        began = time.monotonic()
        code, _, errors = script.end()
        assert code == 1
        assert time.monotonic() - began < 5
        assert (tmp_path / "stopped").exists()
        assert errors.count("Traceback") == 1
        last = "rlpad: failed: the script that launched it failed: LookupError: of the script"
        assert errors.splitlines()[-1] == last


@pytest.mark.parametrize(("number", "code"), STOPPING)
@pytest.mark.parametrize("thread", [False, True])
def test_a_signal_stops_it(concurrent: str, tmp_path: Path, number: int, code: int, thread: bool) -> None:
    if thread and number == signal.SIGTERM:
        pytest.skip("only the main thread can take SIGTERM over")
    body = f"""
        {WAITS}
        def launch():
            for _ in range(2):
                lp.launch(program(lp.PyNode(wait)), LAUNCHER)
        if {thread}:
            thread = threading.Thread(target=launch)
            thread.start()
            thread.join()
        else:
            launch()
        touch("over")
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("up")
        script.wait_for("over")
        assert script.goes_on()
        script.signal(number)
        returned, _, errors = script.end()
        assert returned == code, errors
        assert (tmp_path / "stopped").exists()
        assert "Traceback" not in errors
        assert "rlpad: interrupted:" in errors


def test_a_second_interrupt_kills_it(concurrent: str, tmp_path: Path) -> None:
    body = f"""
        {WAITS}
        lp.launch(program(lp.PyNode(ignore)), LAUNCHER, stop_notice_s=0.2 if LAUNCHER == "threads" else 15)
        touch("over")
    """
    with running(tmp_path, concurrent, body) as script:
        script.wait_for("up")
        script.wait_for("over")
        assert script.goes_on()
        script.signal(signal.SIGINT)
        if concurrent == "processes":  # threads can't be killed, but are left behind after the notice
            assert script.goes_on()
            script.signal(signal.SIGINT)
        began = time.monotonic()
        code, _, errors = script.end()
        assert time.monotonic() - began < 4
        assert code == 130, errors


def test_a_person_who_leaves_the_prompt_stops_it(concurrent: str, tmp_path: Path) -> None:
    body = f"""
        {WAITS}
        lp.launch(program(lp.PyNode(wait)), LAUNCHER)
        wait_for("up")
    """
    with running(tmp_path, concurrent, body, ("-i",)) as script:
        code, _, errors = script.end()
        assert code == 0, errors
        assert (tmp_path / "stopped").exists()


def test_exit_handlers_run_once_whatever_the_code(tmp_path: Path) -> None:
    body = """
        import atexit
        atexit.register(print, "first")
        lp.launch(program(lp.PyNode(int, "x")), LAUNCHER)
        atexit.register(print, "second")
        threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()
    """
    with running(tmp_path, "threads", body) as script:
        code, output, _ = script.end()
        assert (code, output.split()) == (1, ["thread", "second", "first"])

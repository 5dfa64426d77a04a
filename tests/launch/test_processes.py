"""The processes launcher: real processes, real signals, nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import rlpad.launch as lp
from tests.support_training import alive, gone

TIMEOUT = 60


class Service:
    """Answers about its own process."""

    def pid(self):
        return os.getpid()

    def session(self):
        return os.getsid(0)

    def epoch(self):
        return lp.node_info().epoch

    def info(self):
        return lp.node_info()

    def environment(self, name):
        return os.environ.get(name)

    def title(self):
        import setproctitle

        return setproctitle.getproctitle()

    def modules(self):
        return sorted(sys.modules)

    def exit(self, code):
        os._exit(code)

    def spawn_grandchild(self):
        return subprocess.Popen(["sleep", "300"], start_new_session=True).pid

    def echo(self, value):
        return value


class Caller:
    """Calls a service again and again."""

    finished = False

    def __init__(self, service):
        self._service = service

    def step(self):
        self._service.pid(timeout=30)
        time.sleep(0.01)
        return True

    def idle(self, timeout):
        time.sleep(timeout)

    def waiting_on(self):
        return "nothing"

    def close(self):
        print("caller closed", flush=True)


def fail_after(seconds):
    time.sleep(seconds)
    raise KeyError("no such thing")


def stubborn(path):
    Path(path).write_text("begun")
    while True:
        time.sleep(1)


def write_and_end(path):
    Path(path).write_text("done")


def ask(service, path):
    Path(path).write_text(str(service.echo(41) + 1))


def launch(program, tmp_path, **options):
    return lp.launch(program, "processes", run_dir=str(tmp_path / "run"), **options)


def service_program(on_failure=None, number=1, resources=None):
    program = lp.Program("test")
    with program.group("service", on_failure=on_failure, resources=resources):
        handles = [program.add_node(lp.CourierNode(Service)) for _ in range(number)]
    return program, handles


def test_nodes_are_processes_of_their_own_named_and_logged(tmp_path):
    program, (one, two) = service_program(number=2, resources=lp.Resources(threads=3, env={"COLOUR": "red"}))
    with launch(program, tmp_path, seed=5) as run:
        first, second = run.client(one), run.client(two)
        pids = {first.pid(), second.pid()}
        assert len(pids) == 2 and os.getpid() not in pids
        assert first.session() == first.pid()
        assert first.title() == "rlpad: service/0 (test)"
        assert [first.environment(n) for n in ("COLOUR", "NPROC", "OMP_NUM_THREADS")] == ["red", "3", "3"]
        info = second.info()
        assert (info.name, info.group, info.index, info.size, info.epoch) == ("service/1", "service", 1, 2, 1)
        assert info.run_dir == str(tmp_path / "run")
        assert run.status()["service/1"] == lp.NodeStatus("running", 1, second.pid())
        server = psutil.Process(first.pid()).parent()
        assert server.cmdline()[0].startswith("rlpad: fork server")
        folder = next(Path(c.laddr).parent for c in server.children()[0].net_connections("unix") if "rlpad" in c.laddr)
        assert folder.stat().st_mode & 0o777 == 0o700
        run.stop("enough", "completed")
        assert run.wait(TIMEOUT)
    assert run.outcome == lp.Outcome("completed", "enough", 0)
    assert gone([*pids, server.pid])
    assert not folder.exists()
    for index in range(2):
        assert f"service/{index} started" in (tmp_path / "run" / "logs" / f"service-{index}.log").read_text()


def test_work_that_ends_completes_the_program(tmp_path):
    program, (service,) = service_program()
    program.add_node(lp.PyNode(ask, service, str(tmp_path / "answer")), label="asker")
    run = launch(program, tmp_path)
    assert run.wait(TIMEOUT)
    assert run.outcome.status == "completed"
    assert (tmp_path / "answer").read_text() == "42"


def test_an_exception_keeps_its_type_its_traceback_and_the_nodes_name(tmp_path):
    program, _ = service_program()
    program.add_node(lp.PyNode(fail_after, 0.1), label="worker")
    run = launch(program, tmp_path)
    with pytest.raises(KeyError, match="no such thing") as caught:
        run.wait(TIMEOUT)
    assert caught.value.__notes__ == ["raised in node worker/0"]
    assert "in fail_after" in str(caught.value.__cause__)
    assert run.outcome.reason == "node worker/0 failed: KeyError: 'no such thing'"
    assert run.outcome.exit_code == 1
    assert run.wait(1)  # only once
    assert (tmp_path / "run" / "logs" / "worker-0.log").read_text().count("Traceback") == 1


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda client: os.kill(client.pid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda client: client.futures.exit(7), "exited with code 7"),
        (lambda client: client.futures.exit(0), "exited with code 0 before its work was done"),
    ],
)
def test_a_node_that_dies_ends_the_program_and_is_named(tmp_path, end, how):
    program, (service,) = service_program()
    program.add_node(lp.CourierNode(Caller, service), label="caller")
    run = launch(program, tmp_path)
    end(run.client(service))
    started = time.monotonic()
    with pytest.raises(lp.NodeFailed, match=f"^node service/0 {how}"):
        run.wait(TIMEOUT)
    assert time.monotonic() - started < 10
    # The caller missed the service and died of that; it isn't the cause.
    assert run.outcome.reason == f"node service/0 {how}"
    assert "caller closed" in (tmp_path / "run" / "logs" / "caller-0.log").read_text()


def test_restart_keeps_the_name_and_callers_find_the_successor(tmp_path):
    program, (service,) = service_program(lp.Restart(max_restarts=2, backoff_s=0.05))
    with launch(program, tmp_path) as run:
        client = run.client(service)
        for epoch in (1, 2, 3):
            assert client.epoch(retry=3) == epoch
            assert run.status()["service/0"].epoch == epoch
            if epoch < 3:
                pid = client.pid()
                os.kill(pid, signal.SIGKILL)
                assert gone([pid])
                deadline = time.monotonic() + TIMEOUT
                while run.status()["service/0"].epoch == epoch and time.monotonic() < deadline:
                    time.sleep(0.02)
        os.kill(client.pid(), signal.SIGKILL)
        with pytest.raises(lp.NodeFailed, match="service/0 was killed by SIGKILL"):
            run.wait(TIMEOUT)
    assert (tmp_path / "run" / "logs" / "service-0.log").read_text().count("started at") == 3


def test_ignored_nodes_may_die(tmp_path, capfd):
    program, (service,) = service_program(lp.Ignore())
    program.add_node(lp.PyNode(time.sleep, 2.0), label="sleeper")
    run = launch(program, tmp_path)
    os.kill(run.client(service).pid(), signal.SIGKILL)
    assert run.wait(TIMEOUT)
    assert run.outcome.status == "completed"
    assert "node service/0 was killed by SIGKILL; goes on without it" in capfd.readouterr().err


def test_who_ignores_the_stop_is_killed_and_named(tmp_path):
    program, (service,) = service_program()
    program.add_node(lp.PyNode(stubborn, str(tmp_path / "begun")), label="stubborn")
    run = launch(program, tmp_path, stop_notice_s=1.0)
    run.client(service).pid()
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    run.stop("enough")
    started = time.monotonic()
    assert run.wait(TIMEOUT)
    assert time.monotonic() - started < 5
    assert run.outcome.killed == ("stubborn/0",)
    assert "ignored the stop and had to be killed: stubborn/0" in run.outcome.reason


def test_grandchildren_end_with_the_program(tmp_path):
    program, (service,) = service_program()
    with launch(program, tmp_path) as run:
        pid = run.client(service).spawn_grandchild()
        assert alive(pid)
    assert gone([pid])


def test_the_end_of_the_fork_server_ends_the_program(tmp_path):
    program, (service,) = service_program()
    run = launch(program, tmp_path)
    pid = run.client(service).pid()
    server = psutil.Process(pid).ppid()
    os.kill(server, signal.SIGKILL)
    with pytest.raises(lp.NodeFailed, match="the fork server was killed by SIGKILL"):
        run.wait(TIMEOUT)
    assert gone([pid, server])


def test_a_node_without_heartbeat_is_killed_and_named(tmp_path):
    program, (service,) = service_program()
    run = launch(program, tmp_path, heartbeat_timeout_s=2.0)
    pid = run.client(service).pid()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(lp.NodeFailed, match="service/0 gave no sign of life for 2 s"):
        run.wait(TIMEOUT)
    assert gone([pid])


def test_what_cannot_be_pickled_is_refused_before_anything_starts(tmp_path):
    program = lp.Program("test")
    program.add_node(lp.PyNode(write_and_end, threading.Lock()), label="writer")
    with pytest.raises(lp.LaunchError, match=r"writer/0.*can't be sent to a process.*lock"):
        launch(program, tmp_path)
    assert not (tmp_path / "run").exists()


def test_functions_of_a_script_and_closures_travel(tmp_path):
    target = tmp_path / "written"
    program = lp.Program("test")
    program.add_node(lp.PyNode(lambda text: target.write_text(text), "hello"), label="writer")
    assert launch(program, tmp_path).wait(TIMEOUT)
    assert target.read_text() == "hello"


def test_preloaded_modules_are_there_and_jax_platform_is_set(tmp_path):
    program, (service,) = service_program()
    with launch(program, tmp_path, preload=("json", "wave")) as run:
        assert "wave" in run.client(service).modules()
        assert "jax" not in run.client(service).modules()


def test_a_module_that_starts_threads_is_no_reason_to_fork_with_them(tmp_path, capfd, monkeypatch):
    (tmp_path / "threaded_module.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    program, (service,) = service_program()
    with launch(program, tmp_path, preload=("threaded_module",)) as run:
        client = run.client(service)
        assert client.echo("hello") == "hello"
        assert "threaded_module" not in client.modules()
        assert client.session() == client.pid()
    assert "left 2 threads running" in capfd.readouterr().err


def test_a_preload_that_fails_ends_the_run(tmp_path, capfd):
    program, _ = service_program()
    run = launch(program, tmp_path, preload=("no_such_module_at_all",))
    with pytest.raises(lp.NodeFailed, match="fork server exited with code 1"):
        run.wait(TIMEOUT)
    assert "no_such_module_at_all" in capfd.readouterr().err


def test_two_programs_at_once(tmp_path):
    (first, (one,)), (second, (two,)) = service_program(), service_program()
    with launch(first, tmp_path / "a") as run, launch(second, tmp_path / "b") as other:
        pid = run.client(one).pid()
        run.stop("enough", "completed")
        assert run.wait(TIMEOUT)
        assert gone([pid])
        assert other.client(two).echo(3) == 3


SCRIPT = """
    import os, sys, time
    import rlpad.launch as lp

    class Service:
        def pid(self):
            return os.getpid()

    def work(seconds):
        {work}

    program = lp.Program("script")
    service = program.add_node(lp.CourierNode(Service), label="service")
    program.add_node(lp.PyNode(work, 60), label="worker")
    run = lp.launch(program, "processes", stop_notice_s=8)
    client = run.client(service)
    client.pid()
    while not all(status.up for status in run.status().values()):
        time.sleep(0.02)
    pids = [status.pid for status in run.status().values()]
    import psutil
    server = psutil.Process(pids[0]).ppid()
    folder = os.path.dirname(client._address().removeprefix("unix:"))
    print(folder, server, *pids, flush=True)
    run.wait()
    print(run.outcome, flush=True)
    sys.exit(run.outcome.exit_code)
"""


def start_script(tmp_path, work):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).format(work=work))
    process = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    folder, *pids = process.stdout.readline().split()
    return process, folder, [int(pid) for pid in pids]


def test_sigkill_of_the_launcher_leaves_nothing(tmp_path):
    process, folder, pids = start_script(tmp_path, "time.sleep(seconds)")
    assert os.path.isdir(folder)
    assert all(alive(pid) for pid in pids)
    process.kill()
    assert gone(pids, 5.0)
    assert not os.path.exists(folder)
    process.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_program(tmp_path, number, code):
    process, folder, pids = start_script(tmp_path, "lp.wait_for_stop(seconds)")
    started = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert time.monotonic() - started < 10
    assert process.returncode == code
    assert "status='interrupted'" in output
    assert gone(pids)
    assert not os.path.exists(folder)


def test_a_second_interrupt_kills_at_once(tmp_path):
    process, folder, pids = start_script(tmp_path, "time.sleep(seconds)")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # the worker sleeps on, and has its notice
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT)
    assert time.monotonic() - started < 3
    assert process.returncode not in (0, None)
    assert gone(pids)
    assert not os.path.exists(folder)


def fail_at_once(service):
    raise LookupError("not even begun")


def test_last_words_are_heard_however_early_the_end(tmp_path):
    for attempt in range(5):
        program, (service,) = service_program()
        program.add_node(lp.CourierNode(fail_at_once, service), label="hasty")
        run = launch(program, tmp_path / str(attempt))
        with pytest.raises(LookupError, match="not even begun"):
            run.wait(TIMEOUT)
        assert run.outcome.reason == "node hasty/0 failed: LookupError: not even begun"

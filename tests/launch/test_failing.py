"""What a node raises comes out of `wait`, under every launcher."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rlpad.launch as lp
from rlpad.launch import supervisor

from .conftest import LONG, Start
from .example_nodes import CustomError, Neither, Service, Waits, Worker, fail, lines, one


class TestFailing:
    """What a node raises comes out of `wait`, with its name."""

    def check(self, run: lp.Run, kind: type, text: str, node: str) -> lp.Outcome:
        """Waits for a failure, and checks what is told of it."""
        with pytest.raises(kind, match=text) as info:
            run.wait(LONG)
        notes = [note for note in info.value.__notes__ if note.startswith("raised in node")]
        assert len(notes) == 1
        assert notes[0].startswith(f"raised in node {node}")
        outcome = run.outcome
        assert outcome is not None
        assert (outcome.status, outcome.exit_code, outcome.error) == ("failed", 1, info.value)
        assert outcome.reason.startswith(f"node {node} failed")
        assert "\n" not in outcome.reason
        # Raised once: who asks again is told only that it has ended.
        assert run.wait(LONG) is True
        return outcome

    def test_function(self, launcher: str, start: Start) -> None:
        run = start(one(lp.PyNode(fail, CustomError("a\nb")), label="bad"), launcher)
        outcome = self.check(run, CustomError, "a\nb", "bad/0")
        assert outcome.reason == "node bad/0 failed: CustomError: a"
        assert run.status()["bad/0"].state == "failed"

    def test_without_text(self, launcher: str, start: Start) -> None:
        outcome = self.check(start(one(lp.PyNode(fail, KeyError())), launcher), KeyError, "^", "n/0")
        assert outcome.reason == "node n/0 failed: KeyError: KeyError"

    def test_stops_the_others(self, launcher: str, start: Start, tmp_path: Path) -> None:
        bad = tmp_path / "bad"
        node = lp.PyClassNode(Worker, str(bad), 5, every=2, fails_at="step 2", name="bad")
        program = one(lp.PyClassNode(Waits), label="waits")
        program.add_node(node, label="bad")
        run = start(program, launcher)
        self.check(run, CustomError, "step 2", "bad/0")
        # Closed once, though it failed.
        assert lines(bad)[-2:] == ["bad step 2", "bad close"]
        assert lines(bad).count("bad close") == 1
        assert run.status()["waits/0"].state == "stopped"

    @pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
    def test_constructor(self, launcher: str, start: Start, tmp_path: Path, kind: Any) -> None:
        program = one(lp.PyClassNode(Waits), label="waits")
        program.add_node(kind(Worker, str(tmp_path / "out"), fails_at="made"), label="bad")
        self.check(start(program, launcher), CustomError, "made", "bad/0")
        assert lines(tmp_path / "out") == ["worker made"]

    def test_constructor_of_a_node_that_others_call(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        bad = lp.CourierNode(fail, CustomError("not built"))
        program.add_node(lp.PyClassNode(asks, bad.create_handle()), label="asks")
        program.add_node(bad, label="bad")
        self.check(start(program, launcher), CustomError, "not built", "bad/0")

    def test_idle(self, launcher: str, start: Start, tmp_path: Path) -> None:
        node = lp.PyClassNode(Worker, str(tmp_path / "out"), every=2, fails_at="idle")
        self.check(start(one(node), launcher), CustomError, "idle", "n/0")
        assert lines(tmp_path / "out") == ["worker made", "worker idle", "worker close"]

    def test_close(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.PyClassNode(Worker, str(tmp_path / "a"), fails_at="close"), label="a")
        program.add_node(lp.PyClassNode(Worker, str(tmp_path / "b")), label="b")
        self.check(start(program, launcher), CustomError, "close", "a/0")
        # Others are closed all the same.
        assert lines(tmp_path / "b")[-1] == "worker close"

    def test_close_after_another_failure(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = one(lp.CourierNode(BadClose), label="c")
        program.add_node(lp.CourierNode(Neither, str(tmp_path / "n")), label="n")
        program.add_node(lp.PyNode(fail, CustomError("first")), label="bad")
        self.check(start(program, launcher), CustomError, "^first", "bad/0")
        assert lines(tmp_path / "n") == ["made", "closed"]

    def test_call_of_another(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        service = program.add_node(lp.CourierNode(Service), label="service")
        program.add_node(lp.PyNode(call_fail, service), label="caller")
        # It's the caller that didn't see to it.
        self.check(start(program, launcher), CustomError, "called", "caller/0")

    @pytest.mark.parametrize("launcher", ["inline", "threads"])
    @pytest.mark.parametrize("error", [SystemExit(3), SystemExit(0)])
    def test_exit(self, launcher: str, start: Start, error: BaseException) -> None:
        run = start(one(lp.PyNode(fail, error), label="bad"), launcher)
        with pytest.raises(lp.NodeFailed, match="bad/0") as info:
            run.wait(LONG)
        assert info.value.node == "bad/0"
        assert run.outcome is not None
        assert (run.outcome.status, run.outcome.exit_code) == ("failed", 1)

    def test_first_failure_counts(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        for name in "abc":
            program.add_node(lp.PyNode(fail, CustomError(name)), label=name)
        run = start(program, launcher)
        with pytest.raises(CustomError) as info:
            run.wait(LONG)
        assert info.value.__notes__ == [f"raised in node {info.value}/0"]


def asks(service: Any) -> None:
    """Calls what isn't built."""
    service.ping()


def call_fail(service: Any) -> None:
    """Doesn't catch what a call raises."""
    service.fail("called")


class BadClose:
    """Can't be closed."""

    def close(self) -> None:
        """Raises."""
        raise CustomError("close")


class HangsAtTheEnd:
    """Raises, and can't be closed then."""

    def run(self) -> None:
        """Raises."""
        raise CustomError("first")

    def close(self) -> None:
        """Hangs."""
        time.sleep(3600)


def test_a_failed_node_that_cannot_be_closed_holds_up_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CLOSE_SECONDS", 0.3)
    program = lp.Program("p")
    program.add_node(lp.PyClassNode(HangsAtTheEnd), label="bad")
    run = start(program, "processes")
    with pytest.raises(CustomError, match="first"):
        run.wait(LONG)
    assert run.outcome is not None
    assert run.outcome.reason == "node bad/0 failed: CustomError: first"

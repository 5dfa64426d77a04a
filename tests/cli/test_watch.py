"""The live view: what is shown is worked out by pure functions; how, is seen on streams in memory."""

import io
import json
import types

import pytest
from rich.console import Console

from rlpad.cli import live, watch
from rlpad.cli.live import EvaluationView, LineDisplay, LiveDisplay, Rates, Watcher, summarise
from rlpad.errors import UserError
from rlpad.experiment.config import ExperimentConfig, Scale
from rlpad.experiment.coordinator import EvaluationResult, EvaluationTask
from rlpad.experiment.run import RunResult
from rlpad.launch import NodeFailed, RemoteTraceback, StalledError
from rlpad.launch.run import NodeStatus
from rlpad.tracking.run_directory import RunDirectory
from rlpad.tracking.snapshots import mark_best, write_snapshot


def evaluation(steps, mean, kind="periodic", episodes=10):
    return EvaluationResult(EvaluationTask(f"policy-{steps}", kind, steps, 0, episodes), mean, 1.5, episodes)


def progress(actor_steps=2_500, learner_steps=600, **changes):
    return {
        "counts": {"actor_steps": actor_steps, "learner_steps": learner_steps, "episodes": 12},
        "gauges": {},
        "acting": True,
        "learning": True,
        "pending_evaluations": 0,
        "last_evaluation": None,
        "best_evaluation": None,
        "final_evaluation": None,
        "best_reevaluation": None,
        **changes,
    }


NODES = {
    "counter/0": NodeStatus("running"),
    "actor/0": NodeStatus("finished", epoch=3),
    "actor/1": NodeStatus("restarting", epoch=2),
    "evaluator/0": NodeStatus("starting"),
}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_summary_by_hand():
    view = summarise(
        progress(
            gauges={
                "learner/0": {"size": 2_000, "inserts": 2_400, "samples": 19_200},
                "actor/0": {"idle": 1},
            },
            last_evaluation=evaluation(2_000, 21.5),
            best_evaluation=evaluation(1_000, 30.25),
        ),
        NODES,
        10_000,
        Rates(8.0, 500.0, 120.0),
    )
    assert view.phase == "training"
    assert (view.actor_steps, view.goal, view.percent, view.learner_steps, view.episodes) == (
        2_500,
        10_000,
        25,
        600,
        12,
    )
    assert view.eta == 15.0
    assert (view.replay_size, view.samples_per_insert) == (2_000, 8.0)
    assert view.last == EvaluationView(2_000, 21.5, 1.5, 10)
    assert view.best == EvaluationView(1_000, 30.25, 1.5, 10)
    assert (view.nodes_up, view.nodes, view.restarts) == (2, 4, 3)
    assert view.down == ("actor/1 restarting",)
    assert live.progress_line(view) == (
        "[0:08] training | 2,500/10,000 actor steps (25%, 0:15 left) | 600 learner steps | "
        "500 actor steps/s · 120 learner steps/s | replay 2,000 items · 8.00 samples per insert | "
        "12 episodes | return last 21.5 ± 1.5 at 2,000 · best 30.2 at 1,000 | "
        "nodes 2/4 up · 3 restarts · actor/1 restarting"
    )


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"actor_steps": 0}, "starting"),
        ({}, "training"),
        ({"acting": False}, "learning from what is left"),
        ({"acting": False, "learning": False, "pending_evaluations": 1}, "evaluating the final policy"),
        (
            {
                "acting": False,
                "learning": False,
                "pending_evaluations": 1,
                "final_evaluation": evaluation(10_000, 5.0, "final"),
            },
            "evaluating the best policy again",
        ),
        ({"acting": False, "learning": False}, "ending"),
    ],
)
def test_phases(changes, phase):
    assert summarise(progress(**changes), NODES, 10_000, Rates()).phase == phase


def test_what_is_unknown_is_left_out():
    view = summarise(progress(0, 0, gauges={"learner/0": {"size": 0, "inserts": 0, "samples": 0}}), {}, 10, Rates())
    assert (view.eta, view.samples_per_insert, view.last, view.best) == (None, None, None, None)
    assert live.progress_line(view).startswith("[0:00] starting | 0/10 actor steps (0%) | 0 learner steps | replay 0")
    # Standing still gives no estimate, nor does a goal that is reached.
    assert summarise(progress(), {}, 10_000, Rates(5.0, 0.0, 0.0)).eta is None
    assert summarise(progress(10_000), {}, 10_000, Rates(5.0, 1.0, 0.0)).eta is None


def test_percent_is_100_only_at_the_goal():
    assert summarise(progress(9_999), {}, 10_000, Rates()).percent == 99
    assert summarise(progress(10_000), {}, 10_000, Rates()).percent == 100


def test_many_nodes_that_are_down_dont_fill_the_screen():
    nodes = {f"actor/{i}": NodeStatus("restarting", epoch=2) for i in range(8)}
    text = live.nodes_text(summarise(progress(), nodes, 10, Rates()))
    assert text == "0/8 up · 8 restarts · actor/0 restarting · actor/1 restarting · actor/2 restarting · 5 more"


class Recorder:
    def __init__(self):
        self.views = []
        self.evaluations = []

    def show(self, view, evaluations):
        self.views.append(view)
        self.evaluations.append(evaluations)

    def close(self):
        pass


def test_rates_are_averages_over_ten_seconds():
    clock, display = Clock(), Recorder()
    watcher = Watcher(display, 100_000, clock)
    for second in range(31):
        clock.now = 100.0 + second
        # 100 steps/s at first, 300 from second 15 on.
        steps = 100 * second + max(0, 200 * (second - 15))
        watcher(progress(steps, 2 * second), NODES)
    rates = [view.rates for view in display.views]
    assert rates[0] == Rates(0.0, None, None)
    assert rates[1] == Rates(1.0, 100.0, 2.0)
    assert rates[15] == Rates(15.0, 100.0, 2.0)
    assert rates[20] == Rates(20.0, 200.0, 2.0)  # seconds 10 to 20: half slow, half fast
    assert rates[30] == Rates(30.0, 300.0, 2.0)


def test_lines_come_every_ten_seconds_and_for_each_evaluation():
    clock, stream = Clock(), io.StringIO()
    watcher = Watcher(LineDisplay(stream), 10_000, clock)
    for quarter in range(4 * 21):
        clock.now = 100.0 + quarter / 4
        changes = {}
        if quarter >= 10:
            changes["last_evaluation"] = evaluation(500, 9.0, episodes=1)
        if quarter >= 50:
            changes["last_evaluation"] = evaluation(1_000, 10.0)
            changes["final_evaluation"] = evaluation(10_000, 11.0, "final", 20)
        watcher(progress(100 * quarter, quarter, **changes), {})
    watcher.close("completed")
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    assert [line.split(" | ")[0] for line in lines if "|" in line] == [
        "[0:00] starting",
        "[0:10] training",
        "[0:20] training",
    ]
    assert [line for line in lines if "|" not in line] == [
        "[0:02] evaluation at 500 actor steps: return 9.0 ± 1.5 over 1 episode",
        "[0:12] evaluation at 1,000 actor steps: return 10.0 ± 1.5 over 10 episodes",
        "[0:12] final evaluation at 10,000 actor steps: return 11.0 ± 1.5 over 20 episodes",
    ]


def test_rendering_fits_a_hundred_columns():
    view = summarise(
        progress(
            gauges={"learner/0": {"size": 2_000, "inserts": 2_400, "samples": 19_200}},
            last_evaluation=evaluation(2_000, 21.5),
            best_evaluation=evaluation(1_000, 30.0),
        ),
        {"actor[0]": NodeStatus("failed")},
        10_000,
        Rates(8.0, 500.0, 120.0),
    )
    stream = io.StringIO()
    Console(file=stream, width=100).print(live.render(view))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 7
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].rstrip().endswith("2,500/10,000 steps · 25% · 0:08 · 0:15 left")
    assert [line.split()[0] for line in lines[1:]] == ["now", "speed", "learnt", "replay", "return", "nodes"]
    assert "2,000 items · 8.00 samples per insert" in lines[4]
    # Brackets in a name are no markup.
    assert "0/1 up · actor[0] failed" in lines[6]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_live_view_redraws_calmly_and_ends_with_the_last_state(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    clock, stream = Clock(), Terminal()
    display = LiveDisplay(stream, clock)
    draws = []
    draw = display._draw
    monkeypatch.setattr(display, "_draw", lambda view: (draws.append(view.actor_steps), draw(view)))
    watcher = Watcher(display, 1_000, clock)
    for tick in range(21):
        clock.now = 100.0 + tick / 20
        watcher(progress(tick), {})
    watcher.close("completed", (20, 7))
    assert draws[-1] == 20
    assert len(draws) <= 6  # four a second and the last
    text = stream.getvalue()
    assert "20/1,000 steps" in text and "completed" in text and "7 learner steps" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Terminal(), "xterm-256color", LiveDisplay),
        (Terminal(), "dumb", LineDisplay),
        (Terminal(), None, LineDisplay),
        (io.StringIO(), "xterm-256color", LineDisplay),
    ],
)
def test_the_live_view_is_for_terminals_only(monkeypatch, stream, term, kind):
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert isinstance(live.make_display(stream), kind)


# What is said before and after.


def result(run_dir, **changes):
    values = {
        "run_dir": run_dir,
        "status": "completed",
        "reason": "step goal reached",
        "exit_code": 0,
        "actor_steps": 1_000,
        "learner_steps": 900,
        "best_mean": 30.0,
        "final_mean": 25.04,
    }
    return RunResult(**{**values, **changes})


def snapshot(run, steps):
    return write_snapshot(run, {"policy": 1.0}, actor_steps=steps, learner_steps=steps).path.name


def test_summary_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "my run"
    mark_best(run, snapshot(run, 500), 30.0, 10)
    assert watch.summary(result(run), 75.0, 20, run / "learning_curve.png") == [
        "completed: step goal reached",
        "1,000 actor steps, 900 learner steps in 1:15",
        "final policy: mean return 25.0 over 20 fresh episodes",
        "best policy: mean return 30.0 over 20 fresh episodes",
        "learning curve: my run/learning_curve.png",
        "rlpad evaluate 'my run'",
    ]


def test_summary_of_an_interrupted_run_says_what_was_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    cut = result(run, status="interrupted", reason="interrupted by Ctrl-C", best_mean=None, final_mean=None)
    run.mkdir()
    assert watch.summary(cut, 5.0, 20, None)[2:] == ["no policy was saved: the learner hadn't taken a step"]
    name = snapshot(run, 500)
    snapshot(run, 800)
    assert watch.summary(cut, 5.0, 20, None) == [
        "interrupted: interrupted by Ctrl-C",
        "1,000 actor steps, 900 learner steps in 0:05",
        "saved: 2 policy snapshots, the latest at 800 actor steps",
        "rlpad evaluate run --snapshot latest",
    ]
    mark_best(run, name, 3.0, 10)
    assert watch.summary(cut, 5.0, 20, None)[-1] == "rlpad evaluate run"


def test_start_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ExperimentConfig(agent="dqn", env="CartPole-v1", seed=7)
    line = watch.start_line(config, Scale(4, 2), "processes", "reverb", tmp_path / "runs" / "a")
    assert line == "dqn on CartPole-v1 · processes · reverb replay · 4 actors x 2 envs · seed 7 · runs/a"


def noted(error, note="raised in node actor/0"):
    error.add_note(note)
    return error


def test_failures_in_one_line():
    assert watch.failure(noted(ValueError("a\nb"))) == "node actor/0 failed: ValueError: a"
    assert watch.failure(noted(KeyError())) == "node actor/0 failed: KeyError: KeyError"
    late = noted(ValueError("a"), "raised in node actor/0, when it was closed")
    assert watch.failure(late) == "node actor/0 failed when it was closed: ValueError: a"
    died = NodeFailed("learner/0", "node learner/0 was killed by SIGKILL")
    assert watch.failure(died) == "node learner/0 was killed by SIGKILL"
    stalled = noted(StalledError("nobody can step:\n  actor/0 waits for replay"))
    assert watch.failure(stalled) == "the run failed: StalledError: nobody can step:"
    assert watch.explanation(stalled) == "nobody can step:\n  actor/0 waits for replay"
    assert watch.failure(RuntimeError("x")) == "the run failed: RuntimeError: x"


def test_remote_tracebacks_are_printed_instead_of_local_frames():
    error = noted(ValueError("far away"))
    remote = 'Traceback (most recent call last):\n  File "actor.py", line 1, in step\nValueError: far away\n'
    error.__cause__ = RemoteTraceback(remote)
    try:
        raise error
    except ValueError as caught:
        assert watch.explanation(caught) == f"node actor/0:\n{remote.strip()}"


FLAGS = types.SimpleNamespace(
    launcher="auto",
    replay="auto",
    run_dir=None,
    tensorboard=False,
    wandb=None,
    debug=None,
    debugger="pdb",
    json=False,
)


def run_faked(monkeypatch, tmp_path, end, *, started=True, backend="embedded", flags=FLAGS):
    """Runs `run_watched` around a `run_experiment` that reports once and then does what `end` does."""
    monkeypatch.chdir(tmp_path)

    def run_experiment(config, scale, launcher, *, watch, on_start, **options):
        if not started:
            return end(None)
        directory = RunDirectory.create(tmp_path / "run", {"experiment": config}, ["rlpad"])
        on_start(directory, types.SimpleNamespace(replay_backend=backend), "threads")
        watch(progress(), NODES)
        return end(directory)

    monkeypatch.setattr(watch, "run_experiment", run_experiment)
    return watch.run_watched(ExperimentConfig(agent="dqn", env="CartPole-v1"), Scale(), flags)


def raiser(error):
    def end(directory):
        raise error

    return end


def test_reverb_gets_one_line_of_warning(monkeypatch, tmp_path, capsys):
    run_faked(monkeypatch, tmp_path, lambda directory: result(directory.path), backend="reverb")
    lines = capsys.readouterr().out.splitlines()
    warned = [line for line in lines if "reproduced bit for bit" in line]
    assert len(warned) == 1 and "all interfaces" in warned[0]


def test_second_interrupt_is_no_failure(monkeypatch, tmp_path, capsys):
    ended = run_faked(monkeypatch, tmp_path, raiser(KeyboardInterrupt()))
    assert (ended.status, ended.exit_code) == ("interrupted", 130)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert "what was written until then is in" in capsys.readouterr().out.splitlines()[-1]


def test_interrupt_before_the_start(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run_faked(monkeypatch, tmp_path, raiser(KeyboardInterrupt()), started=False)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "rlpad: interrupted before the run started\n"


def test_errors_about_the_request_are_left_to_the_command_line(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="bad request"):
        run_faked(monkeypatch, tmp_path, raiser(UserError("bad request")), started=False)
    # Raised by a node, the same error is a failure of the run.
    ended = run_faked(monkeypatch, tmp_path, raiser(noted(UserError("no GPU"))))
    assert (ended.status, ended.exit_code) == ("failed", 1)


def test_json_moves_the_view_to_stderr(monkeypatch, tmp_path, capsys):
    flags = types.SimpleNamespace(**{**vars(FLAGS), "json": True})
    run_faked(monkeypatch, tmp_path, lambda directory: result(directory.path), flags=flags)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dqn on CartPole-v1 · threads")

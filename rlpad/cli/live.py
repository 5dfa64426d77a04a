"""What a person sees while a run goes on: one calm view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlpad.cli.text import count, duration

STARTING = "starting"
TRAINING = "training"
DRAINING = "learning from what is left"
EVALUATING_FINAL = "evaluating the final policy"
EVALUATING_BEST = "evaluating the best policy again"
ENDING = "ending"

#: Seconds over which speeds are averaged.
RATE_WINDOW_S = 10.0

#: Least seconds between two plain lines about progress.
LINE_PERIOD_S = 10.0

#: Nodes that are named because they aren't up.
MAX_NAMED = 3

#: Least seconds between two redrawings of the view.
REFRESH_PERIOD_S = 0.25


@dataclasses.dataclass(frozen=True)
class Rates:
    """How fast a run goes.

    Attributes:
      elapsed: seconds since it began.
      actor: actor steps per second, or None while unknown.
      learner: learner steps per second, or None while unknown.
    """

    elapsed: float = 0.0
    actor: float | None = None
    learner: float | None = None


@dataclasses.dataclass(frozen=True)
class EvaluationView:
    """One evaluation: mean and standard deviation of the return over `episodes` episodes."""

    actor_steps: int
    mean: float
    std: float
    episodes: int


@dataclasses.dataclass(frozen=True)
class View:
    """All that is shown.

    Attributes:
      phase: what the run is doing.
      actor_steps: steps taken.
      goal: steps to take.
      learner_steps: SGD steps taken.
      episodes: training episodes finished.
      rates: elapsed time and speeds.
      eta: seconds until the step goal, or None if unknown or reached.
      replay_size: items in replay, or None before the first report.
      samples_per_insert: samples that the learner took per inserted item, or None.
      last: the latest evaluation.
      best: the best evaluation.
      nodes_up: nodes that run or serve.
      nodes: nodes.
      restarts: restarts of all nodes.
      down: nodes that failed or start again, with their state.
    """

    phase: str
    actor_steps: int
    goal: int
    learner_steps: int
    episodes: int
    rates: Rates
    eta: float | None
    replay_size: int | None
    samples_per_insert: float | None
    last: EvaluationView | None
    best: EvaluationView | None
    nodes_up: int
    nodes: int
    restarts: int
    down: tuple[str, ...] = ()

    @property
    def percent(self) -> int:
        """Percent of the goal, rounded down: 100 is said only when it's reached."""
        return 100 * self.actor_steps // self.goal


class _RateMeter:
    """Averages speeds over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def update(self, elapsed: float, counts: Mapping[str, int]) -> Rates:
        self._seen.append((elapsed, counts["actor_steps"], counts["learner_steps"]))
        while len(self._seen) > 2 and self._seen[1][0] <= elapsed - RATE_WINDOW_S:
            self._seen.popleft()
        then, actor, learner = self._seen[0]
        passed = elapsed - then
        if passed < 1.0:
            return Rates(elapsed)
        return Rates(
            elapsed,
            (counts["actor_steps"] - actor) / passed,
            (counts["learner_steps"] - learner) / passed,
        )


def summarise(progress: Mapping[str, Any], nodes: Mapping[str, Any], goal: int, rates: Rates) -> View:
    """Condenses a coordinator's progress and the nodes' status into what is shown.

    Args:
      progress: what `Coordinator.progress()` returned.
      nodes: node status by name.
      goal: actor steps to take.
      rates: elapsed time and speeds.
    """
    counts = progress["counts"]
    actor_steps = counts["actor_steps"]
    left = max(goal - actor_steps, 0)
    size, per_insert = _replay(progress["gauges"])
    return View(
        phase=_phase(progress),
        actor_steps=actor_steps,
        goal=goal,
        learner_steps=counts["learner_steps"],
        episodes=counts.get("episodes", 0),
        rates=rates,
        eta=left / rates.actor if left and rates.actor else None,
        replay_size=size,
        samples_per_insert=per_insert,
        last=_evaluation(progress["final_evaluation"] or progress["last_evaluation"]),
        best=_evaluation(progress["best_evaluation"]),
        nodes_up=sum(status.up for status in nodes.values()),
        nodes=len(nodes),
        restarts=sum(max(status.epoch - 1, 0) for status in nodes.values()),
        down=tuple(
            f"{name} {status.state}" for name, status in nodes.items() if status.state in ("failed", "restarting")
        ),
    )


def _phase(progress: Mapping[str, Any]) -> str:
    if progress["acting"]:
        return TRAINING if progress["counts"]["actor_steps"] else STARTING
    if progress["learning"]:
        return DRAINING
    if not progress["pending_evaluations"]:
        return ENDING
    return EVALUATING_FINAL if progress["final_evaluation"] is None else EVALUATING_BEST


def _replay(gauges: Mapping[str, Mapping[str, Any]]) -> tuple[int | None, float | None]:
    known = [gauge for gauge in gauges.values() if "size" in gauge]
    if not known:
        return None, None
    inserts = sum(gauge.get("inserts", 0) for gauge in known)
    samples = sum(gauge.get("samples", 0) for gauge in known)
    return sum(gauge["size"] for gauge in known), samples / inserts if inserts else None


def _evaluation(result: Any) -> EvaluationView | None:
    if result is None:
        return None
    return EvaluationView(result.task.actor_steps, result.mean, result.std, result.episodes)


def speed_text(view: View) -> str:
    """Says how fast actors and learner are."""
    if view.rates.actor is None or view.rates.learner is None:
        return "measuring"
    return f"{view.rates.actor:,.0f} actor steps/s · {view.rates.learner:,.0f} learner steps/s"


def replay_text(view: View) -> str:
    """Says how full replay is and how often its items are used."""
    if view.replay_size is None:
        return "filling"
    text = f"{view.replay_size:,} items"
    return text if view.samples_per_insert is None else f"{text} · {view.samples_per_insert:.2f} samples per insert"


def returns_text(view: View) -> str:
    """Says what evaluations found."""
    parts = []
    if view.last is not None:
        parts.append(f"last {view.last.mean:.1f} ± {view.last.std:.1f} at {view.last.actor_steps:,}")
    if view.best is not None:
        parts.append(f"best {view.best.mean:.1f} at {view.best.actor_steps:,}")
    return " · ".join(parts or ["no evaluation yet"])


def nodes_text(view: View) -> str:
    """Says which nodes are up."""
    parts = [f"{view.nodes_up}/{view.nodes} up"]
    if view.restarts:
        parts.append(count(view.restarts, "restart"))
    parts.extend(view.down[:MAX_NAMED])
    if len(view.down) > MAX_NAMED:
        parts.append(f"{len(view.down) - MAX_NAMED} more")
    return " · ".join(parts)


def progress_line(view: View) -> str:
    """Formats a view as one plain line."""
    eta = "" if view.eta is None else f", {duration(view.eta)} left"
    parts = [
        view.phase,
        f"{view.actor_steps:,}/{view.goal:,} actor steps ({view.percent}%{eta})",
        f"{view.learner_steps:,} learner steps",
    ]
    if view.rates.actor is not None:
        parts.append(speed_text(view))
    if view.replay_size is not None:
        parts.append(f"replay {replay_text(view)}")
    parts.append(f"{view.episodes:,} episodes")
    if view.last is not None:
        parts.append(f"return {returns_text(view)}")
    parts.append(f"nodes {nodes_text(view)}")
    return f"[{duration(view.rates.elapsed)}] {' | '.join(parts)}"


def evaluation_line(elapsed: float, kind: str, found: EvaluationView) -> str:
    """Formats an evaluation as one plain line."""
    name = {"final": "final evaluation", "best": "best snapshot, fresh episodes"}.get(kind, "evaluation")
    return (
        f"[{duration(elapsed)}] {name} at {found.actor_steps:,} actor steps: "
        f"return {found.mean:.1f} ± {found.std:.1f} over {count(found.episodes, 'episode')}"
    )


def render(view: View) -> RenderableType:
    """Lays a view out for a terminal."""
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    left = "" if view.eta is None else f" · {duration(view.eta)} left"
    bar.add_row(
        ProgressBar(total=view.goal, completed=view.actor_steps),
        Text(f"{view.actor_steps:,}/{view.goal:,} steps · {view.percent}% · {duration(view.rates.elapsed)}{left}"),
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for name, text in (
        ("now", view.phase),
        ("speed", speed_text(view)),
        ("learnt", f"{view.learner_steps:,} learner steps from {view.episodes:,} finished episodes"),
        ("replay", replay_text(view)),
        ("return", returns_text(view)),
        ("nodes", nodes_text(view)),
    ):
        # Text, as a node's name in brackets would be taken for markup.
        rows.add_row(name, Text(text))
    return Group(bar, rows)


class LiveDisplay:
    """Redraws one view in place."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        # Without a thread of its own: nodes are forked while it is there, and views come often enough.
        self._live = Live(console=Console(file=stream, highlight=False), auto_refresh=False, transient=False)
        self._clock = clock
        self._drawn_at = -float("inf")
        self._drawn: View | None = None
        self._last: View | None = None

    def show(self, view: View, evaluations: Mapping[str, EvaluationView]) -> None:
        """Redraws the view, unless the last redrawing was just now."""
        del evaluations  # they are part of the view
        self._last = view
        if self._clock() - self._drawn_at >= REFRESH_PERIOD_S:
            self._draw(view)

    def _draw(self, view: View) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(render(view), refresh=True)
        self._drawn, self._drawn_at = view, self._clock()

    def close(self) -> None:
        """Draws the last view, if it was too early for it, and lets go of the terminal."""
        if self._last is not None and self._drawn != self._last:
            self._draw(self._last)
        if self._live.is_started:
            self._live.stop()


class LineDisplay:
    """Prints a plain line now and then, and one for each new evaluation."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._printed_at: float | None = None
        self._evaluations: dict[str, EvaluationView] = {}

    def show(self, view: View, evaluations: Mapping[str, EvaluationView]) -> None:
        """Prints what is new."""
        elapsed = view.rates.elapsed
        for kind, found in evaluations.items():
            if self._evaluations.get(kind) != found:
                self._evaluations[kind] = found
                self._print(evaluation_line(elapsed, kind, found))
        if self._printed_at is None or elapsed - self._printed_at >= LINE_PERIOD_S:
            self._printed_at = elapsed
            self._print(progress_line(view))

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Does nothing: every line is out."""


#: Shows views as they come: `show(view, newest evaluation of each kind)` and `close()`.
Display = LiveDisplay | LineDisplay


class Watcher:
    """Turns what a run reports into views and shows them; called by `run_experiment`."""

    def __init__(self, display: Display, goal: int, clock: Callable[[], float] = time.monotonic):
        """Begins the clock.

        Args:
          display: where views go.
          goal: actor steps to take.
          clock: monotonic seconds.
        """
        self._display = display
        self._goal = goal
        self._clock = clock
        self._began = clock()
        self._meter = _RateMeter()
        self._view: View | None = None

    def __call__(self, progress: Mapping[str, Any], nodes: Mapping[str, Any]) -> None:
        """Shows the newest state."""
        rates = self._meter.update(self._clock() - self._began, progress["counts"])
        self._view = summarise(progress, nodes, self._goal, rates)
        found = {
            "periodic": _evaluation(progress["last_evaluation"]),
            "final": _evaluation(progress["final_evaluation"]),
            "best": _evaluation(progress["best_reevaluation"]),
        }
        self._display.show(self._view, {kind: one for kind, one in found.items() if one is not None})

    def close(self, phase: str, counts: tuple[int, int] | None = None) -> None:
        """Shows how the run ended, with the last actor and learner steps if known, and stops the display."""
        if (view := self._view) is not None:
            actor, learner = counts or (view.actor_steps, view.learner_steps)
            ended = dataclasses.replace(view, phase=phase, eta=None, actor_steps=actor, learner_steps=learner)
            self._display.show(ended, {})
        self._display.close()


def make_display(stream: TextIO) -> Display:
    """Returns the live view for a terminal that can show it, else plain lines."""
    if stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", ""):
        return LiveDisplay(stream)
    return LineDisplay(stream)

"""The node that counts, hands out steps, queues evaluations and knows when the run is complete."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlpad import launch as lp
from rlpad.acting.steps import Lease
from rlpad.tracking import Counter, make_logger

EvaluationKind = Literal["periodic", "final", "best"]

COMPLETED = "step goal reached"


@dataclasses.dataclass(frozen=True)
class EvaluationTask:
    """One snapshot to evaluate.

    Attributes:
      snapshot: name of the snapshot's folder under the run's `checkpoints/`.
      kind: `periodic`, `final` or `best`.
      actor_steps: actor steps when the snapshot was taken.
      learner_steps: learner steps of the snapshot.
      episodes: episodes to run.
    """

    snapshot: str
    kind: EvaluationKind
    actor_steps: int
    learner_steps: int
    episodes: int


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found: undiscounted returns over `episodes` episodes."""

    task: EvaluationTask
    mean: float
    std: float
    episodes: int


class Coordinator:
    """Keeps the counts of the whole program.

    Environment steps are leased: an actor acts only on steps that it was granted, so all actors together take
    exactly `goal` steps however many they are. A worker that restarts loses the lease it held, and asks anew.
    """

    def __init__(
        self,
        goal: int,
        *,
        actors: Sequence[str],
        evaluators: Sequence[str],
        eval_episodes: int,
        final_eval_episodes: int,
        run_dir: str,
    ):
        """Sets all counts to zero.

        Args:
          goal: environment steps to take.
          actors: names of the actor nodes.
          evaluators: names of the evaluator nodes; may be empty.
          eval_episodes: episodes of a periodic evaluation.
          final_eval_episodes: episodes of the two evaluations at the end.
          run_dir: run directory, where the last counts are written when the program ends.
        """
        self._goal = goal
        self._acting = set(actors)
        self._evaluators = tuple(evaluators)
        self._episodes: Mapping[EvaluationKind, int] = {
            "periodic": eval_episodes,
            "final": final_eval_episodes,
            "best": final_eval_episodes,
        }
        self._lock = threading.RLock()
        self._counter = Counter()
        self._counter.increment(actor_steps=0, learner_steps=0, episodes=0)
        self._leases: dict[str, int] = {}
        self._gauges: dict[str, dict[str, Any]] = {}
        self._queue: deque[EvaluationTask] = deque()
        self._running: dict[str, EvaluationTask] = {}
        self._results: list[EvaluationResult] = []
        self._learning = True
        self._logger = make_logger("counter", run_dir)

    def lease(self, worker: str, used: int, want: int) -> Lease:
        """Takes back a worker's last lease and grants a new one.

        Args:
          worker: name of the actor node.
          used: steps taken since its last call.
          want: steps asked for.

        Returns:
          The steps granted (0 while other actors hold the last ones), the steps of all actors so far, and
          whether the goal is reached.
        """
        with self._lock:
            total = self._counter.increment(actor_steps=used)["actor_steps"]
            self._leases.pop(worker, None)
            granted = max(0, min(want, self._goal - total - sum(self._leases.values())))
            if granted:
                self._leases[worker] = granted
            return Lease(granted, total, total >= self._goal)

    def increment(self, **counts: int) -> dict[str, int]:
        """Adds to counts and returns all of them; see `Counter.increment`."""
        return self._counter.increment(**counts)

    def get_counts(self) -> dict[str, int]:
        """Returns all counts."""
        return self._counter.get_counts()

    def report(self, worker: str, gauges: Mapping[str, Any]) -> None:
        """Keeps a worker's newest gauges (replay size, losses, what it waits on) for whoever watches."""
        with self._lock:
            self._gauges.setdefault(worker, {}).update(gauges)

    def acting(self) -> bool:
        """Whether any actor may still add to replay."""
        with self._lock:
            return bool(self._acting)

    def finish_actor(self, worker: str) -> None:
        """Notes that an actor took its last step and that all it added is in replay."""
        with self._lock:
            self._acting.discard(worker)
            self._leases.pop(worker, None)

    def add_snapshot(self, snapshot: str, actor_steps: int, learner_steps: int, final: bool) -> None:
        """Queues a snapshot for evaluation.

        The final one says that the learner took its last step; where nobody evaluates, that completes the run.
        """
        kind: EvaluationKind = "final" if final else "periodic"
        task = EvaluationTask(snapshot, kind, actor_steps, learner_steps, self._episodes[kind])
        with self._lock:
            self._learning = not final
            if self._evaluators:
                self._queue.append(task)
                return
        if final:
            lp.stop(reason=COMPLETED, status="completed")

    def next_evaluation(self, evaluator: str) -> EvaluationTask | None:
        """Returns the next snapshot to evaluate, or None; an evaluator that restarted gets its own again."""
        with self._lock:
            if evaluator not in self._running and self._queue:
                self._running[evaluator] = self._queue.popleft()
            return self._running.get(evaluator)

    def finish_evaluation(self, evaluator: str, result: EvaluationResult) -> bool:
        """Takes a result, queues the re-evaluation of the best snapshot once all others are in.

        Returns:
          Whether this result makes its snapshot the best so far (never for kind `best`).
        """
        with self._lock:
            self._running.pop(evaluator, None)
            best = self._best()
            self._results.append(result)
            is_best = result.task.kind != "best" and (best is None or result.mean >= best.mean)
            if self._learning or self._queue or self._running:
                return is_best
            complete = any(done.task.kind == "best" for done in self._results)
            if not complete:
                winner = self._best()
                assert winner is not None
                self._queue.append(dataclasses.replace(winner.task, kind="best", episodes=self._episodes["best"]))
        if complete:
            lp.stop(reason=COMPLETED, status="completed")
        return is_best

    def _best(self) -> EvaluationResult | None:
        candidates = [result for result in self._results if result.task.kind != "best"]
        # Of equal means the latest: it has learnt the longest.
        return max(reversed(candidates), key=lambda result: result.mean, default=None)

    def progress(self) -> dict[str, Any]:
        """Returns counts, gauges and evaluations, for the live view and run.json."""
        with self._lock:
            last = next((r for r in reversed(self._results) if r.task.kind == "periodic"), None)
            of_kind = {r.task.kind: r for r in self._results}
            return {
                "counts": self._counter.get_counts(),
                "gauges": {worker: dict(gauges) for worker, gauges in self._gauges.items()},
                "acting": bool(self._acting),
                "learning": self._learning,
                "pending_evaluations": len(self._queue) + len(self._running),
                "last_evaluation": last,
                "best_evaluation": self._best(),
                "final_evaluation": of_kind.get("final"),
                "best_reevaluation": of_kind.get("best"),
            }

    def close(self) -> None:
        """Writes the last counts, for whoever reads the run directory afterwards."""
        self._logger.write(self._counter.get_counts())
        self._logger.close()

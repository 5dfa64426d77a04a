"""Learning curves as PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpad.tracking.run_directory import RunDirectory

FILE = "learning_curve.png"


def plot_learning_curve(directory: RunDirectory, title: str) -> Path | None:
    """Draws a run's evaluations (mean and standard deviation) and its training episodes over actor steps.

    Returns:
      The PNG's path, or None if the run has neither evaluations nor episodes yet.
    """
    evaluations = evaluation_rows(directory)
    episodes = episode_points(directory)
    if not evaluations and not len(episodes):
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    if len(episodes):
        steps, returns = smooth(episodes)
        axes.plot(steps, returns, color="0.65", linewidth=1, label="training episodes, running mean")
    periodic = [row for row in evaluations if row["kind"] != "best"]
    if periodic:
        x = np.array([row["actor_steps"] for row in periodic])
        mean = np.array([row["episode_return_mean"] for row in periodic])
        std = np.array([row["episode_return_std"] for row in periodic])
        (line,) = axes.plot(x, mean, marker="o", markersize=3, label=f"evaluation, {periodic[0]['episodes']} episodes")
        axes.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0)
    for row in evaluations:
        if row["kind"] == "best":
            axes.plot(
                row["actor_steps"],
                row["episode_return_mean"],
                "*",
                color="tab:orange",
                markersize=12,
                label=f"best snapshot, {row['episodes']} fresh episodes: {row['episode_return_mean']:.1f}",
            )
    axes.set(xlabel="actor steps", ylabel="episode return", title=title)
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="best", frameon=False, fontsize="small")
    figure.tight_layout()
    path = directory.path / FILE
    figure.savefig(path)
    pyplot.close(figure)
    return path


def evaluation_rows(directory: RunDirectory) -> list[dict]:
    """Returns the rows of all evaluators, ordered by actor steps."""
    labels = sorted(path.stem for path in (directory.path / "metrics").glob("evaluator*.jsonl"))
    rows = [row for label in labels for row in directory.read_metrics(label)]
    return sorted(rows, key=lambda row: row["actor_steps"])


def episode_points(directory: RunDirectory) -> np.ndarray:
    """Returns the actors' episodes as (actor_steps, return), float64 [n, 2], ordered by actor steps."""
    labels = sorted(path.stem for path in (directory.path / "metrics").glob("actor-*.jsonl"))
    points = [
        (row["actor_steps"], float(np.sum(row["episode_return"])))
        for label in labels
        for row in directory.read_metrics(label)
        if not isinstance(row["episode_return"], dict)
    ]
    return np.array(sorted(points), np.float64).reshape(-1, 2)


def smooth(points: np.ndarray, parts: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Averages points (x, y) [n, 2] in up to `parts` groups of equal number."""
    groups = np.array_split(points, min(parts, len(points)))
    means = np.array([group.mean(axis=0) for group in groups])
    return means[:, 0], means[:, 1]

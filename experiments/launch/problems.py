"""The small problems that the programs solve."""

import numpy as np

#: The parameters that fit the rows of `loss_and_gradient` without an error.
TRUTH = np.arange(1.0, 9.0)


def loss_and_gradient(parameters: np.ndarray, worker: int) -> tuple[float, np.ndarray]:
    """Returns the mean squared error of a linear model on the rows of one worker, and its gradient."""
    x = np.random.default_rng(worker).normal(size=(64, len(TRUTH)))
    error = x @ (parameters - TRUTH)
    return float(np.mean(error**2)), 2 * x.T @ error / len(x)


def sphere(x: np.ndarray) -> float:
    """A bowl; its lowest value is 0, at 0."""
    return float(np.sum(x**2))

"""Experiments: what to run, how big, and the one graph that runs under every launcher."""

from rlpad.experiment.builder import Builder
from rlpad.experiment.config import ExperimentConfig, Scale
from rlpad.experiment.run import RunResult, run_experiment

__all__ = ["Builder", "ExperimentConfig", "RunResult", "Scale", "run_experiment"]

"""Learning: an agent's pure learner core, and the one learner that runs any of them."""

from rlpad.learning.core import Aux, Batch, LearnerCore
from rlpad.learning.learner import ReplayLearner

__all__ = ["Aux", "Batch", "LearnerCore", "ReplayLearner"]

"""Environments, actors, coordinators and loggers written out by hand."""

import dm_env
import numpy as np
from dm_env import specs

from rlpad import core
from rlpad.acting.steps import Lease, Steps


class Script(dm_env.Environment):
    """Plays episodes of given lengths over and over; the reward of step t (from 1) is `reward(t)`.

    Observations are (number of the episode, t), so each one says where it comes from.
    """

    def __init__(self, lengths=(3,), reward=float, reward_spec=None, name=0):
        self.lengths, self.reward, self.name = lengths, reward, name
        self._spec = reward_spec or specs.Array((), np.float32, "reward")
        self.episode = -1
        self.t = self.resets = self.steps = self.closed = 0
        self.actions = []

    def _observation(self):
        return np.array([self.name, self.episode, self.t], np.int32)

    def reset(self):
        self.episode += 1
        self.resets += 1
        self.t = 0
        return dm_env.restart(self._observation())

    def step(self, action):
        self.t += 1
        self.steps += 1
        self.actions.append(int(action))
        last = self.t == self.lengths[self.episode % len(self.lengths)]
        make = dm_env.termination if last else dm_env.transition
        return make(self.reward(self.t), self._observation())

    def get_info(self):
        return {"t": self.t, "double": 2 * self.t}

    def observation_spec(self):
        return specs.Array((3,), np.int32)

    def action_spec(self):
        return specs.DiscreteArray(1_000)

    def reward_spec(self):
        return self._spec

    def close(self):
        self.closed += 1


class VectorRecorder(core.VectorActor):
    """Writes down every call; its action for stream i is 100 * i plus the number of the policy call."""

    def __init__(self, num_streams):
        self.num_streams = num_streams
        self.calls = []
        self.seen = [[] for _ in range(num_streams)]
        self.progress = []
        self.is_ready = True
        self.closed = self.updates = self.policy_calls = 0
        self.stale = {}

    def select_actions(self, observations):
        assert len(observations) == self.num_streams
        self.policy_calls += 1
        self.calls.append("select")
        return [100 * i + self.policy_calls for i in range(self.num_streams)]

    def observe_first(self, stream, timestep):
        assert timestep.first()
        self.calls.append(f"first {stream}")
        self.seen[stream].append(("first", *timestep.observation.tolist()[1:]))

    def observe(self, stream, action, next_timestep):
        self.calls.append(f"observe {stream}")
        kind = "last" if next_timestep.last() else "mid"
        self.seen[stream].append((kind, *next_timestep.observation.tolist()[1:], action))

    def update(self, wait=False):
        self.updates += 1
        self.calls.append("update")

    def set_progress(self, actor_steps):
        self.progress.append(actor_steps)

    def ready(self):
        return self.is_ready

    def staleness(self):
        return self.stale

    def close(self):
        self.closed += 1


class SingleRecorder(core.Actor):
    def __init__(self):
        self.calls = []

    def select_action(self, observation):
        self.calls.append(("select", observation.tolist()))
        return 7

    def observe_first(self, timestep):
        self.calls.append(("first", timestep.observation.tolist()))

    def observe(self, action, next_timestep):
        self.calls.append(("observe", action, next_timestep.observation.tolist()))

    def update(self, wait=False):
        self.calls.append(("update", wait))

    def ready(self):
        return len(self.calls) < 9

    def close(self):
        self.calls.append("close")


class Rows:
    def __init__(self):
        self.rows = []
        self.closed = 0

    def write(self, row):
        self.rows.append(row)

    def close(self):
        self.closed += 1


class Supply(Steps):
    """So many steps and no more."""

    def __init__(self, total):
        self.left, self.taken = total, 0

    def take(self, count):
        granted = min(count, self.left)
        self.left -= granted
        self.taken += granted
        self.finished = granted == 0
        return granted

    @property
    def actor_steps(self):
        return self.taken


class FakeCoordinator:
    """Leases as the real one does, and writes the calls down."""

    def __init__(self, goal, held_by_others=0):
        self.goal, self.held = goal, held_by_others
        self.total = 0
        self.calls = []

    def lease(self, worker, used, want):
        self.calls.append((worker, used, want))
        self.total += used
        granted = max(0, min(want, self.goal - self.total - self.held))
        return Lease(granted, self.total, self.total >= self.goal)

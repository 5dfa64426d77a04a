"""DQN on Atari: what lies in replay has the shape and dtype of the standard preprocessing."""

import numpy as np
import pytest

from agents.dqn import DQNConfig
from rlpad.experiment import ExperimentConfig, Scale, run_experiment
from rlpad.learning import ReplayLearner

pytest.importorskip("ale_py")
pytest.importorskip("cv2")


def test_pong_frames_travel_as_uint8(tmp_path, monkeypatch):
    batches = []
    to_batches = ReplayLearner._to_batches

    def recording(learner, sample):
        batches.append(to_batches(learner, sample))
        return batches[-1]

    monkeypatch.setattr(ReplayLearner, "_to_batches", recording)
    settings = DQNConfig(
        n_step=1,
        min_replay_size=60,
        max_replay_size=200,
        batch_size=4,
        samples_per_insert=0.5,
        sgd_steps_per_learner_call=2,
        hidden_sizes=(16,),
    )
    config = ExperimentConfig(agent="dqn", env="atari:Pong", steps=120, agent_config=settings)
    result = run_experiment(config, Scale(num_evaluators=0), "inline", run_dir=tmp_path / "run")
    assert result.actor_steps == 120
    assert result.learner_steps == 2 * len(batches) > 0
    for batch in batches:
        for frames in (batch.data.observation, batch.data.next_observation):
            assert (frames.shape, frames.dtype) == ((2, 4, 84, 84, 4), np.uint8)
        # Of a stack's four frames three are in the stack one step later, too.
        assert np.array_equal(batch.data.observation[..., 1:], batch.data.next_observation[..., :3])
        assert batch.data.observation.max() > 100
        assert set(np.unique(batch.data.reward)) <= {-1.0, 0.0, 1.0}

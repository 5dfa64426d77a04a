"""DQN on Atari's Pong with the settings of Mnih et al. 2015 as Acme scales them (needs the extra `atari`).

python -m experiments.pong_dqn --num-actors 8
"""

import sys

from agents.dqn import DQNConfig
from rlpad.cli.train import train_script

PONG = DQNConfig(
    learning_rate=1e-4,
    adam_epsilon=1.5e-4,
    batch_size=32,
    samples_per_insert=8.0,  # one SGD step per four actor steps
    sgd_steps_per_learner_call=8,
    min_replay_size=20_000,
    max_replay_size=200_000,
    target_update_period=2_000,
    epsilon_end=0.01,
    epsilon_decay_steps=250_000,
    eval_epsilon=0.001,
    hidden_sizes=(512,),
    variable_update_period=32,
)

if __name__ == "__main__":
    sys.exit(train_script("dqn", env="atari:Pong", steps=2_500_000, agent_config=PONG))

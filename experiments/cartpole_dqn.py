"""DQN solves CartPole-v1; takes the same flags as `rlpad train dqn`.

python -m experiments.cartpole_dqn --num-actors 4
"""

import sys

from agents.dqn import DQNConfig
from rlpad.cli.train import train_script

if __name__ == "__main__":
    sys.exit(train_script("dqn", env="CartPole-v1", steps=50_000, agent_config=DQNConfig()))

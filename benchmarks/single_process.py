"""Actor steps per second of DQN on CartPole-v1 in one process, against Stable-Baselines3 and SBX.

Same batch size, network and SGD steps per environment step everywhere: batch 64, MLP 256-256, one SGD step per two
environment steps, plain (not double) one-step Q-learning from uniform replay, one CPU thread. The peers use RL-Zoo's
settings for CartPole.

Each peer runs in an environment of its own, because none installs beside rlpad's stack:

    python3.11 -m venv peers && peers/bin/pip install stable-baselines3 sbx-rl
    python -m benchmarks.single_process --peer-python peers/bin/python

Peers and rlpad alternate; the medians and the ratios of each round are printed. Without --peer-python only rlpad is
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PEER_SCRIPT = """
import json, sys, time
library, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import gymnasium as gym
if library == "sb3":
    import torch
    torch.set_num_threads(1)
    import stable_baselines3 as module
    extra = {"device": "cpu"}
else:
    import sbx as module
    extra = {}
model = module.DQN(
    "MlpPolicy", gym.make("CartPole-v1"), seed=seed, learning_rate=1e-3, batch_size=64, buffer_size=100_000,
    learning_starts=1000, gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128,
    exploration_fraction=0.16, exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, **extra)
model.learn(1500)  # imports and compilation are not what is compared
start = time.perf_counter()
model.learn(steps, reset_num_timesteps=False)
print(json.dumps({"steps_per_second": steps / (time.perf_counter() - start)}))
"""


def in_subprocess(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Runs a measurement in a process of its own and returns the JSON of its last line.

    Raises:
      RuntimeError: the process failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> int:
    """Runs the comparison and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps per measurement")
    parser.add_argument("--rounds", type=int, default=3, help="alternated rounds")
    parser.add_argument("--peer-python", help="Python of an environment with stable-baselines3 and sbx-rl")
    parser.add_argument("--peers", default="sbx,sb3", help="peers to run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    threads = {"OMP_NUM_THREADS": "1", "NPROC": "1", "OPENBLAS_NUM_THREADS": "1"}
    pinned = threads | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    peers = options.peers.split(",") if options.peer_python else []
    speeds: dict[str, list[float]] = {name: [] for name in ("rlpad", *peers)}
    shares: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "peer.py"
        script.write_text(PEER_SCRIPT)
        for seed in range(options.rounds):
            ours = in_subprocess([sys.executable, "-m", "benchmarks.timed_run", str(options.steps), str(seed)], pinned)
            speeds["rlpad"].append(ours.pop("steps_per_second"))
            shares.append(ours)
            for peer in peers:
                row = in_subprocess([options.peer_python, str(script), peer, str(options.steps), str(seed)], pinned)
                speeds[peer].append(row["steps_per_second"])
    report: dict[str, Any] = {
        "steps_per_second": speeds,
        "ratio": {peer: [a / b for a, b in zip(speeds["rlpad"], speeds[peer], strict=True)] for peer in peers},
        "shares": {name: statistics.median(row[name] for row in shares) for name in shares[0]},
    }
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    return 0


def as_text(report: dict[str, Any]) -> str:
    """Lays the report out as a table."""
    lines = ["DQN on CartPole-v1, one process, one thread: environment steps per second"]
    for name, values in report["steps_per_second"].items():
        ratios = report["ratio"].get(name)
        spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        against = f"   rlpad is {spread}" if ratios else ""
        lines.append(
            f"  {name:<6} {statistics.median(values):8.0f}   ({min(values):.0f} to {max(values):.0f}){against}"
        )
    lines.append("where rlpad's wall time goes")
    lines += [f"  {name:<28} {share:6.1%}" for name, share in report["shares"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

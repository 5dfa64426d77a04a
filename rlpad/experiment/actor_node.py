"""The actor node: environments, a policy and adders around the environment loop."""

from __future__ import annotations

from typing import Any

from rlpad import core, replay
from rlpad import launch as lp
from rlpad.acting.device import run_on_calling_thread
from rlpad.acting.environment_loop import EnvironmentLoop
from rlpad.acting.steps import LeasedSteps
from rlpad.experiment.seeds import Seeds
from rlpad.experiment.setup import Setup
from rlpad.tracking import make_logger

#: Environment steps that an actor asks for at a time; few enough that the counts stay fresh.
LEASE_STEPS = 64


class ActorWorker(core.Worker):
    """Acts until the program's step goal is reached; one step is one batched environment step."""

    def __init__(self, setup: Setup, replay_service: Any, learner: Any, coordinator: Any):
        """Builds environments, policy and adders; takes nothing from the learner yet."""
        import jax

        run_on_calling_thread()
        node = lp.node_info()
        seeds = Seeds(node.seed)
        builder, spec, streams = setup.builder, setup.spec, setup.scale.envs_per_actor
        networks = builder.make_networks(spec)
        policy = builder.make_policy(networks, spec)
        tables = builder.make_replay_tables(spec, policy)
        client = replay.make_client(setup.replay_backend, replay_service, tables)
        adders = [builder.make_adder(client, spec, policy) for _ in range(streams)]
        actor = builder.make_actor(jax.random.PRNGKey(seeds.integer("policy")), policy, spec, learner, adders, streams)
        self._name = node.name
        self.stall_grace_s = setup.stall_grace_s
        self._coordinator = coordinator
        self._replay = client
        self._tables = [table.name for table in tables]
        self._steps = LeasedSteps(coordinator, node.name, chunk=max(LEASE_STEPS, streams))
        self._loop = EnvironmentLoop(
            [setup.make_environment(seeds.integer("environment", i)) for i in range(streams)],
            actor,
            steps=self._steps,
            counter=coordinator,
            logger=make_logger(
                f"{node.group}-{node.index}",
                setup.run_dir,
                tensorboard=setup.tensorboard,
                wandb=setup.wandb,
            ),
            label=node.name,
        )

    def step(self) -> bool:
        """Takes one batched environment step, if there are steps left and replay accepts it."""
        if not self._loop.finished:
            return self._loop.step()
        # What was added must be in replay before the learner may think that it has seen everything.
        if self.finished or not self._loop.flush():
            return False
        self._coordinator.finish_actor(self._name)
        self.finished = True
        return True

    def idle(self, timeout: float) -> None:
        """Waits for replay or for steps."""
        self._loop.idle(timeout)

    def waiting_on(self) -> str:
        """Says what replay is waiting for."""
        return self._loop.waiting_on() + "; " + "; ".join(self._replay.describe(name) for name in self._tables)

    def close(self) -> None:
        """Closes the environments and leaves replay."""
        self._loop.close()
        self._replay.close()

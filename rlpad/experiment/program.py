"""Builds the launch graph of an experiment; the same graph under every launcher."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os

from rlpad import launch as lp
from rlpad import replay
from rlpad.experiment.actor_node import ActorWorker
from rlpad.experiment.coordinator import Coordinator
from rlpad.experiment.evaluator_node import EvaluatorWorker
from rlpad.experiment.learner_node import LearnerWorker
from rlpad.experiment.setup import Setup
from rlpad.replay import Table


@dataclasses.dataclass(frozen=True)
class ExperimentProgram:
    """An experiment as a program, with the handle that whoever watches it needs."""

    program: lp.Program
    coordinator: lp.Handle
    preload: tuple[str, ...]


def make_replay_tables(setup: Setup) -> list[Table]:
    """Builds the agent's replay tables; called in the replay node."""
    networks = setup.builder.make_networks(setup.spec)
    policy = setup.builder.make_policy(networks, setup.spec)
    return setup.builder.make_replay_tables(setup.spec, policy)


def make_program(setup: Setup) -> ExperimentProgram:
    """Builds the graph: counter, replay, learner, actors and evaluators.

    In `inline` the order in which nodes are added is the order in which they step: actors first, until the
    rate limiter holds them, then the learner, until it has had its samples, then the evaluators.
    """
    scale = setup.scale
    small = lp.Resources(threads=scale.actor_threads, jax_platform="cpu")
    restart = lp.Restart(max_restarts=scale.max_restarts) if scale.max_restarts else lp.Stop()
    program = lp.Program(f"{setup.config.agent}-{setup.config.env_name}")
    config = setup.config

    with program.group("counter", resources=lp.Resources(threads=1, jax_platform="cpu")):
        coordinator = program.add_node(
            lp.CourierNode(
                Coordinator,
                config.steps,
                actors=[f"actor/{i}" for i in range(scale.num_actors)],
                evaluators=[f"evaluator/{i}" for i in range(scale.num_evaluators)],
                eval_episodes=config.eval_episodes,
                final_eval_episodes=config.final_eval_episodes,
                run_dir=setup.run_dir,
                courier_kwargs={"thread_pool_size": scale.num_actors + scale.num_evaluators + 8},
            )
        )
    with program.group("replay", resources=lp.Resources(threads=1, jax_platform="cpu")):
        replay_service = program.add_node(
            replay.make_node(
                setup.replay_backend,
                functools.partial(make_replay_tables, setup),
                seed=config.seed,
                num_clients=scale.num_actors + 1,
            )
        )
    learner_node = lp.CourierNode(
        LearnerWorker,
        setup,
        replay_service,
        coordinator,
        courier_kwargs={"thread_pool_size": scale.num_actors + 4},
    )
    learner = learner_node.create_handle()
    with program.group("actor", resources=small, on_failure=restart):
        for _ in range(scale.num_actors):
            program.add_node(lp.CourierNode(ActorWorker, setup, replay_service, learner, coordinator))
    with program.group("learner", resources=lp.Resources(threads=learner_threads(scale.num_actors))):
        program.add_node(learner_node)
    if scale.num_evaluators:
        with program.group("evaluator", resources=small, on_failure=restart):
            for _ in range(scale.num_evaluators):
                program.add_node(lp.CourierNode(EvaluatorWorker, setup, coordinator))
    return ExperimentProgram(program, coordinator, preload_modules(setup))


def learner_threads(num_actors: int) -> int:
    """CPU threads that the learner gets: what the actors leave, and at least one."""
    return max(1, len(os.sched_getaffinity(0)) - num_actors)


def preload_modules(setup: Setup) -> tuple[str, ...]:
    """Modules that every node needs and that are safe to load before a fork."""
    modules = ["jax", "haiku", "optax", "rlpad.experiment.program"]
    agent = type(setup.builder).__module__
    if agent != "__main__" and importlib.util.find_spec(agent) is not None:
        modules.append(agent)
    if setup.replay_backend == "reverb":
        modules.append("reverb")
    return tuple(modules)

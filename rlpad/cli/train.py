"""`rlpad train`: trains an agent, shows how it goes, and leaves a learning curve behind."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro

from rlpad.cli.interrupts import ends_at_once
from rlpad.cli.options import parse_options
from rlpad.cli.parse import parse
from rlpad.errors import UserError
from rlpad.experiment.config import ExperimentConfig, LauncherName, ReplayBackend, Scale, Schedule
from rlpad.registry import AgentEntry, agent_names, get_agent


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Flags that every agent takes; those of the agent itself are added under `--agent.`."""

    env: str
    """Environment: a Gymnasium id, gym:ID, atari:GAME, or module:function."""
    schedule: Annotated[Schedule, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Schedule)
    scale: Annotated[Scale, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Scale)
    launcher: LauncherName = "auto"
    """How the graph runs; auto is inline for one actor, processes for more."""
    replay: ReplayBackend = "auto"
    """Replay backend; auto is embedded for inline, elsewhere reverb if installed (its samplers can't be
    seeded, and its server listens on every interface without authentication)."""
    run_dir: str | None = None
    """Run directory; must not be used yet. One under runs/ with agent, environment and time by default."""
    env_options: tuple[str, ...] = ()
    """Options of the environment as name=value, such as sticky_actions=0."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run directory (extra tensorboard)."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (extra wandb)."""
    debug: str | None = None
    """Run this node, such as actor/0, in the foreground of this terminal under a debugger (launcher processes)."""
    debugger: Literal["pdb", "debugpy"] = "pdb"
    """pdb stops before the node is built and where it raises; debugpy waits for an editor at 127.0.0.1:5678."""
    json: bool = False
    """Print the result as one JSON object, and nothing else on stdout."""


def main(arguments: Sequence[str]) -> int:
    """Trains the agent that the first argument names; returns the exit code."""
    arguments = list(arguments)
    if not arguments:
        raise UserError(f"missing AGENT: expected rlpad train AGENT --env ENV (known: {', '.join(agent_names())})")
    if arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0].startswith("-"):
        raise UserError(
            f"the agent comes first: rlpad train AGENT {shlex.join(arguments[:2])} ... "
            f"(known: {', '.join(agent_names())})"
        )
    entry = get_agent(arguments[0])
    return train(arguments[0], entry, arguments[1:], prog=f"rlpad train {arguments[0]}")


def train_script(
    agent: str, *, env: str, steps: int, agent_config: Any = None, arguments: Sequence[str] | None = None
) -> int:
    """Trains from a script with defaults of its own; takes the same flags as `rlpad train`.

    Args:
      agent: the agent's name.
      env: default of `--env`.
      steps: default of `--steps`.
      agent_config: default of the `--agent.` flags.
      arguments: command line; `sys.argv[1:]` if None.

    Returns:
      The exit code; errors about the request are one line on stderr.
    """
    try:
        entry = get_agent(agent)
        default = run_flags(entry)(
            env=env,
            schedule=Schedule(steps=steps),
            agent=agent_config if agent_config is not None else entry.config(),
        )
        prog = f"python -m {sys.modules['__main__'].__spec__.name}" if sys.modules["__main__"].__spec__ else agent
        with ends_at_once():
            return train(agent, entry, sys.argv[1:] if arguments is None else arguments, prog=prog, default=default)
    except UserError as error:
        print(f"rlpad: error: {error}", file=sys.stderr)
        return 2


def usage() -> str:
    """Returns the help text for `rlpad train` without an agent."""
    return "\n".join(
        [
            "usage: rlpad train AGENT --env ENV [FLAGS]",
            "",
            "Trains AGENT: a registered name, or the path of a module that registers one.",
            f"Known agents: {', '.join(agent_names())}",
            "",
            "  rlpad train dqn --env CartPole-v1",
            "  rlpad train dqn --env CartPole-v1 --num-actors 4 --run-dir runs/cartpole",
            "  rlpad train dqn --help      every flag, with its help text",
        ]
    )


def run_flags(entry: AgentEntry) -> type:
    """Returns the dataclass of all flags of one agent: `RunFlags` with the agent's config under `agent`."""
    return dataclasses.make_dataclass(
        "TrainFlags",
        [("agent", entry.config, dataclasses.field(default_factory=entry.config))],
        bases=(RunFlags,),
        frozen=True,
        namespace={"__doc__": entry.summary, "__module__": __name__},
    )


def train(agent: str, entry: AgentEntry, arguments: Sequence[str], *, prog: str, default: Any = None) -> int:
    """Parses the flags, runs the experiment under the live view and prints what came of it."""
    flags: Any = parse(run_flags(entry), arguments, prog=prog, description=f"{agent}: {entry.summary}", default=default)
    from rlpad.cli.watch import run_watched

    result = run_watched(experiment_config(agent, flags), flags.scale, flags)
    if flags.json:
        print(json.dumps({**dataclasses.asdict(result), "run_dir": str(result.run_dir)}))
    return result.exit_code


def experiment_config(agent: str, flags: Any) -> ExperimentConfig:
    """Returns the experiment that flags such as `run_flags` makes describe."""
    return ExperimentConfig(
        **{field.name: getattr(flags.schedule, field.name) for field in dataclasses.fields(Schedule)},
        agent=agent,
        env=flags.env,
        agent_config=flags.agent,
        env_options=parse_options(flags.env_options),
    )

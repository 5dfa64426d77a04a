"""What nodes run on, and who gets what of the machine."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlpad.launch.errors import LaunchError

if TYPE_CHECKING:
    from rlpad.launch.nodes.base import Node

#: Slack for sums of memory fractions.
_TINY = 1e-9


@dataclasses.dataclass(frozen=True)
class Resources:
    """What each node of a group runs on, where it has a process of its own (`processes`).

    As soon as one group of a program asks for GPUs, nodes of groups that don't are kept off them: they see none, and
    JAX is put on the CPU.

    Attributes:
      threads: CPU threads of its compute libraries; None leaves it to them, or makes it `cpus` if that is given.
      cpus: CPUs that it's pinned to and that no other node with `cpus` gets; None pins it to none.
      gpus: GPUs that it gets, in `CUDA_VISIBLE_DEVICES`, and that no other node gets.
      gpu_memory_fraction: share of each of its GPUs' memory that JAX takes; nodes whose shares fit may then get the
        same GPU. None leaves it to JAX, and makes the GPUs its own.
      jax_platform: platform for JAX, such as `cpu`; None leaves it to JAX.
      env: further environment variables; those that a library reads when it's loaded come too late for what the fork
        server has preloaded.
      env_per_index: further environment variables of each node of the group by itself, in their order.
      args: command line of the process, as in `sys.argv[1:]`.
    """

    threads: int | None = None
    cpus: int | None = None
    gpus: int = 0
    gpu_memory_fraction: float | None = None
    jax_platform: str | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    env_per_index: Sequence[Mapping[str, str]] = ()
    args: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("threads", "cpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LaunchError(f"{name} must be at least 1, got {value}")
        if self.gpus < 0:
            raise LaunchError(f"gpus must be at least 0, got {self.gpus}")
        fraction = self.gpu_memory_fraction
        if fraction is not None and not (self.gpus and 0 < fraction <= 1):
            expected = "above 0 and at most 1, of at least one GPU"
            raise LaunchError(f"gpu_memory_fraction must be {expected}, got {fraction} with gpus={self.gpus}")
        for env in (self.env, *self.env_per_index):
            if self.gpus and "CUDA_VISIBLE_DEVICES" in env:
                raise LaunchError("CUDA_VISIBLE_DEVICES follows from gpus; give one of them only")


@dataclasses.dataclass(frozen=True)
class Grant:
    """What a node's process gets.

    Attributes:
      threads: CPU threads of its compute libraries, or None.
      cpus: numbers of the CPUs that it's pinned to, or None.
      jax_platform: platform for JAX, or None.
      env: further environment variables.
      args: its command line.
    """

    threads: int | None = None
    cpus: tuple[int, ...] | None = None
    jax_platform: str | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    args: tuple[str, ...] = ()


def visible_gpus() -> list[str]:
    """Lists the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    numbers = sorted(int(path.removeprefix("/dev/nvidia")) for path in glob.glob("/dev/nvidia[0-9]*"))
    return [str(number) for number in numbers]


def allocate(nodes: Sequence[Node], wanted: Sequence[Resources], sizes: Mapping[str, int]) -> list[Grant]:
    """Gives out the machine.

    Args:
      nodes: the nodes that get a process.
      wanted: what each of them asks for.
      sizes: nodes in each group.

    Returns:
      What each node gets.

    Raises:
      LaunchError: more is asked for than there is.
    """
    cpus = _allocate_cpus(nodes, wanted)
    gpus = _allocate_gpus(nodes, wanted)
    grants = []
    for node, want, cpu, gpu in zip(nodes, wanted, cpus, gpus, strict=True):
        env = {**want.env, **_own_env(node, want, sizes[node.group])}
        platform = want.jax_platform
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu)
            if want.gpu_memory_fraction is not None:
                env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{want.gpu_memory_fraction:g}"
            if not gpu:
                if platform not in (None, "cpu"):
                    raise LaunchError(f"{node.name} wants JAX on {platform!r} but no GPU, as other nodes do; set gpus")
                platform = "cpu"
        env = {name: str(value) for name, value in env.items()}
        grants.append(Grant(want.threads or want.cpus, cpu, platform, env, tuple(want.args)))
    return grants


def _own_env(node: Node, want: Resources, size: int) -> Mapping[str, str]:
    if not want.env_per_index:
        return {}
    if len(want.env_per_index) != size:
        raise LaunchError(f"group {node.group!r} has {size} nodes, but env_per_index is for {len(want.env_per_index)}")
    return want.env_per_index[node.index]


def _allocate_cpus(nodes: Sequence[Node], wanted: Sequence[Resources]) -> list[tuple[int, ...] | None]:
    free = sorted(os.sched_getaffinity(0))
    _check(nodes, [want.cpus or 0 for want in wanted], len(free), "CPUs")
    return [None if want.cpus is None else tuple(free.pop(0) for _ in range(want.cpus)) for want in wanted]


def _allocate_gpus(nodes: Sequence[Node], wanted: Sequence[Resources]) -> list[list[str] | None]:
    """Returns each node's GPUs; None if no node asks for any."""
    if not any(want.gpus for want in wanted):
        return [None] * len(nodes)
    left = dict.fromkeys(visible_gpus(), 1.0)
    most = max(want.gpus for want in wanted)
    asked: list[Any] = [want.gpus * (want.gpu_memory_fraction or 1.0) for want in wanted]
    if most > len(left):
        _check(nodes, [want.gpus for want in wanted], len(left), "GPUs")
    found: list[list[str] | None] = []
    for want in wanted:
        share = want.gpu_memory_fraction or 1.0
        mine = [name for name, rest in left.items() if rest >= share - _TINY][: want.gpus]
        if len(mine) < want.gpus:
            raise _too_many(nodes, asked, len(left), "GPUs")
        for name in mine:
            left[name] -= share
        found.append(mine)
    return found


def _check(nodes: Sequence[Node], asked: Sequence[Any], there: int, what: str) -> None:
    if sum(asked) > there:
        raise _too_many(nodes, asked, there, what)


def _too_many(nodes: Sequence[Node], asked: Sequence[Any], there: int, what: str) -> LaunchError:
    by_group: dict[str, float] = {}
    for node, number in zip(nodes, asked, strict=True):
        by_group[node.group] = by_group.get(node.group, 0) + number
    parts = ", ".join(f"{group} {number:g}" for group, number in by_group.items() if number)
    why = " (a node's share can't be split)" if sum(asked) <= there else ""
    return LaunchError(f"the program asks for {sum(asked):g} {what} ({parts}), but there are {there}{why}")

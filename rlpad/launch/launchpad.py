"""Names of Launchpad that mean here what they meant there, for programs that are ported."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlpad.errors import nearest
from rlpad.launch import context as context_lib
from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import Deferred, Handle
from rlpad.launch.nodes.base import CallNode, Node, dereference
from rlpad.launch.program import Program
from rlpad.launch.resources import Resources

#: What Launchpad showed nodes' output in.
TERMINALS = (
    "current_terminal",
    "output_to_files",
    "tmux_session",
    "byobu_session",
    "xterm",
    "gnome-terminal",
    "gnome-terminal-tabs",
)


class LaunchType(enum.Enum):
    """Launchpad's names of launchers; `launch` takes them as well as rlpad's own."""

    LOCAL_MULTI_THREADING = "local_mt"
    LOCAL_MULTI_PROCESSING = "local_mp"
    TEST_MULTI_THREADING = "test_mt"
    TEST_MULTI_PROCESSING = "test_mp"
    LOCAL_DOCKER = "local_docker"
    VERTEX_AI = "vertex_ai"


#: rlpad's launcher for each of the types that there is one for.
LAUNCHER_OF = {
    LaunchType.LOCAL_MULTI_THREADING: "threads",
    LaunchType.TEST_MULTI_THREADING: "threads",
    LaunchType.LOCAL_MULTI_PROCESSING: "processes",
    LaunchType.TEST_MULTI_PROCESSING: "processes",
}


def is_local_launch(launch_type: str | LaunchType) -> bool:
    """Whether a launch type is `local_mt` or `local_mp`."""
    return LaunchType(launch_type) in (LaunchType.LOCAL_MULTI_THREADING, LaunchType.LOCAL_MULTI_PROCESSING)


def is_local_launch_or_test(launch_type: str | LaunchType) -> bool:
    """Whether a launch type is one that runs on this machine."""
    return LaunchType(launch_type) in LAUNCHER_OF


class _LaunchTypeFlag:
    """The launch type from the command line, if absl reads one."""

    @property
    def value(self) -> str | None:
        """What `--lp_launch_type` says; None without it."""
        flags = sys.modules.get("absl.flags")
        if flags is None or "lp_launch_type" not in flags.FLAGS or not flags.FLAGS.is_parsed():
            return None
        return flags.FLAGS["lp_launch_type"].value


LAUNCH_TYPE = _LaunchTypeFlag()


def define_flags() -> None:
    """Defines the absl flag `--lp_launch_type`, if absl is loaded and doesn't know it yet."""
    flags = sys.modules.get("absl.flags")
    # Another thread may be just loading absl.
    if flags is not None and hasattr(flags, "DEFINE_enum") and "lp_launch_type" not in flags.FLAGS:
        values = [launch_type.value for launch_type in LAUNCHER_OF]
        flags.DEFINE_enum("lp_launch_type", None, values, "How to launch programs.", module_name=__name__)


@dataclasses.dataclass(frozen=True)
class PythonProcess:
    """What the processes of a group get, for `launch(local_resources={"group": PythonProcess(env={...})})`.

    Attributes:
      args: flags by name; `{"batch": 8, "debug": True}` becomes `--batch=8 --debug` in `sys.argv`.
      env: environment variables.
    """

    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def added_to(self, resources: Resources) -> Resources:
        """Returns resources with these flags and variables besides."""
        flags = [
            f"--{name}" if value is True else f"--no{name}" if value is False else f"--{name}={value}"
            for name, value in self.args.items()
        ]
        return dataclasses.replace(
            resources, args=(*resources.args, *flags), env={**resources.env, **{k: str(v) for k, v in self.env.items()}}
        )


class DockerConfig:
    """Isn't supported: rlpad runs on machines, not on Vertex AI."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises `LaunchError`."""
        raise LaunchError("DockerConfig is for Vertex AI, which rlpad doesn't launch on")


def apply_resources(program: Program, local_resources: Mapping[str, Any]) -> dict[str, Resources]:
    """Returns what each group asks for, by label, where `local_resources` says something of its own.

    Raises:
      LaunchError: there's no such group, or a value is no resources.
    """
    groups = program.groups
    found = {}
    for label, value in local_resources.items():
        if label not in groups:
            raise LaunchError(f"local_resources names a group {label!r} that isn't there{nearest(label, groups)}")
        if not isinstance(value, PythonProcess | Resources):
            raise LaunchError(f"local_resources[{label!r}] must be Resources or a PythonProcess, got {value!r}")
        own = groups[label][0].resources
        found[label] = value.added_to(own) if isinstance(value, PythonProcess) else value
    return found


def make_program(*nodes: Node, name: str = "program") -> Program:
    """Makes a program of nodes, each in the group that is called like its function or class.

    Raises:
      LaunchError: a node is in a program already.
    """
    program = Program(name)
    for node in nodes:
        function = node.function if isinstance(node, CallNode) else type(node)
        label = getattr(function, "__name__", type(node).__name__)
        program.add_node(node, label=label if label.isidentifier() else type(node).__name__)
    return program


class _Stopper:
    """Stops the program that it's called in; can be passed to nodes."""

    def __call__(self) -> None:
        context_lib.stop()

    def __repr__(self) -> str:
        return "<stops the program>"


def make_program_stopper(launch_type: str | LaunchType | None = None) -> _Stopper:
    """Returns a function that stops the program that it's called in, as `stop` does.

    Args:
      launch_type: how the program is launched; it makes no difference.
    """
    del launch_type
    return _Stopper()


def maybe_dereference(value: Any) -> Any:
    """Returns the client of a handle, what a `Deferred` builds, and anything else as it is.

    Raises:
      LaunchError: it's one of those, and this is called outside of a program.
    """
    return dereference(value, context_lib.current()) if isinstance(value, Handle | Deferred) else value


def check_terminal(terminal: str) -> None:
    """Says that nodes' output is elsewhere.

    Raises:
      LaunchError: Launchpad had no such terminal either.
    """
    if terminal not in TERMINALS:
        raise LaunchError(f"unknown terminal {terminal!r}{nearest(terminal, TERMINALS)}")
    print(f"rlpad: no terminal is opened ({terminal!r}); logs of nodes are in the run directory", file=sys.stderr)


def check_programs(programs: Program | Sequence[Program]) -> Program:
    """Returns the one program.

    Raises:
      LaunchError: it's not one.
    """
    if isinstance(programs, list | tuple) and len(programs) == 1:
        programs = programs[0]
    if not isinstance(programs, Program):
        raise LaunchError(f"launch needs one Program, got {programs!r}; launch several one by one")
    return programs

"""Programs as graphs of nodes, and launchers that run them: `import rlpad.launch as lp`.

Knows nothing of reinforcement learning, and needs neither JAX nor NumPy.
"""

from rlpad.launch import context
from rlpad.launch.address import AbstractAddressBuilder, Address, SimpleLocalAddressBuilder, get_port_from_address
from rlpad.launch.batching import batched_handler
from rlpad.launch.context import (
    NodeInfo,
    node_info,
    register_stop_handler,
    stop,
    stop_event,
    unregister_stop_handler,
    wait_for_stop,
)
from rlpad.launch.errors import (
    CallTimeout,
    LaunchError,
    NodeFailed,
    PeerGone,
    RemoteError,
    RemoteTraceback,
    StalledError,
)
from rlpad.launch.graph import to_dot, to_mermaid
from rlpad.launch.handles import Deferred, Handle
from rlpad.launch.launching import launch
from rlpad.launch.launchpad import (
    LAUNCH_TYPE,
    DockerConfig,
    LaunchType,
    PythonProcess,
    define_flags,
    is_local_launch,
    is_local_launch_or_test,
    make_program,
    make_program_stopper,
    maybe_dereference,
)
from rlpad.launch.nodes.base import Node
from rlpad.launch.nodes.cacher import CacherNode
from rlpad.launch.nodes.colocation import MultiProcessingColocation, MultiThreadingColocation
from rlpad.launch.nodes.courier import CourierNode
from rlpad.launch.nodes.python import PyClassNode, PyNode
from rlpad.launch.nodes.reverb import ReverbNode
from rlpad.launch.policies import Ignore, Restart, Stop
from rlpad.launch.program import Program
from rlpad.launch.resources import Resources
from rlpad.launch.rpc.client import Client as CourierClient
from rlpad.launch.rpc.client import list_methods
from rlpad.launch.run import NodeStatus, Outcome, Run
from rlpad.launch.worker import run_worker

#: Launchpad's name of the handle of a `CourierNode`.
CourierHandle = Handle

define_flags()

__all__ = [
    "AbstractAddressBuilder",
    "Address",
    "CacherNode",
    "CallTimeout",
    "CourierClient",
    "CourierHandle",
    "CourierNode",
    "Deferred",
    "DockerConfig",
    "Handle",
    "Ignore",
    "LAUNCH_TYPE",
    "LaunchError",
    "LaunchType",
    "MultiProcessingColocation",
    "MultiThreadingColocation",
    "Node",
    "NodeFailed",
    "NodeInfo",
    "NodeStatus",
    "Outcome",
    "PeerGone",
    "Program",
    "PyClassNode",
    "PyNode",
    "PythonProcess",
    "RemoteError",
    "RemoteTraceback",
    "Resources",
    "Restart",
    "ReverbNode",
    "Run",
    "SimpleLocalAddressBuilder",
    "StalledError",
    "Stop",
    "batched_handler",
    "context",
    "get_port_from_address",
    "is_local_launch",
    "is_local_launch_or_test",
    "launch",
    "list_methods",
    "make_program",
    "make_program_stopper",
    "maybe_dereference",
    "node_info",
    "register_stop_handler",
    "run_worker",
    "stop",
    "stop_event",
    "to_dot",
    "to_mermaid",
    "unregister_stop_handler",
    "wait_for_stop",
]

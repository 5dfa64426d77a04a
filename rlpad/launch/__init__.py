"""Programs as graphs of nodes, and launchers that run them: `import rlpad.launch as lp`.

Knows nothing of reinforcement learning, and needs neither JAX nor NumPy.
"""

from rlpad.launch.batching import batched_handler
from rlpad.launch.context import (
    NodeInfo,
    node_info,
    register_stop_handler,
    stop,
    stop_event,
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
from rlpad.launch.nodes.base import Node
from rlpad.launch.nodes.cacher import CacherNode
from rlpad.launch.nodes.courier import CourierNode
from rlpad.launch.nodes.python import PyClassNode, PyNode
from rlpad.launch.nodes.reverb import ReverbNode
from rlpad.launch.policies import Ignore, Resources, Restart, Stop
from rlpad.launch.program import Program
from rlpad.launch.rpc.client import list_methods
from rlpad.launch.run import NodeStatus, Outcome, Run
from rlpad.launch.worker import run_worker

__all__ = [
    "CacherNode",
    "CallTimeout",
    "CourierNode",
    "Deferred",
    "Handle",
    "Ignore",
    "LaunchError",
    "Node",
    "NodeFailed",
    "NodeInfo",
    "NodeStatus",
    "Outcome",
    "PeerGone",
    "Program",
    "PyClassNode",
    "PyNode",
    "RemoteError",
    "RemoteTraceback",
    "Resources",
    "Restart",
    "ReverbNode",
    "Run",
    "StalledError",
    "Stop",
    "batched_handler",
    "launch",
    "list_methods",
    "node_info",
    "register_stop_handler",
    "run_worker",
    "stop",
    "stop_event",
    "to_dot",
    "to_mermaid",
    "wait_for_stop",
]

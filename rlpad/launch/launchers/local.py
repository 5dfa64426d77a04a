"""Nodes in this process, and the clients that call them directly."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from rlpad.launch import context as context_lib
from rlpad.launch.context import BUILD_TIMEOUT_SECONDS, STOP_HANDLER_SECONDS, Context, NodeInfo, entered
from rlpad.launch.errors import LaunchError, PeerGone
from rlpad.launch.handles import Handle
from rlpad.launch.launchers.direct import DirectClient
from rlpad.launch.launchers.pool import CallPool
from rlpad.launch.launchers.scopes import Scope
from rlpad.launch.nodes.base import Built, Node
from rlpad.launch.program import Program, node_seed
from rlpad.launch.rpc import codec
from rlpad.launch.rpc.methods import Methods
from rlpad.launch.run import NodeStatus, Run, SignalHandlers


class LocalContext(Context):
    """The program as a node in this process sees it; `outer` is how it sees nodes of other processes."""

    def __init__(self, info: NodeInfo, runtime: LocalRuntime, stop_event: threading.Event):
        super().__init__(info, stop_event)
        self._runtime = runtime
        self.single_threaded = runtime.single_threaded

    def connect(self, name: str, *, call_timeout: float | None = None) -> Any:
        """Returns a client that calls the node's object directly, if it's in this process."""
        outer = self._runtime.outer
        if outer is not None and name not in self._runtime.nodes:
            return outer.connect(name, call_timeout=call_timeout)
        return DirectClient(self._runtime.nodes[name], call_timeout)

    def address(self, name: str) -> str:
        """Returns the address of a node with its own transport, building it if need be."""
        outer = self._runtime.outer
        if outer is not None and name not in self._runtime.nodes:
            return outer.address(name)
        address = self._runtime.nodes[name].get().address
        if address is None:
            raise LaunchError(f"{name} has no address of its own")
        return address

    def scratch(self) -> str:
        """Returns a temporary folder of the program."""
        return self._runtime.scratch()

    def stop(self, reason: str, status: str) -> None:
        """Asks the program to stop."""
        outer = self._runtime.outer
        if outer is not None:
            outer.stop(reason, status)
        else:
            self._runtime.run.stop(reason, status)


class LocalNode:
    """One node in this process: built once, by whoever needs it first or by its own thread."""

    def __init__(self, node: Node, runtime: LocalRuntime, info: NodeInfo):
        assert node.name is not None
        self.node = node
        self.name: str = node.name
        self.context = LocalContext(info, runtime, runtime.scopes[info.name].stop_event)
        self.runtime = runtime
        self.state = "starting"
        self.built: Built | None = None
        self.gone = False
        self._ready = threading.Event()
        self._build_lock = threading.RLock()
        self._building = False
        self._methods: Methods | None = None
        self._end_lock = threading.Lock()
        # Known before the node is built, so that waiting for it doesn't hold up those who submit calls.
        size = getattr(node, "thread_pool_size", Built.thread_pool_size)
        self._permits = threading.Semaphore(size)
        self._pool = CallPool(f"rlpad-{self.name}-call", size)

    def build(self) -> Built:
        """Builds the node in this thread; the program ends if that fails, whoever asked for it.

        Raises:
          LaunchError: the node is being built already, and needs itself for that.
        """
        with self._build_lock:
            if self.built is not None:
                return self.built
            if self._building:
                raise LaunchError(f"{self.name} is called while it is being built, by a node that it needs for that")
            self._building = True
            try:
                with entered(self.context):
                    self.built = self.node.build(self.context)
            except Exception as error:
                if not isinstance(error, PeerGone):  # whose cause has a better claim
                    self.state = "failed"
                    self.runtime.run.fail(self.name, error)
                raise
            finally:
                self._building = False
            self.state = "running"
            self._ready.set()
            return self.built

    def get(self) -> Built:
        """Returns the built node; inline builds it now, otherwise its own thread does.

        Raises:
          PeerGone: the node has ended, or doesn't come up in time.
        """
        if self.gone:
            raise PeerGone(f"{self.name} has ended")
        if self.built is not None:
            return self.built
        if self.runtime.single_threaded:
            return self.build()
        stop = self.context.stop_event
        if not context_lib.wait_event(self._ready, stop, BUILD_TIMEOUT_SECONDS) or self.built is None:
            raise PeerGone(f"{self.name} didn't come up")
        return self.built

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a method of the service as this node.

        Raises:
          PeerGone: the node has ended.
          AttributeError: it has no such method.
          TypeError: the arguments or the result can't be pickled, where that is tested.
        """
        return self._run(method, *self._sent(method, args, kwargs))

    def submit(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None = None
    ) -> Future[Any]:
        """Calls a method in the background; inline at once, in this thread, whatever the timeout."""
        args, kwargs = self._sent(method, args, kwargs)
        if not self.runtime.single_threaded:
            late = f"{method!r} on {self.name} wasn't answered in time"
            return self._pool.submit(self._run, method, args, kwargs, timeout=timeout, late=late)
        future: Future[Any] = Future()
        try:
            future.set_result(self._run(method, args, kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def _sent(self, method: str, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.runtime.test_serialization:
            return through_codec((args, kwargs), f"the arguments of {method!r}")
        return args, kwargs

    def _run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_gone(method)
        function = self._method(method)
        with self._permit(method), entered(self.context):
            result = function(*args, **kwargs)
        return through_codec(result, f"the result of {method!r}") if self.runtime.test_serialization else result

    def _check_gone(self, method: str) -> None:
        if self.gone:
            raise PeerGone(f"{self.name} has ended; {method!r} can't be called")

    @contextlib.contextmanager
    def _permit(self, method: str) -> Iterator[None]:
        if self.runtime.single_threaded:  # where a node may come back to itself through others
            yield
            return
        while not self._permits.acquire(timeout=0.2):
            self._check_gone(method)
        try:
            self._check_gone(method)
            yield
        finally:
            self._permits.release()

    def _method(self, name: str) -> Callable[..., Any]:
        service = self.get().service
        if service is None:
            raise PeerGone(f"{self.name} serves nothing that could be called")
        if self._methods is None:
            self._methods = Methods(service, f"{self.name} ({type(service).__name__})")
        return self._methods.get(name)

    def end(self, state: str = "stopped") -> None:
        """Closes the node's object; later calls and those not answered raise `PeerGone`."""
        if self.leave(state) and self.built is not None:
            # Elsewhere a supervisor waits for this, and gives up in time.
            self.context.join_stop_handlers(STOP_HANDLER_SECONDS if self.runtime.single_threaded else None)
            with entered(self.context):
                self.built.close()

    def leave(self, state: str) -> bool:
        """Ends the service, but doesn't close the object; returns false if that was done before."""
        with self._end_lock:
            if self.gone:
                return False
            self.gone = True
        self.state = state
        self._ready.set()
        self._pool.end(lambda: PeerGone(f"{self.name} has ended"))
        return True


def through_codec(value: Any, what: str) -> Any:
    """Sends a value through the codec and back, as it would travel between processes.

    Raises:
      TypeError: it can't be pickled.
    """
    try:
        payload, buffers = codec.dumps(value)
    except Exception as error:
        raise TypeError(f"{what} can't be pickled: {type(error).__name__}: {error}") from error
    return codec.loads(payload, [bytearray(buffer) for buffer in buffers])


@dataclasses.dataclass(frozen=True)
class Parts:
    """What of a program runs in this process.

    Attributes:
      nodes: nodes and colocations.
      infos: what each node that isn't a colocation knows of itself, by name; those that aren't listed run elsewhere.
      outer: the program around, where these are only a part of it.
      first: whether all stop when one of them has completed.
    """

    nodes: Sequence[Node]
    infos: dict[str, NodeInfo]
    outer: Context | None = None
    first: bool = False

    @classmethod
    def whole(cls, program: Program, run_dir: str | None, seed: int) -> Parts:
        """Returns all of a program."""
        nodes = list(program.nodes.values())
        leaves = [leaf for node in nodes for leaf in node.leaves()]
        return cls(nodes, {info.name: info for info in (node_info_of(program, n, run_dir, seed) for n in leaves)})


class LocalRuntime:
    """The nodes of a program, or a part of it, in this process.

    Attributes:
      scope: what they stop with.
      scopes: of each node, what it stops with.
      nodes: the nodes by name.
      outer: the program around them, or None.
      context: the program as threads see it that no node started.
      single_threaded: whether one thread runs all of them.
      test_serialization: whether all that they pass to each other goes through the codec.
    """

    def __init__(self, parts: Parts, run: Run, *, single_threaded: bool, test_serialization: bool):
        self.outer = parts.outer
        self.scope = Scope(threading.Event() if parts.outer is None else parts.outer.stop_event, first=parts.first)
        self.single_threaded = single_threaded
        self.test_serialization = test_serialization
        # The nodes outlive whoever threw the run away, not the other way round.
        self._run = weakref.ref(run)
        self.scopes: dict[str, Scope] = {}
        self.scope.enclose(parts.nodes, self.scopes, parts.infos)
        leaves = {leaf.name: leaf for node in parts.nodes for leaf in node.leaves()}
        self.nodes = {name: LocalNode(leaves[name], self, info) for name, info in parts.infos.items()}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._scratch_lock = threading.Lock()
        self.context = LocalContext(next(iter(parts.infos.values())), self, self.stop_event)
        self.context.several_nodes = len(self.nodes) > 1

    @property
    def stop_event(self) -> threading.Event:
        """Set when all of them are to stop."""
        return self.scope.stop_event

    @property
    def run(self) -> Run:
        """The run, for nodes that stop it."""
        run = self._run()
        if run is None:
            raise LaunchError("the run of this program is gone")
        return run

    def scratch(self) -> str:
        """Returns the program's temporary folder, making it if need be."""
        if self.outer is not None:
            return self.outer.scratch()
        with self._scratch_lock:
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="rlpad-")
            return self._scratch.name

    def in_closing_order(self) -> list[LocalNode]:
        """Those that work before those that only serve, whom they may still need."""
        return sorted(self.nodes.values(), key=lambda node: node.built is not None and node.built.worker is None)

    def finish(self, node: LocalNode) -> None:
        """Notes that a node's work is done."""
        node.state = "finished"
        self.scopes[node.name].complete(node.name)

    def start(self) -> None:
        """Makes the program known to threads that its nodes start, if it isn't as part of another."""
        if self.outer is None:
            context_lib.add_live(self.context)

    def end(self) -> None:
        """Takes back what `start` did, and removes the temporary folder."""
        self.context.join_stop_handlers(STOP_HANDLER_SECONDS)
        if self._scratch is not None:
            self._scratch.cleanup()
        if self.outer is None:
            context_lib.remove_live(self.context)


class LocalRun(Run):
    """A program whose nodes are all in this process."""

    def __init__(self, parts: Parts, *, single_threaded: bool, test_serialization: bool):
        super().__init__()
        self._runtime = LocalRuntime(
            parts, self, single_threaded=single_threaded, test_serialization=test_serialization
        )
        self._signals = SignalHandlers(self)

    def _start(self, handle_signals: bool) -> None:
        """Lets signals and nodes in, once everything is there that they may call for."""
        if handle_signals:
            self._signals.install()
        self._runtime.start()

    def _begin_stop(self) -> None:
        self._runtime.scope.stop()

    def status(self) -> dict[str, NodeStatus]:
        """Returns where every node stands."""
        return {name: NodeStatus(node.state) for name, node in self._runtime.nodes.items()}

    def client(self, handle: Handle) -> Any:
        """Returns a client of a node."""
        return handle.dereference(self._runtime.context)


def node_info_of(program: Program, node: Node, run_dir: str | None, seed: int) -> NodeInfo:
    """Makes the info of a node, colocations included, as their processes have names, too."""
    assert node.name is not None
    size = program.group_size(node.group)
    return NodeInfo(node.name, node.group, node.index, size, run_dir, node_seed(seed, node.name))

"""Nodes in this process, and the clients that call them directly."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlpad.errors import nearest
from rlpad.launch import context as context_lib
from rlpad.launch.context import Context, NodeInfo, entered
from rlpad.launch.errors import CallTimeout, LaunchError, PeerGone
from rlpad.launch.nodes.base import Built, Node
from rlpad.launch.program import Program, node_seed
from rlpad.launch.rpc import codec
from rlpad.launch.run import Run

#: Seconds that a call waits for a node that is still being built.
BUILD_TIMEOUT_SECONDS = 600.0


class LocalContext(Context):
    """The program as a node in this process sees it."""

    def __init__(self, info: NodeInfo, runtime: LocalRuntime):
        super().__init__(info, runtime.stop_event)
        self._runtime = runtime

    def connect(self, name: str) -> DirectClient:
        """Returns a client that calls the node's object directly."""
        return DirectClient(self._runtime.nodes[name])

    def address(self, name: str) -> str:
        """Returns the address of a node with its own transport, building it if need be."""
        address = self._runtime.nodes[name].get().address
        if address is None:
            raise LaunchError(f"{name} has no address of its own")
        return address

    def stop(self, reason: str, status: str) -> None:
        """Asks the program to stop."""
        self._runtime.run.stop(reason, status)


class LocalNode:
    """One node in this process: built once, by whoever needs it first or by its own thread."""

    def __init__(self, node: Node, runtime: LocalRuntime, info: NodeInfo):
        assert node.name is not None
        self.node = node
        self.name: str = node.name
        self.context = LocalContext(info, runtime)
        self.runtime = runtime
        self.state = "starting"
        self.built: Built | None = None
        self.gone = False
        self._ready = threading.Event()
        self._build_lock = threading.RLock()
        self._building = False
        self._permits: threading.Semaphore | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._executor_lock = threading.Lock()

    def build(self) -> Built:
        """Builds the node in this thread.

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
            finally:
                self._building = False
            self._permits = threading.Semaphore(self.built.thread_pool_size)
            self.state = "running"
            self._ready.set()
            return self.built

    def get(self) -> Built:
        """Returns the built node; inline builds it now, otherwise its own thread does.

        Raises:
          PeerGone: the node has ended, or doesn't come up in time.
        """
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
        """
        if self.gone:
            raise PeerGone(f"{self.name} has ended; {method} can't be called")
        bound = self._method(method)
        if self.runtime.test_serialization:
            args, kwargs = through_codec((args, kwargs))
        assert self._permits is not None
        if self.runtime.single_threaded:
            with entered(self.context):
                result = bound(*args, **kwargs)
        else:
            with self._permits, entered(self.context):
                result = bound(*args, **kwargs)
        return through_codec(result) if self.runtime.test_serialization else result

    def _method(self, name: str) -> Callable[..., Any]:
        service = self.get().service
        if service is None:
            raise PeerGone(f"{self.name} serves nothing that could be called")
        kind = type(service)
        static = getattr(kind, name, None)
        if isinstance(static, property) or (name != "__call__" and name.startswith("_")):
            static = None
        bound = getattr(service, name, None) if not isinstance(getattr(kind, name, None), property) else None
        if not callable(bound):
            known = [n for n in dir(kind) if not n.startswith("_") and callable(getattr(kind, n, None))]
            raise AttributeError(f"{self.name} ({kind.__name__}) has no method {name!r}{nearest(name, known)}")
        return bound

    def submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Calls a method in the background; inline at once, in this thread."""
        if self.runtime.single_threaded:
            future: Future[Any] = Future()
            try:
                future.set_result(self.call(method, args, kwargs))
            except Exception as error:
                future.set_exception(error)
            return future
        size = self.get().thread_pool_size
        with self._executor_lock:
            if self.gone:
                raise PeerGone(f"{self.name} has ended; {method} can't be called")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(size, thread_name_prefix=f"rlpad-{self.name}")
            return self._executor.submit(self.call, method, args, kwargs)

    def end(self, state: str = "stopped") -> None:
        """Closes the node's object; later calls raise `PeerGone`."""
        with self._executor_lock:
            if self.gone:
                return
            self.gone = True
            if self._executor is not None:
                self._executor.shutdown(wait=False, cancel_futures=True)
        self.state = state
        self._ready.set()
        if self.built is not None:
            with entered(self.context):
                self.built.close()


def through_codec(value: Any) -> Any:
    """Sends a value through the codec and back, as it would travel between processes."""
    payload, buffers = codec.dumps(value)
    return codec.loads(payload, [bytearray(buffer) for buffer in buffers])


class LocalRuntime:
    """The nodes of a program in this process."""

    def __init__(
        self,
        program: Program,
        run: Run,
        *,
        run_dir: str | None,
        seed: int,
        single_threaded: bool,
        test_serialization: bool,
    ):
        self.stop_event = threading.Event()
        self.single_threaded = single_threaded
        self.test_serialization = test_serialization
        # The nodes outlive whoever threw the run away, not the other way round.
        self._run = weakref.ref(run)
        self.nodes = {
            name: LocalNode(node, self, node_info_of(program, node, run_dir, seed))
            for name, node in program.nodes.items()
        }
        self._context = next(iter(self.nodes.values())).context

    @property
    def run(self) -> Run:
        """The run, for nodes that stop it."""
        run = self._run()
        if run is None:
            raise LaunchError("the run of this program is gone")
        return run

    def in_closing_order(self) -> list[LocalNode]:
        """Those that work before those that only serve, whom they may still need."""
        return sorted(self.nodes.values(), key=lambda node: node.built is not None and node.built.worker is None)

    def start(self) -> None:
        """Makes the program known to threads that its nodes start."""
        context_lib.add_live(self._context)

    def end(self) -> None:
        """Takes back what `start` did."""
        context_lib.remove_live(self._context)


def node_info_of(program: Program, node: Node, run_dir: str | None, seed: int, epoch: int = 1) -> NodeInfo:
    """Makes the info of a node."""
    assert node.name is not None
    size = program.group_size(node.group)
    return NodeInfo(node.name, node.group, node.index, size, run_dir, node_seed(seed, node.name), epoch)


class DirectClient:
    """Calls a node of this process as an RPC client would: same names, same errors, no copy."""

    #: Calls don't leave this process.
    in_process = True

    def __init__(self, node: LocalNode):
        self._node = node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        node = self._node

        def call(*args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Any:
            del retry  # a direct call can't get lost
            if timeout is None or node.runtime.single_threaded:
                return node.call(name, args, kwargs)
            future = node.submit(name, args, kwargs)
            try:
                return future.result(timeout)
            except TimeoutError as error:
                if future.done():
                    raise
                raise CallTimeout(f"{node.name}.{name} wasn't answered within {timeout:g} s") from error

        call.__name__ = name
        self.__dict__[name] = call
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._node.call("__call__", args, kwargs)

    @property
    def futures(self) -> _DirectFutures:
        """The same methods, each returning a future."""
        return _DirectFutures(self._node)

    def close(self) -> None:
        """Holds nothing."""

    def __reduce__(self) -> Any:
        raise TypeError("a client of a node in this process can't be sent to another; pass the handle on instead")

    def __repr__(self) -> str:
        return f"<client of {self._node.name}>"


class _DirectFutures:
    def __init__(self, node: LocalNode):
        self._node = node

    def __getattr__(self, name: str) -> Callable[..., Future[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, timeout: float | None = None, retry: int = 0, **kwargs: Any) -> Future[Any]:
            del timeout, retry
            return self._node.submit(name, args, kwargs)

        return call

"""Addresses of servers that nodes bring themselves."""

from __future__ import annotations

import abc
import re
import socket
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from rlpad.launch.errors import LaunchError
from rlpad.launch.handles import map_leaves

if TYPE_CHECKING:
    from rlpad.launch.nodes.base import Node
    from rlpad.launch.program import Program

_NAME = re.compile(r"[a-z][a-z0-9]*")


class AbstractAddressBuilder(abc.ABC):
    """Chooses addresses, when a program is launched."""

    @abc.abstractmethod
    def build(self) -> str:
        """Returns an address, such as `localhost:1234`."""


class SimpleLocalAddressBuilder(AbstractAddressBuilder):
    """Chooses TCP ports of this machine that are free when they're chosen; none of them twice in a process.

    Another program may take one before the node's server does. Where that matters, let the server choose (port 0),
    and have its node tell the others.
    """

    _given: ClassVar[set[int]] = set()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def build(self) -> str:
        """Returns `localhost` with a port."""
        with self._lock:
            while True:
                with socket.socket() as probe:
                    probe.bind(("localhost", 0))
                    port = probe.getsockname()[1]
                if port not in self._given:
                    self._given.add(port)
                    return f"localhost:{port}"


class Address:
    """Stands for the address of a server that a node starts itself: gRPC, HTTP and the like.

    Make one, `assign` it to the node that serves, and pass it as an argument to whoever needs it; inside of the nodes
    `resolve` says what it is. What nodes serve by `CourierNode` needs no address: pass handles.
    """

    def __init__(self, name: str | None = None):
        """Makes an address of which nothing is known yet.

        Args:
          name: what it's called in messages: small letters and digits.

        Raises:
          LaunchError: the name is malformed.
        """
        if name is not None and not _NAME.fullmatch(name):
            raise LaunchError(f"address name {name!r} is malformed; expected small letters and digits, a letter first")
        self._name = name
        self._owner: Node | None = None
        self._owner_text = ""
        self._address: str | None = None

    @property
    def name(self) -> str | None:
        """What it's called."""
        return self._name

    def assign(self, node: Node) -> None:
        """Says which node serves there.

        Raises:
          LaunchError: another one does.
        """
        if self._owner is not None and self._owner is not node:
            raise LaunchError(f"{self!r} is assigned to {self._owner!r} already; {node!r} needs one of its own")
        self._owner = node

    def bind(self, builder: AbstractAddressBuilder) -> None:
        """Chooses the address; `launch` does that for all among the arguments of nodes.

        Raises:
          LaunchError: it's assigned to no node.
        """
        if self._owner is None:
            raise LaunchError(f"{self!r} is assigned to no node: call address.assign(node) for the one that serves")
        self._address = builder.build()

    def resolve(self) -> str:
        """Returns the address, in nodes.

        Raises:
          LaunchError: it has none, as its program isn't launched, or it's no argument of any node.
        """
        if self._address is None:
            raise LaunchError(f"{self!r} is bound when its program is launched, as an argument of a node")
        return self._address

    def __getstate__(self) -> dict[str, Any]:
        owner = self._owner_text or repr(self._owner)
        return {**self.__dict__, "_owner": None, "_owner_text": owner}

    def __repr__(self) -> str:
        owner = self._owner_text or (repr(self._owner) if self._owner is not None else "no node")
        return f"<Address {self._name or self._address or ''} of {owner}>"


def bind_addresses(program: Program, builder: AbstractAddressBuilder) -> None:
    """Binds all addresses among the arguments of a program's nodes that aren't bound yet.

    Raises:
      LaunchError: one is assigned to no node.
    """

    def bind(address: Address) -> Address:
        if address._address is None:
            address.bind(builder)
        return address

    for top in program.nodes.values():
        for node in top.leaves():
            map_leaves((getattr(node, "args", ()), getattr(node, "kwargs", {})), Address, bind)


def get_port_from_address(address: str) -> int:
    """Returns the port of `host:port`.

    Raises:
      ValueError: there's none.
    """
    _, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"expected an address such as 'localhost:1234', got {address!r}")
    return int(port)

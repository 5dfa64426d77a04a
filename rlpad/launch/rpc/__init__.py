"""Calls between processes: framed streams over Unix sockets, or TCP with mutual TLS."""

from rlpad.launch.rpc.client import Client, list_methods
from rlpad.launch.rpc.server import Server

__all__ = ["Client", "Server", "list_methods"]

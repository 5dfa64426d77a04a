"""Two nodes that call each other at the same time.

python -m experiments.launch.peer_cycle --messages 1000
"""

from typing import Any

import rlpad.launch as lp
from experiments.launch.command import command, gather, report


class Peer:
    """Sends messages to the other one, and receives those of the other one meanwhile."""

    def __init__(self, other: Any):
        self._other = other
        self._received: list[int] = []

    def send(self, messages: int) -> int:
        """Sends numbers, each once the one before was received; returns the last answer."""
        # The other one's `receive` runs in a thread that isn't held up by its own `send`.
        return [self._other.receive(number) for number in range(messages)][-1]

    def receive(self, number: int) -> int:
        """Returns how many numbers have come so far."""
        self._received.append(number)
        return len(self._received)

    def received(self) -> list[int]:
        """Returns what has come."""
        return self._received


def coordinate(peers: list[Any], messages: int, out: str) -> None:
    """Has both send at once, then asks each what it got."""
    answers = gather(peer.futures.send(messages) for peer in peers)
    report({"last_answers": answers, "received": [peer.received() for peer in peers]}, out)


def make_program(messages: int = 100, out: str = "") -> lp.Program:
    """Makes a program of two nodes that hold each other's handle.

    Args:
      messages: how many messages each sends.
      out: file for the results, as JSON.
    """
    program = lp.Program("peer-cycle")
    # Two nodes can't both be made with the other one's handle, so one gets it later.
    first = lp.CourierNode(Peer)
    second = lp.CourierNode(Peer, first.create_handle())
    first.configure(second.create_handle())
    peers = [program.add_node(node, label="peer") for node in (first, second)]
    program.add_node(lp.PyNode(coordinate, peers, messages, out), label="coordinator")
    return program


if __name__ == "__main__":
    raise SystemExit(command(make_program))

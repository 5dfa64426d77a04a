"""Ways to hear that the program stops, and to clean up before it has ended.

python -m experiments.launch.clean_termination --launcher threads
"""

import time

import rlpad.launch as lp
from experiments.launch.command import command


def clean_up(seconds: float, out: str) -> None:
    """Stands for what a node has to do at the end, such as to save its state."""
    time.sleep(seconds)
    name = lp.node_info().name
    print(f"{name} has cleaned up", flush=True)
    if out:
        with open(out, "a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def poll(seconds: float, out: str) -> None:
    """Works, and looks now and then whether the program stops."""
    while not lp.wait_for_stop(0.2):
        pass  # a piece of work
    clean_up(seconds, out)


def wait(seconds: float, out: str) -> None:
    """Has nothing to do but to wait for the end."""
    lp.wait_for_stop()
    clean_up(seconds, out)


def watch(seconds: float, out: str) -> None:
    """Waits for the event itself, which could be handed to other threads or libraries."""
    lp.stop_event().wait()
    clean_up(seconds, out)


def handle(seconds: float, out: str) -> None:
    """Leaves a function to be called at the end, and goes its own way."""
    lp.register_stop_handler(lambda: clean_up(seconds, out))


def stop(after: float) -> None:
    """Ends the program after a while."""
    if not lp.wait_for_stop(after):
        lp.stop("it was time")


def ignore(seconds: float) -> None:
    """Doesn't care about the end."""
    print(f"{lp.node_info().name} is busy", flush=True)
    time.sleep(seconds)


def make_program(after: float = 4.0, cleanup: float = 2.0, deaf: float = 0.0, out: str = "") -> lp.Program:
    """Makes a program whose nodes hear of its end in different ways.

    Args:
      after: seconds after which one of them stops the program.
      cleanup: seconds that each needs to clean up.
      deaf: seconds for which one more node is busy and ignores the end; 0 for no such node. Nodes have nine seconds
        after the stop, then they are killed and named.
      out: file to which each node adds its name once it has cleaned up.
    """
    program = lp.Program("clean-termination")
    for function in (poll, wait, watch, handle):
        program.add_node(lp.PyNode(function, cleanup, out), label=function.__name__)
    program.add_node(lp.PyNode(stop, after), label="stop")
    if deaf:
        program.add_node(lp.PyNode(ignore, deaf), label="ignore")
    return program


if __name__ == "__main__":
    # Not inline, where these nodes would wait for each other: one thread runs them all, one after the other.
    raise SystemExit(command(make_program, launchers=("threads", "processes")))

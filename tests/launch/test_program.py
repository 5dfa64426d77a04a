"""Programs: groups, labels, nodes, and what is checked before anything starts."""

from __future__ import annotations

import functools
import pickle

import pytest

import rlpad.launch as lp
from rlpad.launch.program import node_seed


def work(x: int, y: int = 0) -> None:
    """Does nothing."""


class Service:
    """Takes one argument."""

    def __init__(self, size: int):
        self.size = size


def node() -> lp.PyNode:
    """Makes a valid node."""
    return lp.PyNode(work, 1)


class TestGroups:
    """Labels, names and sizes."""

    def test_names_and_sizes(self) -> None:
        program = lp.Program("p")
        with program.group("actor"):
            actors = [program.add_node(node()) for _ in range(3)]
        learner = program.add_node(node(), label="learner")
        assert [handle.name for handle in actors] == ["actor/0", "actor/1", "actor/2"]
        assert learner.name == "learner/0"
        assert list(program.nodes) == ["actor/0", "actor/1", "actor/2", "learner/0"]
        assert program.group_size("actor") == 3
        assert program.group_size("learner") == 1
        assert [n.index for n in program.nodes.values()] == [0, 1, 2, 0]

    def test_reopened_group_counts_on(self) -> None:
        program = lp.Program("p")
        for _ in range(2):
            with program.group("a"):
                program.add_node(node())
        assert program.add_node(node(), label="a").name == "a/2"
        assert program.group_size("a") == 3

    def test_label_that_agrees_with_the_group(self) -> None:
        program = lp.Program("p")
        with program.group("a"):
            assert program.add_node(node(), label="a").name == "a/0"

    def test_resources_and_policy(self) -> None:
        program = lp.Program("p")
        resources, policy = lp.Resources(threads=2), lp.Restart(max_restarts=5)
        with program.group("a", resources=resources, on_failure=policy):
            program.add_node(node())
        program.add_node(node(), label="b")
        assert program.nodes["a/0"].resources == resources
        assert program.nodes["a/0"].on_failure == policy
        assert program.nodes["b/0"].resources == lp.Resources()
        assert program.nodes["b/0"].on_failure == lp.Stop()

    def test_nodes_is_a_copy(self) -> None:
        program = lp.Program("p")
        program.add_node(node(), label="a")
        program.nodes.clear()
        assert list(program.nodes) == ["a/0"]

    def test_group_closes_after_an_error(self) -> None:
        program = lp.Program("p")
        with pytest.raises(KeyError), program.group("a"):
            raise KeyError("x")
        assert program.add_node(node(), label="b").name == "b/0"

    def test_group_gives_its_texts(self) -> None:
        program = lp.Program("p")
        with pytest.raises(lp.LaunchError, match=r"^Label should not be empty\."), program.group(""):
            pass
        with program.group("a"):
            with pytest.raises(lp.LaunchError, match=r"^group\(\) cannot be nested\.$"), program.group("b"):
                pass
            with pytest.raises(lp.LaunchError, match="label does not match the current group: b vs a"):
                program.add_node(node(), label="b")
        with pytest.raises(lp.LaunchError, match=r"^Label should not be empty\."):
            program.add_node(node())
        assert program.nodes == {}

    def test_errors_are_value_errors(self) -> None:
        with pytest.raises(ValueError, match=r"^Label should not be empty\."):
            lp.Program("p").add_node(node())

    @pytest.mark.parametrize("label", ["a/b", "a b", "ä", "../x", "a\n"])
    def test_malformed_label(self, label: str) -> None:
        with pytest.raises(lp.LaunchError, match="is malformed"):
            lp.Program("p").add_node(node(), label=label)

    def test_program_needs_a_name(self) -> None:
        with pytest.raises(lp.LaunchError, match="needs a name"):
            lp.Program("")


class TestAddNode:
    """A node belongs to one program, once."""

    def test_twice(self) -> None:
        program = lp.Program("p")
        twice = node()
        program.add_node(twice, label="a")
        with pytest.raises(lp.LaunchError, match=r"a/0\(work\) is in a program already"):
            program.add_node(twice, label="a")
        assert program.group_size("a") == 1

    def test_in_two_programs(self) -> None:
        shared = node()
        lp.Program("p").add_node(shared, label="a")
        with pytest.raises(lp.LaunchError, match="already"):
            lp.Program("q").add_node(shared, label="a")

    def test_seeds(self) -> None:
        assert node_seed(1, "a/0") == node_seed(1, "a/0")
        seeds = {node_seed(seed, name) for seed in range(20) for name in ("a/0", "a/1", "b/0")}
        assert len(seeds) == 60
        assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("launcher", ["inline", "threads", "processes"])
class TestCheck:
    """What launch refuses, before anything starts."""

    def test_empty(self, launcher: str) -> None:
        with pytest.raises(lp.LaunchError, match=r"^program 'p' has no nodes$"):
            lp.launch(lp.Program("p"), launcher)

    def test_open_group(self, launcher: str) -> None:
        program = lp.Program("p")
        with program.group("a"):
            program.add_node(node())
            with pytest.raises(lp.LaunchError, match="group 'a' is still open"):
                lp.launch(program, launcher)

    def test_node_of_another_program(self, launcher: str) -> None:
        other, program = lp.Program("other"), lp.Program("p")
        foreign = other.add_node(lp.CourierNode(Service, 1), label="a")
        program.add_node(lp.PyNode(work, foreign), label="b")
        with pytest.raises(lp.LaunchError, match=r"^b/0 refers to <Handle of a/0> of another program$"):
            lp.launch(program, launcher)

    def test_node_of_another_program_with_the_same_name(self, launcher: str) -> None:
        other, program = lp.Program("other"), lp.Program("p")
        foreign = other.add_node(lp.CourierNode(Service, 1), label="a")
        program.add_node(lp.CourierNode(Service, foreign), label="a")
        with pytest.raises(lp.LaunchError, match="of another program"):
            lp.launch(program, launcher)

    def test_node_of_no_program(self, launcher: str) -> None:
        program = lp.Program("p")
        program.add_node(lp.PyNode(work, lp.CourierNode(Service, 1).create_handle()), label="b")
        with pytest.raises(lp.LaunchError, match="isn't in a program: add it with program.add_node"):
            lp.launch(program, launcher)

    def test_node_that_cannot_be_called(self, launcher: str) -> None:
        program = lp.Program("p")
        silent = program.add_node(node(), label="a")
        program.add_node(lp.PyNode(work, silent), label="b")
        with pytest.raises(lp.LaunchError, match="b/0 refers to a/0, which can't be called.*CourierNode"):
            lp.launch(program, launcher)

    def test_notice(self, launcher: str) -> None:
        program = lp.Program("p")
        program.add_node(node(), label="a")
        for bad in (0.0, -1.0, float("nan")):
            with pytest.raises(lp.LaunchError, match="stop_notice_s must be above 0"):
                lp.launch(program, launcher, stop_notice_s=bad)

    def test_heartbeat(self, launcher: str) -> None:
        program = lp.Program("p")
        program.add_node(node(), label="a")
        for bad in (0.0, -1.0, 1.9, float("nan")):
            with pytest.raises(lp.LaunchError, match="heartbeat_timeout_s must be at least 2 seconds"):
                lp.launch(program, launcher, heartbeat_timeout_s=bad)


def test_unknown_launcher() -> None:
    program = lp.Program("p")
    program.add_node(node(), label="a")
    with pytest.raises(lp.LaunchError, match="unknown launcher 'thread'.*did you mean 'threads'"):
        lp.launch(program, "thread")


class TestArguments:
    """Arguments of nodes are checked against the signature at once."""

    @pytest.mark.parametrize("kind", [lp.PyNode, lp.PyClassNode])
    def test_missing(self, kind: type) -> None:
        with pytest.raises(lp.LaunchError, match=r"'x'; expected work\(x.*, y.*= 0\)"):
            kind(work)

    def test_missing_until_the_launch(self) -> None:
        program = lp.Program("p")
        program.add_node(lp.CourierNode(Service), label="s")
        with pytest.raises(lp.LaunchError, match=r"s/0\(Service\): .*'size'; expected Service\(size"):
            lp.launch(program, "inline")

    def test_configure(self) -> None:
        node = lp.CourierNode(Service)
        handle = lp.CourierNode(Service, 1).create_handle()
        node.configure(handle)
        assert node.handles == [handle]
        for args, kwargs in ((), {}), ((1, 2, 3), {}), ((1,), {"colour": 2}):
            with pytest.raises(lp.LaunchError, match=r"expected Service\(size"):
                node.configure(*args, **kwargs)
            assert node.handles == [handle]

    def test_unknown_keyword(self) -> None:
        with pytest.raises(lp.LaunchError, match=r"unexpected keyword argument 'z'; expected work\("):
            lp.PyNode(work, 1, z=2)

    def test_too_many(self) -> None:
        with pytest.raises(lp.LaunchError, match="too many positional arguments"):
            lp.PyNode(work, 1, 2, 3)

    def test_class(self) -> None:
        with pytest.raises(lp.LaunchError, match=r"'size'; expected Service\(size"):
            lp.PyClassNode(Service)

    def test_partial(self) -> None:
        lp.PyNode(functools.partial(work, 1))
        with pytest.raises(lp.LaunchError, match=r"expected partial\(work\)\("):
            lp.PyNode(functools.partial(work, 1), z=1)

    @pytest.mark.parametrize("kind", [lp.PyNode, lp.PyClassNode, lp.CourierNode])
    def test_not_callable(self, kind: type) -> None:
        with pytest.raises(lp.LaunchError, match=rf"{kind.__name__} needs something callable, got 5"):
            kind(5)

    def test_without_signature(self) -> None:
        lp.PyNode(dict.fromkeys, [1, 2])
        lp.CourierNode(dict, a=1)

    def test_courier_option(self) -> None:
        with pytest.raises(lp.LaunchError, match="'thread_pool_sise'; did you mean 'thread_pool_size'"):
            lp.CourierNode(Service, 1, courier_kwargs={"thread_pool_sise": 3})

    @pytest.mark.parametrize("size", [0, -1, 1.5, "2", None])
    def test_courier_threads(self, size: object) -> None:
        with pytest.raises(lp.LaunchError, match="thread_pool_size must be a number of at least 1"):
            lp.CourierNode(Service, 1, courier_kwargs={"thread_pool_size": size})

    def test_policies(self) -> None:
        with pytest.raises(lp.LaunchError, match="at least 0"):
            lp.Restart(max_restarts=-1)
        for bad in (-0.1, float("nan")):
            with pytest.raises(lp.LaunchError, match="at least 0"):
                lp.Restart(backoff_s=bad)
        with pytest.raises(lp.LaunchError, match="threads must be at least 1"):
            lp.Resources(threads=0)
        assert [lp.Restart(backoff_s=1.0).delay(n) for n in (1, 2, 3, 9)] == [1.0, 2.0, 4.0, 30.0]
        assert lp.Restart(max_restarts=10**6, backoff_s=0.001).delay(10**5) == 30.0
        assert lp.Restart(max_restarts=10**6, backoff_s=0.0).delay(10**5) == 0.0


def test_errors_pickle() -> None:
    error = pickle.loads(pickle.dumps(lp.NodeFailed("a/0", "killed by SIGKILL")))
    assert (error.node, str(error)) == ("a/0", "killed by SIGKILL")

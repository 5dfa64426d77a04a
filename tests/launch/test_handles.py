"""Handles: where they're found, where they're hidden, and what becomes of them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpad.launch as lp
from rlpad.launch.handles import find_handles, map_handles

from .conftest import Start, end


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    """A dataclass."""

    content: Any
    extra: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenBox:
    """A dataclass that can't be changed."""

    content: Any


@dataclasses.dataclass
class OddBox:
    """A dataclass whose constructor makes something else of what it's given."""

    number: int
    made: dataclasses.InitVar[Any]
    kept: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self, made: Any) -> None:
        self.number += 1
        self.kept = [made]


class Plain:
    """An object like any other."""

    def __init__(self, content: Any):
        self.content = content

    def method(self) -> None:
        """Can be bound."""


class Name:
    """Serves its own name."""

    def __init__(self, name: str = "?", *others: Any):
        self._name = name
        self._others = others

    def name(self) -> str:
        """Returns the name it was given."""
        return self._name

    def others(self) -> list[str]:
        """Asks the others for theirs."""
        return [other.name() for other in self._others]


class Teller(Name):
    """Knows others from a list."""

    def __init__(self, name: str, others: list[Any]):
        super().__init__(name, *others)

    def chain(self, length: int) -> str:
        """Has the first of the others go on with the chain."""
        return self._name if length == 1 else f"{self._name} {self._others[0].chain(length - 1)}"


def make_handle(name: str = "a") -> lp.Handle:
    """Makes a handle of a node in a program of its own."""
    return lp.Program("p").add_node(lp.CourierNode(Name), label=name)


_keys = st.text(max_size=3)
_leaves = st.none() | st.integers() | st.text(max_size=3) | st.sets(st.integers(), max_size=2)


def nests(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nests of everything in which handles are found."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(_keys, inner, max_size=3),
            st.dictionaries(_keys, inner, max_size=3).map(collections.OrderedDict),
            st.builds(Pair, inner, inner),
            st.builds(Box, inner, inner),
            st.builds(FrozenBox, inner),
        ),
        max_leaves=12,
    )


def flat(value: Any) -> list[Any]:
    """Lists the leaves of a nest, found without what is tested."""
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in flat(child)]
    if isinstance(value, list | tuple):
        return [leaf for child in value for leaf in flat(child)]
    if isinstance(value, Box):
        return flat(value.content) + flat(value.extra)
    return flat(value.content) if isinstance(value, FrozenBox) else [value]


def shape(value: Any) -> Any:
    """Describes a nest without its leaves."""
    if isinstance(value, dict):
        return type(value), [(key, shape(child)) for key, child in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape(child) for child in value]
    if isinstance(value, Box):
        return Box, [shape(value.content), shape(value.extra)]
    return (FrozenBox, shape(value.content)) if isinstance(value, FrozenBox) else None


class TestMap:
    """`map_handles` replaces exactly the handles."""

    @given(nests(_leaves | st.builds(make_handle)))
    def test_replaces_all(self, nest: Any) -> None:
        before = flat(nest)
        kept = shape(nest)
        mapped = map_handles(nest, lambda handle: ("client", handle.name, id(handle)).__repr__())
        expected = [
            ("client", leaf.name, id(leaf)).__repr__() if isinstance(leaf, lp.Handle) else leaf for leaf in before
        ]
        assert flat(mapped) == expected
        assert shape(mapped) == kept
        assert all(now is then for now, then in zip(flat(nest), before, strict=True))
        assert find_handles(nest) == [leaf for leaf in before if isinstance(leaf, lp.Handle)]

    @given(nests(_leaves))
    def test_returns_others_themselves(self, nest: Any) -> None:
        assert map_handles(nest, lambda handle: None) is nest

    def test_unchanged_parts_are_shared(self) -> None:
        left = [1, {"x": 2}]
        mapped = map_handles({"left": left, "right": [make_handle()]}, lambda handle: 7)
        assert mapped["left"] is left
        assert mapped["right"] == [7]

    def test_other_mappings(self) -> None:
        numbers: Any = collections.defaultdict(list, {"a": make_handle()})
        mapped = map_handles(numbers, lambda handle: 1)
        assert mapped == {"a": 1}
        assert mapped.default_factory is list
        proxy = map_handles(types.MappingProxyType({"a": make_handle()}), lambda handle: 1)
        assert isinstance(proxy, types.MappingProxyType)
        assert dict(proxy) == {"a": 1}
        # Gives another string each time it's asked.
        assert map_handles(os.environ, lambda handle: 1) is os.environ

    def test_dataclass_is_not_made_anew(self) -> None:
        handle = make_handle()
        odd = OddBox(1, made=handle)
        mapped = map_handles(odd, lambda handle: "client")
        assert (mapped.number, mapped.kept) == (2, ["client"])
        assert odd.kept == [handle]

    def test_dataclass_field_never_set(self) -> None:
        box = Box.__new__(Box)
        box.content = make_handle()
        assert map_handles(box, lambda handle: 3).content == 3


class TestHandle:
    """Names and identity."""

    def test_before_add_node(self) -> None:
        node = lp.CourierNode(Name)
        handle = node.create_handle()
        assert "no program" in repr(handle)
        with pytest.raises(lp.LaunchError, match="isn't in a program"):
            _ = handle.name
        with pytest.raises(lp.LaunchError, match="isn't in a program"):
            pickle.dumps(handle)
        lp.Program("p").add_node(node, label="late")
        assert handle.name == "late/0"
        assert repr(handle) == "<Handle of late/0>"
        assert handle.node is node

    @pytest.mark.parametrize("module", [pickle, cloudpickle])
    def test_pickles_by_name(self, module: Any) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Plain, (letter for letter in "x")), label="a")
        other = pickle.loads(module.dumps(handle))
        assert type(other) is lp.Handle
        assert (other.name, other.node) == ("a/0", None)
        assert pickle.loads(pickle.dumps(other)).name == "a/0"


def argument(hide: Callable[[lp.Handle], Any]) -> lp.Program:
    """Makes a program in whose node `user/0` a handle is hidden."""
    program = lp.Program("p")
    handle = program.add_node(lp.CourierNode(Name), label="a")
    program.add_node(lp.PyNode(use, hide(handle)), label="user")
    return program


def use(value: Any, **more: Any) -> None:
    """Uses whatever it's given."""


def in_closure(handle: lp.Handle) -> Any:
    def inner() -> str:
        return handle.name

    return inner


def in_default(handle: lp.Handle) -> Any:
    def inner(h: lp.Handle = handle) -> str:
        return h.name

    return inner


def in_keyword_default(handle: lp.Handle) -> Any:
    def inner(*, h: lp.Handle = handle) -> str:
        return h.name

    return inner


HIDDEN: dict[str, tuple[Callable[[lp.Handle], Any], str]] = {
    "closure": (in_closure, r"the closure of in_closure.*inner.*\(handle\)"),
    "default": (in_default, r"a default of in_default.*inner"),
    "keyword default": (in_keyword_default, r"a default of in_keyword_default.*inner"),
    "partial": (lambda h: functools.partial(use, h), r"a functools.partial .*\(argument 0\)"),
    "partial keyword": (lambda h: functools.partial(use, 1, other=h), r"partial .*\(argument other\)"),
    "set": (lambda h: {h}, "a set in"),
    "frozenset": (lambda h: [frozenset([(1, h)])], "a set in"),
    "bound method": (lambda h: Plain(h).method, "the object of a bound method"),
    "attribute": (lambda h: Plain(h), "attribute 'content' of Plain"),
    "deep attribute": (lambda h: {"x": [Plain({"y": Plain([h])})]}, "attribute 'content' of Plain"),
    "lambda in a list": (lambda h: [1, lambda: h], r"the closure of .*<lambda>.*\[1\] \(h\)"),
    "list in a closure": (lambda h: in_closure([h]), "the closure of"),  # type: ignore[arg-type]
    "dict key": (lambda h: {h: 1}, "a key of"),
    "deferred in an object": (lambda h: Plain(lp.Deferred(use, h)), "attribute 'args' of Deferred"),
    "closure in a deferred": (lambda h: lp.Deferred(use, in_closure(h)), "the closure of"),
    "deferred constructor": (lambda h: lp.Deferred(in_closure(h)), "the closure of"),
    "dataclass": (lambda h: Box(Plain(h)), "attribute 'content' of Plain in .*content"),
}


class TestHidden:
    """A handle where it can't be replaced is an error at launch."""

    @pytest.mark.parametrize("case", HIDDEN)
    def test_argument(self, case: str) -> None:
        hide, place = HIDDEN[case]
        with pytest.raises(lp.LaunchError, match=place) as info:
            lp.launch(argument(hide), "inline")
        message = str(info.value)
        assert "user/0: argument 0 of use" in message
        assert "<Handle of a/0>" in message
        assert "\n" not in message

    def test_keyword(self) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Name), label="a")
        program.add_node(lp.PyNode(use, 1, extra={handle}), label="user")
        with pytest.raises(lp.LaunchError, match="a set in user/0: argument 'extra' of use"):
            lp.launch(program, "threads")

    @pytest.mark.parametrize("wrap", [in_closure, lambda h: functools.partial(use, h), lambda h: Plain(h).method])
    def test_function(self, wrap: Callable[[lp.Handle], Any]) -> None:
        program = lp.Program("p")
        handle = program.add_node(lp.CourierNode(Name), label="a")
        program.add_node(lp.PyNode(wrap(handle)), label="user")
        with pytest.raises(lp.LaunchError, match="in user/0: .* hides <Handle of a/0>") as info:
            lp.launch(program, "inline")
        assert "\n" not in str(info.value)

    def test_what_refers_to_itself_is_no_trouble(self) -> None:
        looped = Plain(None)
        looped.content = [looped, {"again": looped}]
        argument(lambda handle: looped).check()


def record(path: str, value: Any) -> None:
    """Writes down what clients answer."""
    Path(path).write_text(repr(map_answers(value)))


def map_answers(value: Any) -> Any:
    """Replaces clients in a nest by the names of whom they call."""
    if isinstance(value, dict):
        return {key: map_answers(child) for key, child in value.items()}
    if isinstance(value, Pair):
        return Pair(*map(map_answers, value))
    if isinstance(value, list | tuple):
        return type(value)(map_answers(child) for child in value)
    if isinstance(value, Box):
        return Box(map_answers(value.content), map_answers(value.extra))
    return value if isinstance(value, int | str | None) else value.name()


def joined(*parts: Any, prefix: Any = "") -> str:
    """Joins strings, and what clients answer."""
    return prefix + "+".join(map_answers(list(parts)))


class TestClients:
    """In the node, handles are clients."""

    def test_nested(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        with program.group("name"):
            a, b = (program.add_node(lp.CourierNode(Name, name)) for name in "ab")
        value = {"list": [a, 1], "tuple": (b,), "pair": Pair(a, None), "box": Box([b], "x")}
        program.add_node(lp.PyNode(record, str(tmp_path / "out"), value), label="user")
        end(start(program, launcher))
        expected = {"list": ["a", 1], "tuple": ("b",), "pair": Pair("a", None), "box": Box(["b"], "x")}
        assert (tmp_path / "out").read_text() == repr(expected)

    def test_created_before_add_node(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        node = lp.CourierNode(Name, "late")
        program.add_node(lp.PyNode(record, str(tmp_path / "out"), node.create_handle()), label="user")
        program.add_node(node, label="name")
        end(start(program, launcher))
        assert (tmp_path / "out").read_text() == "'late'"

    def test_deferred(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        a = program.add_node(lp.CourierNode(Name, "a"), label="a")
        inner = lp.Deferred(joined, a, "y", prefix=lp.Deferred(str, 5))
        value = [lp.Deferred(joined, "x", [inner][0], prefix=">"), Pair(inner, 1), Box({"k": inner})]
        program.add_node(lp.PyNode(record, str(tmp_path / "out"), value), label="user")
        end(start(program, launcher))
        expected = [">x+5a+y", Pair("5a+y", 1), Box({"k": "5a+y"})]
        assert (tmp_path / "out").read_text() == repr(expected)

    def test_deferred_nested_in_a_list(self, launcher: str, start: Start, tmp_path: Path) -> None:
        program = lp.Program("p")
        value = lp.Deferred(sorted, [lp.Deferred(int, "3"), lp.Deferred(int, "2")])
        program.add_node(lp.PyNode(record, str(tmp_path / "out"), value), label="user")
        end(start(program, launcher))
        assert (tmp_path / "out").read_text() == "[2, 3]"

    def test_deferred_that_raises(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        program.add_node(lp.CourierNode(Name, lp.Deferred(int, "three")), label="a")
        with pytest.raises(ValueError, match="invalid literal for int"):
            start(program, launcher).wait(20)

    def test_cycle(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        one = lp.CourierNode(Teller)
        two = lp.CourierNode(Teller, "two", [one.create_handle()])
        one.configure("one", others=[two.create_handle()])
        handles = [program.add_node(node, label="n") for node in (one, two)]
        run = start(program, launcher)
        assert [run.client(handle).others() for handle in handles] == [["two"], ["one"]]
        assert [run.client(handle).chain(3) for handle in handles] == ["one two one", "two one two"]
        run.stop(status="completed")
        assert end(run).status == "completed"

    def test_itself(self, launcher: str, start: Start) -> None:
        program = lp.Program("p")
        node = lp.CourierNode(Teller, "me", knows := [])
        knows.append(node.create_handle())
        handle = program.add_node(node, label="n")
        run = start(program, launcher)
        assert run.client(handle).others() == ["me"]

"""Loggers: what stands in the files, what is printed when, and what can't be logged."""

import enum
import glob
import importlib.util
import io
import json
import math
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpad.errors import UserError
from rlpad.tracking import RunDirectory, make_logger
from rlpad.tracking.loggers import (
    JsonLinesLogger,
    LoggerGroup,
    TensorBoardLogger,
    TerminalLogger,
    check_extras,
    flatten_numbers,
    format_row,
)
from rlpad.tracking.plain import describe, join_nonfinite, split_nonfinite, to_plain


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Colour(enum.IntEnum):
    RED = 3


def test_json_lines_by_hand(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    logger = JsonLinesLogger(path, clock=lambda: 12.34567)
    logger.write(
        {
            "int": 1,
            "numpy": np.float32(0.1),
            "jax": jnp.float32(0.5),
            "bfloat16": jnp.asarray([1.5, 2.0], jnp.bfloat16),
            "array": np.arange(6).reshape(2, 3),
            "bool": np.bool_(True),
            "enum": Colour.RED,
            "text": "ä",
            "none": None,
            "path": Path("a/b"),
            "nest": {"x": (1, np.int64(2)), 3: []},
        }
    )
    # A row is there in full before close.
    assert lines(path) == [
        {
            "time": 12.346,
            "int": 1,
            "numpy": float(np.float32(0.1)),
            "jax": 0.5,
            "bfloat16": [1.5, 2.0],
            "array": [[0, 1, 2], [3, 4, 5]],
            "bool": True,
            "enum": 3,
            "text": "ä",
            "none": None,
            "path": "a/b",
            "nest": {"x": [1, 2], "3": []},
        }
    ]
    logger.close()
    logger.close()
    # A logger of a restarted node goes on where the file ends.
    again = JsonLinesLogger(path)
    again.write({"int": 2})
    again.close()
    assert [row["int"] for row in lines(path)] == [1, 2]


def test_not_finite_numbers_are_valid_json_and_come_back(tmp_path):
    logger = JsonLinesLogger(tmp_path / "metrics" / "a.jsonl")
    row = {"loss": math.nan, "nest": {"x": [1.0, -math.inf, np.float32(np.inf)], "y": 2}, "fine": 1.0}
    logger.write(row)
    logger.close()
    text = (tmp_path / "metrics" / "a.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    stored = json.loads(text)
    assert stored["loss"] is None and stored["nest"] == {"x": [1.0, None, None], "y": 2}
    assert stored["nonfinite"] == {"loss": "nan", "nest": {"x": [None, "-inf", "inf"]}}
    (read,) = RunDirectory(tmp_path).read_metrics("a")
    assert math.isnan(read["loss"]) and read["fine"] == 1.0
    assert read["nest"] == {"x": [1.0, -math.inf, math.inf], "y": 2}
    assert "nonfinite" not in read


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(PLAIN)
def test_any_plain_value_survives_json(value):
    kept, lost = split_nonfinite(to_plain(value))
    text = json.dumps([kept, lost], allow_nan=False)
    back = join_nonfinite(*json.loads(text))
    assert repr(back) == repr(value)  # repr, as NaN isn't equal to itself


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"good": 1, "bad": object()}, "row.bad"),
        ({"nest": {"list": [1, {2j}]}}, "row.nest.list"),
        ({"times": np.array(["2020-01-01"], "datetime64[D]")}, "row.times"),
        ({"objects": np.array([None], object)}, "row.objects"),
    ],
)
def test_a_bad_value_is_named_and_nothing_is_written(tmp_path, row, name):
    logger = JsonLinesLogger(tmp_path / "a.jsonl")
    with pytest.raises(TypeError, match=name.replace(".", r"\.")):
        logger.write(row)
    logger.close()
    assert (tmp_path / "a.jsonl").read_text() == ""


def test_threads_write_whole_lines(tmp_path):
    logger = JsonLinesLogger(tmp_path / "a.jsonl")

    def write(worker):
        for i in range(200):
            logger.write({"worker": worker, "i": i, "filler": "x" * 200})

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.close()
    rows = lines(tmp_path / "a.jsonl")
    assert len(rows) == 1_200
    for worker in range(6):
        assert [row["i"] for row in rows if row["worker"] == worker] == list(range(200))


def test_terminal_holds_rows_back():
    now = [0.0]
    stream = io.StringIO()
    logger = TerminalLogger("actor", period_s=1.0, stream=stream, clock=lambda: now[0])
    for now[0], steps in ((0.0, 1), (0.5, 2), (0.9, 3), (1.0, 4), (1.5, 5), (1.6, 6)):
        logger.write({"steps": steps})
    assert stream.getvalue().splitlines() == ["[actor] steps = 1", "[actor] steps = 4"]
    logger.close()
    logger.close()
    assert stream.getvalue().splitlines()[2:] == ["[actor] steps = 6"]


def test_formatted_row():
    row = {"steps": 12_345, "loss": 0.123456, "done": True, "kind": "best"}
    assert format_row("a", row) == "[a] steps = 12,345 | loss = 0.1235 | done = True | kind = best"


def test_flattened_numbers():
    row = {"a": 1, "b": {"c": [2.5, "no", None, {"d": True}]}, "e": "text"}
    assert flatten_numbers(row) == [("a", 1.0), ("b/c/0", 2.5), ("b/c/3/d", 1.0)]


def test_a_group_writes_and_closes_all():
    streams = [io.StringIO(), io.StringIO()]
    group = LoggerGroup([TerminalLogger(str(i), stream=stream) for i, stream in enumerate(streams)])
    group.write({"a": 1})
    group.close()
    assert [stream.getvalue() for stream in streams] == ["[0] a = 1\n", "[1] a = 1\n"]


@pytest.mark.skipif(importlib.util.find_spec("tensorboardX") is None, reason="needs the extra tensorboard")
def test_tensorboard_events(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.write({"actor_steps": 10, "learner_steps": 5, "loss": 0.5, "nest": {"x": 2}, "kind": "text"})
    logger.write({"learner_steps": 7, "loss": 0.25})
    logger.close()
    assert read_events(tmp_path) == [("loss", 10, 0.5), ("nest/x", 10, 2.0), ("loss", 7, 0.25)]


def read_events(folder):
    """Reads scalars from event files: records of length, its CRC, a protobuf `Event`, and its CRC."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for name in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        data = Path(name).read_bytes()
        at = 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found.extend((value.tag, event.step, value.simple_value) for value in event.summary.value)
            at += 12 + length + 4
    return found


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")
def test_wandb_without_a_network(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "disabled")
    asked = []
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: asked.append(options) or init(**options))
    logger = make_logger("learner", tmp_path / "run", wandb="project")
    logger.write({"actor_steps": 1, "loss": 0.5, "nest": {"x": 1}, "kind": "text"})
    logger.close()
    assert len(asked) == 1
    assert (asked[0]["project"], asked[0]["group"], asked[0]["name"]) == ("project", "run", "run/learner")


def test_make_logger(tmp_path, capsys):
    logger = make_logger("actor-0", tmp_path, tensorboard=True, terminal=True)
    logger.write({"actor_steps": 1, "loss": 0.5})
    logger.close()
    assert lines(tmp_path / "metrics" / "actor-0.jsonl")[0]["loss"] == 0.5
    assert capsys.readouterr().out == "[actor-0] actor_steps = 1 | loss = 0.5\n"
    assert len(list((tmp_path / "tensorboard" / "actor-0").iterdir())) == 1


def test_extras_are_checked_before_a_run(monkeypatch):
    check_extras()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_extras(False, None)
    with pytest.raises(UserError, match=r"rlpad\[tensorboard\]"):
        check_extras(True, None)
    with pytest.raises(UserError, match=r"rlpad\[wandb\]"):
        check_extras(False, "project")


def test_described_configs():
    import dataclasses
    import functools

    @dataclasses.dataclass
    class Inner:
        sizes: tuple[int, ...] = (1, 2)
        infinite: float = math.inf

    @dataclasses.dataclass
    class Outer:
        inner: Inner = dataclasses.field(default_factory=Inner)
        function: object = math.sqrt
        partial: object = functools.partial(int, base=2)
        names: frozenset = frozenset({"b", "a"})
        array: object = dataclasses.field(default_factory=lambda: np.ones(2, np.float32))
        path: Path = Path("x")
        other: object = dataclasses.field(default_factory=threading.Lock)

    described = json.loads(json.dumps(describe(Outer()), allow_nan=False))
    assert described == {
        "inner": {"sizes": [1, 2], "infinite": "inf"},
        "function": "math:sqrt",
        "partial": {"partial": "builtins:int", "args": [], "kwargs": {"base": 2}},
        "names": ["a", "b"],
        "array": [1.0, 1.0],
        "path": "x",
        "other": "_thread:lock",
    }

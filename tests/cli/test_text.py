"""How commands write things for people."""

import pytest

from rlpad.cli.text import count, duration, shown, table


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3_600, "1:00:00"), (36_061, "10:01:01")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_count():
    assert [count(number, "restart") for number in (0, 1, 2, 1234)] == [
        "0 restarts",
        "1 restart",
        "2 restarts",
        "1,234 restarts",
    ]


def test_paths_as_they_would_be_typed(tmp_path, monkeypatch):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    assert shown(tmp_path / "a" / "b") == "b"
    assert shown(tmp_path.parents[-1]) == "/"


def test_table():
    rows = [["a", "1", "x"], ["long", "100", ""]]
    assert table(["NAME", "N", "REST"], rows, right=["N"]) == ["NAME    N  REST", "a       1  x", "long  100"]

"""Two nodes that hold each other's handle exchange messages both ways."""

from __future__ import annotations

import pytest

from experiments.launch.peer_cycle import make_program

from .conftest import Results


@pytest.mark.parametrize("messages", [1, 100])
def test_every_message_comes_once_and_in_order(results_of: Results, launcher: str, messages: int) -> None:
    found = results_of(make_program, launcher, messages=messages)
    assert found == {"last_answers": [messages] * 2, "received": [list(range(messages))] * 2}

"""Reads `name=value` options from the command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from rlpad.errors import UserError


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Turns `["a=1", "b=x"]` into `{"a": 1, "b": "x"}`.

    Values are read as Python literals (numbers, true and false in any case, None, tuples); what isn't one is text.

    Raises:
      UserError: an option has no name or no `=`, or is given twice.
    """
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise UserError(f"environment option {option!r} is malformed; expected name=value")
        if name in parsed:
            raise UserError(f"environment option {name!r} is given twice")
        parsed[name] = _value(text.strip())
    return parsed


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

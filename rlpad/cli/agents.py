"""`rlpad agents`: lists the agents that can be trained."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from rlpad.cli.parse import parse
from rlpad.errors import UserError
from rlpad.registry import agent_names, get_agent


@dataclasses.dataclass(frozen=True)
class AgentsFlags:
    """Flags of `rlpad agents`."""

    json: bool = False
    """Print JSON."""


def main(arguments: Sequence[str]) -> int:
    """Prints one line per agent; an agent that can't be imported is named with the reason."""
    flags = parse(AgentsFlags, arguments, prog="rlpad agents", description="Lists the agents that can be trained.")
    rows = []
    for name in agent_names():
        try:
            entry = get_agent(name)
            rows.append({"name": name, "module": entry.module, "summary": entry.summary, "error": None})
        except UserError as error:
            rows.append({"name": name, "module": None, "summary": None, "error": str(error)})
    if flags.json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(str(row["name"])) for row in rows) if rows else 0
    for row in rows:
        print(f"{row['name']:<{width}}  {row['summary'] or row['error']}  [{row['module'] or 'broken'}]")
    return 0

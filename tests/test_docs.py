"""The programs in the documents are run as they stand, and print what the documents say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlpad.launch as lp

DOCS = Path(__file__).parents[1] / "docs"
#: Each program with the output that stands below it.
PROGRAMS = [
    (path.name, number, program, output)
    for path in sorted(DOCS.glob("*launch*.md"))
    for number, (program, output) in enumerate(
        re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", path.read_text(), re.DOTALL)
    )
]


def test_there_are_programs() -> None:
    assert [(name, number) for name, number, _, _ in PROGRAMS] == [
        ("launch.md", 0),
        ("launch.md", 1),
        ("porting_from_launchpad.md", 0),
    ]


@pytest.mark.parametrize(("name", "number", "program", "output"), PROGRAMS)
def test_program(name: str, number: int, program: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(((?!http)[^)#]+)", path.read_text()):
        assert (path.parent / link).is_file(), link


def test_the_names_of_launchpad_are_there() -> None:
    text = (DOCS / "porting_from_launchpad.md").read_text()
    table = text[text.index("## Name by name") : text.index("## What differs")]
    left = " ".join(row.split(" | ")[0] for row in table.splitlines())
    names = set(re.findall(r"`([A-Za-z_]+)", left)) - {"program", "courier", "handle", "terminal", "local_resources"}
    known = {*lp.__all__, "list_methods"}
    of_others = {
        *("add_node", "groups", "current_group", "get_all_nodes", "disable_run", "enable_run", "configure"),
        *("xm_resources", "num_retries_on_failure"),
    }
    assert names - known - of_others == set()

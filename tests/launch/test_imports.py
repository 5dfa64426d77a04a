"""`rlpad.launch` knows no RL, and loads none of what that needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "jax",
    "jaxlib",
    "numpy",
    "haiku",
    "optax",
    "tensorflow",
    "reverb",
    "gymnasium",
    "dm_env",
    "tree",
    "ray",
)
CODE = """
import sys
import rlpad.launch
from rlpad.launch import control
from rlpad.launch.launchers import inline, threads
print(sorted(set({heavy!r}) & set(sys.modules)))
ours = [name for name in sys.modules if name.startswith("rlpad.")]
print(sorted(name for name in ours if name.split(".")[1] not in {known!r}))
"""


def test_no_heavy_modules() -> None:
    code = CODE.format(heavy=HEAVY, known=("launch", "errors", "files"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_all_names_are_there() -> None:
    import rlpad.launch as lp

    assert [name for name in lp.__all__ if not hasattr(lp, name)] == []
    assert list(lp.__all__) == sorted(lp.__all__)

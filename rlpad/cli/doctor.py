"""`rlpad doctor`: says which stack, devices and extras are there, and what mends what isn't right."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rlpad.cli.parse import parse

#: What rlpad can't do without, by distribution.
REQUIRED = ("jax", "jaxlib", "numpy", "dm-haiku", "optax", "gymnasium")

#: Extra: the modules that it brings. Those of `gpu` have a name for each release of CUDA.
EXTRAS = {
    "reverb": ("reverb", "tensorflow"),
    "atari": ("ale_py", "cv2"),
    "box2d": ("Box2D",),
    "video": ("moviepy", "imageio"),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "tls": ("cryptography",),
}
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

_IMPORT_TIMEOUT_S = 180.0
_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class DoctorFlags:
    """Flags of `rlpad doctor`."""

    json: bool = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class Extra:
    """An optional part.

    Attributes:
      ok: whether all its modules are there.
      missing: modules that aren't.
      remedy: what to do for them; None if nothing is missing.
    """

    ok: bool
    missing: tuple[str, ...] = ()
    remedy: str | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that is wrong, and what mends it."""

    problem: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Report:
    """All that `rlpad doctor` found out.

    Attributes:
      rlpad: version of rlpad.
      python: version of Python.
      platform: operating system and machine.
      cpus: CPUs that this process may use.
      stack: which of the two stacks is installed.
      packages: versions of what rlpad needs, and of dm-reverb and TensorFlow where they are installed.
      devices: what JAX computes on.
      extras: the optional parts.
      agents: summaries of the agents that can be trained.
      broken_agents: agents that are registered but can't be imported, with the reason.
      notes: what is worth knowing.
      problems: what is wrong.
    """

    rlpad: str
    python: str
    platform: str
    cpus: int
    stack: str
    packages: dict[str, str | None]
    devices: tuple[str, ...]
    extras: dict[str, Extra]
    agents: dict[str, str]
    broken_agents: dict[str, str]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def main(arguments: Sequence[str]) -> int:
    """Prints what is installed and what is wrong; returns 1 if anything is, else 0."""
    flags = parse(
        DoctorFlags,
        arguments,
        prog="rlpad doctor",
        description="Says which stack, devices and extras are there, and what mends what isn't right.",
    )
    report = examine()
    if flags.json:
        print(json.dumps({**dataclasses.asdict(report), "ok": not report.problems}, indent=2))
    else:
        print(render(report))
    return 1 if report.problems else 0


def examine() -> Report:
    """Looks at this installation; starts a process that imports Reverb if it's installed."""
    from rlpad import __version__

    packages = {name: _version(name) for name in REQUIRED}
    packages |= {name: found for name in ("dm-reverb", "tensorflow-cpu", "tensorflow") if (found := _version(name))}
    devices, jax_error = _devices()
    agents, broken = _agents()
    reverb_error = import_error("reverb") if packages.get("dm-reverb") else None
    return Report(
        rlpad=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpus=_usable_cpus(),
        stack=_stack(packages),
        packages=packages,
        devices=devices,
        extras={**{name: _extra(name, modules) for name, modules in EXTRAS.items()}, "gpu": _gpu_extra()},
        agents=agents,
        broken_agents=broken,
        notes=_notes(packages, devices),
        problems=tuple(find_problems(packages, jax_error, reverb_error, broken)),
    )


def find_problems(
    packages: Mapping[str, str | None],
    jax_error: str | None = None,
    reverb_error: str | None = None,
    broken_agents: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Lists what can't work, with the remedy for each.

    Args:
      packages: versions by distribution; None for what isn't installed.
      jax_error: why JAX can't be imported or finds no device.
      reverb_error: why Reverb can't be imported, where it's installed.
      broken_agents: agents that can't be imported, with the reason.
    """
    problems = []
    for name in REQUIRED:
        if not packages.get(name):
            problems.append(Problem(f"{name} isn't installed", f"pip install {name}"))
    jax, haiku, numpy = (_release(packages.get(name)) for name in ("jax", "dm-haiku", "numpy"))
    tensorflow = packages.get("tensorflow-cpu") or packages.get("tensorflow")
    needs_old_numpy = []
    if packages.get("dm-reverb"):
        needs_old_numpy.append(f"dm-reverb {packages['dm-reverb']}")
    if tensorflow and _release(tensorflow)[:2] <= (2, 15):
        needs_old_numpy.append(f"TensorFlow {tensorflow}")
    if numpy >= (2,) and needs_old_numpy:
        problems.append(
            Problem(
                f"numpy {packages['numpy']} beside {' and '.join(needs_old_numpy)}, built for numpy 1",
                "pip install 'numpy<2'",
            )
        )
    if jax and haiku >= (0, 0, 17) and jax <= (0, 4, 34):
        problems.append(
            Problem(
                f"dm-haiku {packages['dm-haiku']} beside JAX {packages['jax']}, which is too old for it",
                "pip install 'dm-haiku<=0.0.16'",
            )
        )
    if packages.get("jax") and jax_error:
        problems.append(Problem(f"JAX doesn't work: {jax_error}", _jax_remedy(packages)))
    if reverb_error:
        problems.append(
            Problem(
                f"dm-reverb is installed but can't be imported: {reverb_error}",
                "pip install 'rlpad[reverb]' puts the versions back that fit it; "
                "without Reverb (pip uninstall dm-reverb) replay is embedded",
            )
        )
    for name, reason in (broken_agents or {}).items():
        problems.append(
            Problem(
                f"agent {name!r} is registered but can't be used: {reason}",
                "install what its module imports, or uninstall the package that registers it",
            )
        )
    return problems


def _jax_remedy(packages: Mapping[str, str | None]) -> str:
    if asked := os.environ.get("JAX_PLATFORMS"):
        return f"JAX_PLATFORMS is set to {asked!r}: unset it, or install what it asks for"
    version = packages["jax"]
    if packages.get("jaxlib") != version:
        return f"pip install 'jax=={version}' 'jaxlib=={version}'"
    return f"pip install --force-reinstall 'jax=={version}'"


def import_error(module: str) -> str | None:
    """Imports a module in a process of its own; returns why that fails, or None."""
    # Out of this process, as native code that doesn't fit may well end it.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"the import didn't end within {_IMPORT_TIMEOUT_S:.0f} seconds"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    reason = lines[-1].strip() if lines else "no message"
    return f"ended by signal {-done.returncode}: {reason}" if done.returncode < 0 else reason


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str | None) -> tuple[int, ...]:
    """Returns the leading numbers of a version; of none, the empty tuple, which is less than any."""
    match = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stack(packages: Mapping[str, str | None]) -> str:
    if reverb := packages.get("dm-reverb"):
        return f"reverb stack (dm-reverb {reverb}, JAX {packages.get('jax') or 'missing'})"
    return "newest JAX, embedded replay"


def _devices() -> tuple[tuple[str, ...], str | None]:
    try:
        import jax

        return tuple(f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()), None
    except Exception as error:  # JAX and its plugins raise anything, and a report that ends here helps nobody
        return (), _one_line(error)


def _agents() -> tuple[dict[str, str], dict[str, str]]:
    from rlpad.registry import agent_names, get_agent

    found, broken = {}, {}
    for name in agent_names():
        try:
            found[name] = get_agent(name).summary
        except Exception as error:  # a third party's module may raise anything when imported
            broken[name] = _one_line(error)
    return found, broken


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _extra(name: str, modules: Sequence[str]) -> Extra:
    missing = tuple(module for module in modules if not _is_there(module))
    if not missing:
        return Extra(ok=True)
    remedy = f"pip install 'rlpad[{name}]'"
    if name == "reverb" and not _reverb_runs_here():
        remedy = f"{remedy} (on Python 3.11, Linux x86-64 only)"
    return Extra(ok=False, missing=missing, remedy=remedy)


def _reverb_runs_here() -> bool:
    return (
        sys.version_info[:2] == (3, 11) and platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")
    )


def _gpu_extra() -> Extra:
    if any(_is_there(plugin) for plugin in _CUDA_PLUGINS):
        return Extra(ok=True)
    return Extra(ok=False, missing=_CUDA_PLUGINS[:1], remedy="pip install 'rlpad[gpu]'")


def _notes(packages: Mapping[str, str | None], devices: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if packages.get("dm-reverb"):
        notes.append("Reverb's samplers can't be seeded, so runs with it aren't reproducible.")
        notes.append(
            "Reverb's server listens on every interface without authentication: firewall it, or use --replay embedded."
        )
    if devices and all(device.startswith("cpu") for device in devices) and Path("/dev/nvidia0").exists():
        notes.append("There is an NVIDIA GPU, but JAX uses the CPU only: pip install 'rlpad[gpu]'.")
    return tuple(notes)


def render(report: Report) -> str:
    """Lays the report out as text."""
    extras = {
        name: "ok" if extra.ok else f"missing {', '.join(extra.missing)}: {extra.remedy}"
        for name, extra in report.extras.items()
    }
    lines = [
        f"rlpad {report.rlpad}",
        *_table(
            {
                "python": report.python,
                "platform": report.platform,
                "CPUs": f"{report.cpus} usable",
                "stack": report.stack,
                "devices": ", ".join(report.devices) or "none",
            }
        ),
        *_section("packages", _table({name: version or "missing" for name, version in report.packages.items()})),
        *_section("extras", _table(extras)),
        *_section("agents", _table({**report.agents, **dict.fromkeys(report.broken_agents, "broken")})),
        *_section("worth knowing", [line for note in report.notes for line in _bullet(note)]),
        *_section("problems", [line for problem in report.problems for line in _problem_lines(problem)]),
    ]
    if not report.problems:
        lines += ["", "Nothing is wrong."]
    return "\n".join(lines)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max((len(name) for name in rows), default=0)
    return [f"  {name:<{max(width, 14)}}  {value}" for name, value in rows.items()]


def _bullet(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)


def _problem_lines(problem: Problem) -> list[str]:
    # The remedy stays on one line, to be copied.
    return [*_bullet(problem.problem), f"    remedy: {problem.remedy}"]

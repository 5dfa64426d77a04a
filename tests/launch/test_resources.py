"""Resources: what is granted, what is refused before the start, and what arrives in the nodes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpad.launch as lp
from rlpad.launch.resources import Grant, allocate, visible_gpus

from .conftest import Start, end


def nodes(*groups: tuple[int, lp.Resources]) -> tuple[list[lp.Node], list[lp.Resources], dict[str, int]]:
    """Returns the nodes of groups `g0`, `g1`..., what they want, and the sizes of the groups."""
    program = lp.Program("p")
    for number, (size, resources) in enumerate(groups):
        with program.group(f"g{number}", resources=resources):
            for _ in range(size):
                program.add_node(lp.PyNode(print))
    found = program.get_all_nodes()
    return found, [node.resources for node in found], {label: len(group) for label, group in program.groups.items()}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that there are GPUs."""
    return lambda names: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)


class TestAllocation:
    """Who gets what."""

    def test_nothing(self) -> None:
        assert allocate(*nodes((2, lp.Resources()))) == [Grant(), Grant()]

    def test_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {9, 2, 4, 7, 5, 3})
        grants = allocate(*nodes((2, lp.Resources(cpus=1)), (1, lp.Resources()), (1, lp.Resources(cpus=3, threads=2))))
        assert [grant.cpus for grant in grants] == [(2,), (3,), None, (4, 5, 7)]
        assert [grant.threads for grant in grants] == [1, 1, None, 2]
        with pytest.raises(lp.LaunchError, match=r"^the program asks for 7 CPUs \(g0 4, g2 3\), but there are 6$"):
            allocate(*nodes((2, lp.Resources(cpus=2)), (1, lp.Resources()), (1, lp.Resources(cpus=3))))

    def test_gpus(self, gpus: Any) -> None:
        gpus("3,GPU-abc,5")
        learner, actor, other = lp.Resources(gpus=2), lp.Resources(threads=1), lp.Resources(gpus=1)
        grants = allocate(*nodes((1, learner), (2, actor), (1, other)))
        assert [dict(grant.env) for grant in grants] == [
            {"CUDA_VISIBLE_DEVICES": "3,GPU-abc"},
            {"CUDA_VISIBLE_DEVICES": ""},
            {"CUDA_VISIBLE_DEVICES": ""},
            {"CUDA_VISIBLE_DEVICES": "5"},
        ]
        assert [grant.jax_platform for grant in grants] == [None, "cpu", "cpu", None]

    def test_shared_gpus(self, gpus: Any) -> None:
        gpus("0,1")
        shared = lp.Resources(gpus=1, gpu_memory_fraction=0.3)
        grants = allocate(*nodes((4, shared), (1, lp.Resources(gpus=1, gpu_memory_fraction=0.7))))
        assert [grant.env["CUDA_VISIBLE_DEVICES"] for grant in grants] == ["0", "0", "0", "1", "1"]
        assert [grant.env["XLA_PYTHON_CLIENT_MEM_FRACTION"] for grant in grants] == [*["0.3"] * 4, "0.7"]

    @pytest.mark.parametrize(
        ("names", "want", "message"),
        [
            ("", lp.Resources(gpus=1), r"asks for 1 GPUs \(g0 1\), but there are 0$"),
            ("-1", lp.Resources(gpus=1), r"asks for 1 GPUs \(g0 1\), but there are 0$"),
            ("0,1", lp.Resources(gpus=3), r"asks for 3 GPUs \(g0 3\), but there are 2$"),
            ("0", lp.Resources(gpus=2, gpu_memory_fraction=0.1), r"asks for 2 GPUs \(g0 2\), but there are 1$"),
        ],
    )
    def test_too_many_gpus(self, gpus: Any, names: str, want: lp.Resources, message: str) -> None:
        gpus(names)
        with pytest.raises(lp.LaunchError, match=message):
            allocate(*nodes((1, want)))

    def test_too_many_shares(self, gpus: Any) -> None:
        gpus("0,1")
        want = lp.Resources(gpus=1, gpu_memory_fraction=0.6)
        message = r"asks for 1.8 GPUs \(g0 1.8\), but there are 2 \(a node's share can't be split\)"
        with pytest.raises(lp.LaunchError, match=message):
            allocate(*nodes((3, want)))
        with pytest.raises(lp.LaunchError, match=r"asks for 2.5 GPUs \(g0 1, g1 1.5\), but there are 2$"):
            allocate(*nodes((1, lp.Resources(gpus=1)), (3, lp.Resources(gpus=1, gpu_memory_fraction=0.5))))

    def test_a_platform_without_its_gpu(self, gpus: Any) -> None:
        gpus("0")
        with pytest.raises(lp.LaunchError, match="g1/0 wants JAX on 'cuda' but no GPU, as other nodes do; set gpus"):
            allocate(*nodes((1, lp.Resources(gpus=1)), (1, lp.Resources(jax_platform="cuda"))))

    @given(
        st.integers(0, 4), st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 0.25, 0.5, 1.0])), max_size=6)
    )
    def test_no_gpu_is_given_out_twice(self, there: int, wants: list[tuple[int, float | None]]) -> None:
        wanted = [lp.Resources(gpus=n, gpu_memory_fraction=share if n else None) for n, share in wants]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there))))
            try:
                grants = allocate(*nodes(*((1, want) for want in wanted)))
            except lp.LaunchError:
                # Refused: then at least what is asked for whole must be too much, or something is split.
                assert sum(want.gpus for want in wanted) > there
                return
        used = dict.fromkeys(map(str, range(there)), 0.0)
        for want, grant in zip(wanted, grants, strict=True):
            mine = [name for name in grant.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            assert len(set(mine)) == len(mine) == want.gpus
            for name in mine:
                used[name] += want.gpu_memory_fraction or 1.0
        assert all(share <= 1.0 + 1e-6 for share in used.values())

    def test_environment_per_index(self) -> None:
        each = [{"A": "1"}, {"A": "2", "B": "x"}]
        grants = allocate(*nodes((2, lp.Resources(env={"A": "0", "C": "c"}, env_per_index=each))))
        assert [dict(grant.env) for grant in grants] == [{"A": "1", "C": "c"}, {"A": "2", "B": "x", "C": "c"}]
        with pytest.raises(lp.LaunchError, match="group 'g0' has 3 nodes, but env_per_index is for 2"):
            allocate(*nodes((3, lp.Resources(env_per_index=each))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"cpus": 0}, "cpus must be at least 1, got 0"),
        ({"gpus": -1}, "gpus must be at least 0, got -1"),
        ({"gpu_memory_fraction": 0.5}, "of at least one GPU, got 0.5 with gpus=0"),
        ({"gpus": 1, "gpu_memory_fraction": 1.5}, "above 0 and at most 1"),
        ({"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "1"}}, "CUDA_VISIBLE_DEVICES follows from gpus"),
        ({"gpus": 1, "env_per_index": [{"CUDA_VISIBLE_DEVICES": "1"}]}, "CUDA_VISIBLE_DEVICES follows from gpus"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lp.LaunchError, match=message):
        lp.Resources(**options)


def test_visible_gpus(gpus: Any) -> None:
    for names, expected in (("", []), ("-1", []), ("2, 0", ["2", "0"]), ("GPU-a,MIG-b", ["GPU-a", "MIG-b"])):
        gpus(names)
        assert visible_gpus() == expected


def record(path: str) -> None:
    """Writes down what this process was given."""
    names = ("COLOUR", "NUMBER", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "NPROC", "OMP_NUM_THREADS")
    found = {name: os.environ.get(name) for name in names}
    jax = sys.modules.get("jax")
    platform = None if jax is None else jax.devices()[0].platform
    Path(path, lp.node_info().name.replace("/", "-")).write_text(
        json.dumps({**found, "cpus": sorted(os.sched_getaffinity(0)), "argv": sys.argv[1:], "platform": platform})
    )


def test_what_arrives(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first, *_ = sorted(os.sched_getaffinity(0))
    program = lp.Program("p")
    pinned = lp.Resources(cpus=1, env={"COLOUR": "red"}, env_per_index=[{"NUMBER": "7"}], args=["--a=1"])
    with program.group("pinned", resources=pinned):
        program.add_node(lp.PyNode(record, str(tmp_path)))
    with program.group("gpu", resources=lp.Resources(gpus=1, jax_platform="cpu")):
        program.add_node(lp.PyNode(record, str(tmp_path)))
    local = {"gpu": lp.PythonProcess(args={"debug": True, "quiet": False, "n": 3}, env={"COLOUR": "blue", "NUMBER": 8})}
    end(start(program, "processes", local_resources=local, preload=["jax"]))
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    cpus = found["gpu-0"].pop("cpus")
    assert cpus == sorted(os.sched_getaffinity(0))
    assert found == {
        "pinned-0": {
            "COLOUR": "red",
            "NUMBER": "7",
            "CUDA_VISIBLE_DEVICES": "",
            "JAX_PLATFORMS": "cpu",
            "NPROC": "1",
            "OMP_NUM_THREADS": "1",
            "cpus": [first],
            "argv": ["--a=1"],
            "platform": "cpu",
        },
        "gpu-0": {
            "COLOUR": "blue",
            "NUMBER": "8",
            "CUDA_VISIBLE_DEVICES": "0",
            "JAX_PLATFORMS": "cpu",
            "NPROC": os.environ.get("NPROC"),
            "OMP_NUM_THREADS": "1",
            "argv": ["--debug", "--noquiet", "--n=3"],
            "platform": "cpu",
        },
    }


def test_too_much_is_refused_before_the_start(tmp_path: Path) -> None:
    program = lp.Program("p")
    with program.group("big", resources=lp.Resources(cpus=4096)):
        program.add_node(lp.PyNode(record, str(tmp_path)))
    with pytest.raises(lp.LaunchError, match=r"asks for 4096 CPUs \(big 4096\), but there are"):
        lp.launch(program, "processes", run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
